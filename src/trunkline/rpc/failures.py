"""Failures of handlers: turn an exception into the reply that describes it to the peer.

This is the only place where an exception becomes a reply. The type of the exception decides what the peer may read: an
error that was raised for the peer is sent as it is. Any other becomes a sentence with a reference, under which the
operator finds the details in the log; where errors are exposed, the peer reads its type and message.
"""

import os
from asyncio import CancelledError
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import (
    ContentTooLarge,
    InternalError,
    InvalidArguments,
    NotNow,
    PeerError,
    ProtocolError,
    Refusal,
    RequestTimeout,
    ToolError,
)
from trunkline.errors.text import printable
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import REFUSAL
from trunkline.protocol.revisions import Revision
from trunkline.protocol.tool_failures import add_refusal, error_of_failure, failed_result
from trunkline.protocol.types import CallToolResult
from trunkline.registry.results import BadResult

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["Failure", "build_failure"]


class Failure(Struct, frozen=True):
    """The reply to a request that failed: a tool result with `isError`, or an error."""

    reply: CallToolResult | ProtocolError
    reference: str | None = None  # under which the operator finds the error in the log


_FAILURE_KINDS: Final = {
    "tools/call": "tool_execution_failed",
    "prompts/get": "prompt_render_failed",
    "resources/subscribe": "subscription_failed",
    "completion/complete": "completion_failed",
}  # the error kind of a handler's failure, by method


def build_failure(
    error: BaseException,
    call: IncomingRequest,
    revision: Revision,
    settings: Settings,
    *,
    expose: bool = False,
    profile: "Profile | None" = None,
) -> Failure:
    """Return the reply for an exception. If its own text or data raise, it is treated as unexpected. With `expose`, an
    unexpected exception is sent with its type and message. The hints of refusals state the settings. Under a profile
    the failure of a tool may be an error."""
    try:
        if isinstance(error, Refusal):
            error = error.with_hint(settings)
        failure = _expected_failure(error, call, revision, expose=expose)
    except Exception:  # noqa: BLE001 - an exception class of the user, whose methods may raise anything
        failure = _unexpected_failure(error, call, expose=False)
    if isinstance(failure.reply, CallToolResult):
        failure = Failure(add_refusal(failure.reply, settings), failure.reference)
    if profile is None or not profile.tool_errors or isinstance(failure.reply, ProtocolError):
        return failure
    return Failure(error_of_failure(failure.reply) or failure.reply, failure.reference)


def _expected_failure(error: BaseException, call: IncomingRequest, revision: Revision, *, expose: bool) -> Failure:
    as_result = call.method.fails_as_result
    if isinstance(error, BadResult) or not isinstance(error, ProtocolError | ToolError | PeerError):
        return _unexpected_failure(error, call, expose=expose)
    if not as_result:
        return Failure(error if isinstance(error, ProtocolError) else InternalError(str(error)))
    if isinstance(error, InvalidArguments):
        # Up to 2025-06-18 this was an error; since then the model reads it and tries again (SEP-1303).
        return Failure(failed_result(error.message, error.data) if revision >= Revision.V2025_11_25 else error)
    if isinstance(error, Refusal) and not isinstance(error, NotNow):  # NotNow is for the client, not for its model
        details = {"code": error.refusal_code, **{k: v for k, v in error.data.items() if k != "kind"}}
        return Failure(failed_result(error.message, {**error.data, REFUSAL: details}))
    if isinstance(error, ContentTooLarge):
        return Failure(failed_result(error.message, error.data))
    if isinstance(error, InternalError):
        # The timeout of this call, not that of a request that the handler has sent.
        late = isinstance(error, RequestTimeout) and error.method == call.method.name
        return Failure(
            failed_result(error.message, {**error.data, "kind": "tool_execution_timeout"} if late else error.data)
        )
    if isinstance(error, ProtocolError):
        return Failure(error)  # raised on purpose
    return Failure(failed_result(str(error)))


def _unexpected_failure(error: BaseException, call: IncomingRequest, *, expose: bool) -> Failure:
    reference, as_result = os.urandom(6).hex(), call.method.fails_as_result
    what = "the tool" if as_result else call.method.name
    if expose:
        text = printable(str(error), multiline=True)
        message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    else:
        message = f"{what} failed; the log has the details under {reference}"
    kind = _FAILURE_KINDS.get(call.method.name, InternalError.kind)
    if isinstance(error, BadResult):
        kind = error.data["kind"]
    elif as_result and isinstance(error, CancelledError):  # raised by the handler itself: the caller still waits
        kind = "tool_execution_cancelled"
    details = {"kind": kind, "reference": reference}
    return Failure(failed_result(message, details) if as_result else InternalError(message, data=details), reference)
