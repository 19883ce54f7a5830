"""Failures of tools: by default a result with `isError`, for a model to read; under a profile an error.

Both forms have the same text and details, so each can be converted to the other.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec.structs import replace

from trunkline.errors import InternalError, ProtocolError, Refusal
from trunkline.errors.refusals import REFUSALS, REFUSALS_BY_KIND, describe_refusal
from trunkline.protocol.error_kinds import KINDS, ReportedAs, kind_of
from trunkline.protocol.meta import REFUSAL, TOOL_ERROR
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import CallToolResult, TextContent
from trunkline.wire.messages import ErrorObject

__all__ = ["add_refusal", "error_of_failure", "failed_result", "failure_of_error", "is_tool_failure"]

_RESULT_KINDS: Final = frozenset(
    {
        # of the value that a tool returned
        *("content_too_large", "binary_data_too_large", "text_too_long"),
        *("invalid_content_type", "invalid_encoding", "invalid_mime_type"),
        # of the language model that a tool used
        *("sampling_failed", "sampling_timeout", "model_not_available", "sampling_rate_limited"),
    }
)
_REFUSAL_CODES: Final = {
    kind.name: kind.code for kind in KINDS if kind.code is not None and kind.code in REFUSALS
}  # the refusals that are kinds, too
_FAILURES: Final = (
    _RESULT_KINDS | _REFUSAL_CODES.keys() | {kind.name for kind in KINDS if kind.reported_as is ReportedAs.RESULT}
)


def failed_result(text: str, details: Any = None) -> CallToolResult:
    """Return a failed tool result. Its details for programs are in `_meta`, under our own prefix."""
    meta: dict[str, Any] | None = None
    if isinstance(details, Mapping):
        error = dict(cast("Mapping[str, Any]", details))
        refusal = {REFUSAL: error.pop(REFUSAL)} if REFUSAL in error else {}
        meta = {TOOL_ERROR: error, **refusal}
    elif details is not None:  # a value of the handler
        meta = {TOOL_ERROR: details}
    return CallToolResult([TextContent(text)], is_error=True, meta=meta)


def add_refusal(result: CallToolResult, settings: object) -> CallToolResult:
    """Return a failed result with the reason for which the server refused the call, if a guard of the server did."""
    meta = result.meta or {}
    described = None if REFUSAL in meta else describe_refusal(kind_of(meta.get(TOOL_ERROR)), settings)
    if described is None:
        return result
    wait = cast("dict[str, Any]", meta[TOOL_ERROR]).get("retryAfterMs")
    refusal = described if wait is None else {**described, "retryAfterMs": wait}
    return replace(result, meta={**meta, REFUSAL: refusal})


def error_of_failure(result: CallToolResult) -> ProtocolError | None:
    """Return the error that stands for a failed result; None for a refusal without a founding number, which is a result
    under a profile, too."""
    meta = result.meta or {}
    details, refusal = meta.get(TOOL_ERROR), meta.get(REFUSAL)
    known: dict[str, Any] = (
        cast("dict[str, Any]", details)
        if isinstance(details, dict)
        else {}
        if details is None
        else {"details": details}
    )
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    if not isinstance(refusal, dict):
        return InternalError(text, data={"kind": "tool_execution_failed", **known})
    reason, kind = cast("dict[str, Any]", refusal), known.get("kind")
    if kind in _REFUSAL_CODES and reason.get("code") == _REFUSAL_CODES[kind]:
        return Refusal(_REFUSAL_CODES[kind], text, details=known)
    if kind in REFUSALS_BY_KIND and kind != reason.get("name"):  # the error of a guard, which has a kind of its own
        return InternalError(text, data={**known, "refusal": refusal})
    return None


def failure_of_error(error: ErrorObject) -> CallToolResult:
    """Return the failed result that a received error stands for."""
    details = dict(cast("dict[str, Any]", error.data))
    refusal = details.pop("refusal", None)
    if details["kind"] in _REFUSAL_CODES:
        refusal = {"code": error.code, **{name: value for name, value in details.items() if name != "kind"}}
    return failed_result(error.message, details if refusal is None else {**details, REFUSAL: refusal})


def is_tool_failure(error: ErrorObject, revision: Revision) -> bool:
    """Return whether a received error stands for a failed result at a revision."""
    kind = kind_of(error.data)
    if kind == "invalid_tool_arguments" and revision < Revision.V2025_11_25:
        return False  # an error then, as by default
    return kind in _FAILURES
