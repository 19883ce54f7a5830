"""Wire codes of errors, by revision.

An error class has a default code; `CODES` lists the revisions with another one. If a revision has no code for an error,
the nearest one is used; `data.kind` is the same in every revision.
"""

from collections.abc import Mapping
from typing import Final

from trunkline.errors import ProtocolError, Refusal
from trunkline.protocol.revisions import Revision
from trunkline.wire.messages import ErrorObject

__all__ = ["CODES", "code_of", "error_object"]

CODES: Final[Mapping[str, tuple[tuple[Revision, int], ...]]] = {
    # kind: (first revision, code), the newest first
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
    """Return the wire code of an error at a revision."""
    if isinstance(error, Refusal):
        return error.refusal_code
    return next((code for since, code in CODES.get(error.kind, ()) if revision >= since), error.code)


def error_object(error: ProtocolError, revision: Revision) -> ErrorObject:
    """Return an error as a JSON-RPC error object."""
    return ErrorObject(code_of(error, revision), error.message, error.data)
