"""Wire codes of errors, by revision and profile.

An error class has a default code; `CODES` lists the revisions with another one. If a revision has no code for an error,
the nearest one is used; `data.kind` is the same in every revision. A profile may send the founding number of the kind
instead; the receiver translates it back, so that callers see the same errors.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import UNSET

from trunkline.errors import ProtocolError, Refusal
from trunkline.protocol.revisions import Revision
from trunkline.wire.messages import ErrorObject

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["CODES", "add_refusal", "code_of", "error_object", "founding_code", "from_founding_code"]

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


_TRANSLATED: Final = frozenset({-32700, -32600, -32601, -32602, -32603, -32002, -32042})
"""Codes of the handshake era. A profile replaces them, and the number of the refusal that is a kind as well."""


def code_of(error: ProtocolError, revision: Revision, profile: "Profile | None" = None) -> int:
    """Return the wire code of an error at a revision, and under a profile."""
    if isinstance(error, Refusal):
        code = error.refusal_code
    else:
        code = next((code for since, code in CODES.get(error.kind, ()) if revision >= since), error.code)
    return code if profile is None or not profile.founding_codes else founding_code(error.data, code)


def error_object(
    error: ProtocolError, revision: Revision, profile: "Profile | None" = None, settings: object = None
) -> ErrorObject:
    """Return an error as a JSON-RPC error object. The hint of a refusal may state settings."""
    code = code_of(error, revision, profile)
    return ErrorObject(code, error.message, add_refusal(code, error.data, settings))


def add_refusal(code: int, data: Any, settings: object = None) -> Any:
    """Return the data of an error with `refusal`, the reason for which it refuses a request, unless its code is the
    number of that reason."""
    if code >= 0 or not isinstance(data, dict) or "refusal" in data:
        return cast("Any", data)
    from trunkline.errors.refusals import describe_refusal  # imported here: most requests succeed
    from trunkline.protocol.error_kinds import kind_of

    described = describe_refusal(kind_of(data), settings)
    return cast("Any", data if described is None else {**data, "refusal": described})


def founding_code(data: Any, code: int) -> int:
    """Return the founding number of the kind in the data of an error; `code` if the kind has none, or if the code is
    not that of the kind: it is an application's, or the number of a refusal."""
    from trunkline.protocol.error_kinds import KINDS_BY_NAME, kind_of  # imported here: for a profile only

    row = KINDS_BY_NAME.get(kind_of(data) or "")
    return code if row is None or (code not in _TRANSLATED and code != row.code) else row.founding_code


def from_founding_code(error: ErrorObject, revision: Revision) -> ErrorObject:
    """Return a received error as it would be without a profile: with the code of its kind at a revision, and with
    `data.kind`. An error without a kind is known by its founding number. A code that only a profile has stays."""
    from trunkline.protocol.error_kinds import (
        KINDS_BY_CODE,
        KINDS_BY_NAME,
        kind_of,
    )  # imported here: for a profile only

    kind = kind_of(error.data)
    row = KINDS_BY_CODE.get(error.code) if kind is None else KINDS_BY_NAME.get(kind)
    if row is None or error.code != row.founding_code:
        return error
    code = next((code for since, code in CODES.get(row.name, ()) if revision >= since), row.code)
    data: Any = error.data
    if data is UNSET or data is None:
        data = {"kind": row.name}
    elif isinstance(data, dict):
        data = {"kind": row.name, **cast("dict[str, Any]", data)}
    return ErrorObject(error.code if code is None else code, error.message, data)
