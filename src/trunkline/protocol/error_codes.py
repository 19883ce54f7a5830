"""Which code an error has on the wire, by revision.

The class of an error knows its default code; the few that a revision wants otherwise stand in one table. What a
revision has no code for is said with the nearest that it has; `data.kind` stays the same everywhere.
"""

from collections.abc import Mapping
from typing import Final

from trunkline.errors import ProtocolError, Refusal
from trunkline.protocol.revisions import Revision
from trunkline.wire.messages import ErrorObject

__all__ = ["CODES", "code_of", "error_object"]

CODES: Final[Mapping[str, tuple[tuple[Revision, int], ...]]] = {
    # kind: (from this revision on, that code), the newest first
    "header_mismatch": ((Revision.V2026_07_28, -32020), (Revision.V2024_11_05, -32600)),
    "missing_client_capability": ((Revision.V2026_07_28, -32021), (Revision.V2024_11_05, -32600)),
    "unsupported_protocol_version": ((Revision.V2026_07_28, -32022), (Revision.V2024_11_05, -32600)),
    "resource_not_found": ((Revision.V2026_07_28, -32602), (Revision.V2024_11_05, -32002)),
    "url_elicitation_required": (
        (Revision.V2026_07_28, -32603),
        (Revision.V2025_11_25, -32042),
        (Revision.V2024_11_05, -32603),
    ),
}


def code_of(error: ProtocolError, revision: Revision) -> int:
    """The code that says this error at that revision."""
    if isinstance(error, Refusal):
        return error.refusal_code
    return next((code for since, code in CODES.get(error.kind, ()) if revision >= since), error.code)


def error_object(error: ProtocolError, revision: Revision) -> ErrorObject:
    """An error as it is sent."""
    return ErrorObject(code_of(error, revision), error.message, error.data)
