"""Dispatch of requests and notifications to handlers: decode params, call the handler, turn exceptions into replies.

This is the only place where an exception becomes a reply. The type of the exception decides what the peer may read: an
error that was raised for the peer is sent as it is. Any other becomes a sentence with a reference, under which the
operator finds the details in the log; where errors are exposed, the peer reads its type and message.
"""

import os
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, cast

from msgspec import UNSET, Raw, Struct, to_builtins

from trunkline.errors import (
    ContentTooLarge,
    InternalError,
    InvalidArguments,
    InvalidParams,
    MethodNotFound,
    NotNow,
    PeerError,
    ProtocolError,
    Refusal,
    RequestTimeout,
    ToolError,
)
from trunkline.errors.text import printable
from trunkline.protocol import lenient
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import REFUSAL
from trunkline.protocol.methods import find_method
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import CallToolResult, TextContent
from trunkline.registry.results import BadResult
from trunkline.registry.validators import Fault
from trunkline.rpc.run_handler import Work
from trunkline.wire import codec

__all__ = ["Dispatcher", "Failure", "Feature", "MethodHandler", "build_failure"]

MethodHandler = Callable[[Any, IncomingRequest, Any], Work]
"""Handles a request or a notification. Takes the connection, the request under way, and the decoded params."""

_Decode = Callable[[Any], Any]
_Target = Callable[[Any], str]
_TARGETS: Final[Mapping[str, _Target]] = {
    "tools/call": attrgetter("name"),
    "prompts/get": attrgetter("name"),
    "resources/read": attrgetter("uri"),
    "resources/subscribe": attrgetter("uri"),
    "resources/unsubscribe": attrgetter("uri"),
    "completion/complete": lambda params: params.ref.uri or params.ref.name or "",
    "tasks/create": attrgetter("action.type"),
}  # the name or URI in the params, by method


class Feature(Struct, frozen=True):
    """One page of the specification: its name, and the handlers of its methods."""

    name: str
    handlers: Mapping[str, MethodHandler]


class Dispatcher:
    """The handlers of all features by method, with the decoders of their params."""

    def __init__(self, features: Iterable[Feature]) -> None:
        self.features = tuple(features)
        self._handlers: dict[str, tuple[_Decode, _Decode, _Target | None, MethodHandler]] = {}
        self._unwrapped: dict[str, MethodHandler] = {}  # before `wrap_handlers`
        for feature in self.features:
            for name, answer in feature.handlers.items():
                row = find_method(name)
                if row is None:
                    raise MethodNotFound(name)
                read, decode = codec.json_decoder(row.params), codec.decoder(row.params)
                self._handlers[name] = (read, decode, _TARGETS.get(name), answer)
                self._unwrapped[name] = answer

    def has_handler(self, name: str) -> bool:
        """Return whether a feature handles this method."""
        return name in self._handlers

    def wrap_handlers(self, names: Iterable[str], wrap: Callable[[str, MethodHandler], MethodHandler]) -> None:
        """Wrap the handlers of some methods, in place of an earlier wrapping."""
        for name in names:
            if name in self._unwrapped:
                read, decode, target, _ = self._handlers[name]
                self._handlers[name] = (read, decode, target, wrap(name, self._unwrapped[name]))

    def dispatch(self, connection: Any, call: IncomingRequest, params: Any) -> Work:
        """Call the handler of a request with decoded params; return its result, or the work that leads to it. Raises
        the error of either step."""
        found = self._handlers.get(call.method.name)
        if found is None:
            raise MethodNotFound(call.method.name)
        read, decode, target, answer = found
        encoded: Any = b"{}" if params is UNSET else params
        try:
            typed = read(encoded) if type(encoded) is Raw else decode(encoded)
        except (codec.DecodeError, RecursionError) as error:
            typed = None if params is UNSET else lenient.read_rewritten(call.method.params, params)
            if typed is None:
                raise _invalid_params(call.method.name, codec.explain_decode_error(error, encoded)) from None
        if target is not None:
            call.target = target(typed)
        return answer(connection, call, typed)

    def read_target(self, call: IncomingRequest, params: Any) -> str | None:
        """Return the name or URI that a request is about before it is dispatched; None if it has none, or it cannot be
        decoded."""
        read, decode, target, _ = self._handlers.get(call.method.name) or (None, None, None, None)
        if read is None or decode is None or target is None:
            return None
        try:
            return target(read(params) if type(params) is Raw else decode(b"{}" if params is UNSET else params))
        except (codec.DecodeError, RecursionError):
            return None


def _invalid_params(name: str, reason: str) -> InvalidParams:
    what, _, where = reason.partition(" - at `")
    fault = Fault(where.removesuffix("`") or "$", "params", what)
    return InvalidParams(f"params of {name}: {reason}", errors=[to_builtins(fault)])


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


def build_failure(error: BaseException, call: IncomingRequest, revision: Revision, *, expose: bool = False) -> Failure:
    """Return the reply for an exception. If its own text or data raise, it is treated as unexpected. With `expose`, an
    unexpected exception is sent with its type and message."""
    try:
        return _expected_failure(error, call, revision, expose=expose)
    except Exception:  # noqa: BLE001 - an exception class of the user, whose methods may raise anything
        return _unexpected_failure(error, call, expose=False)


def _expected_failure(error: BaseException, call: IncomingRequest, revision: Revision, *, expose: bool) -> Failure:
    as_result = call.method.fails_as_result
    if isinstance(error, BadResult) or not isinstance(error, ProtocolError | ToolError | PeerError):
        return _unexpected_failure(error, call, expose=expose)
    if not as_result:
        return Failure(error if isinstance(error, ProtocolError) else InternalError(str(error)))
    if isinstance(error, InvalidArguments):
        # Up to 2025-06-18 this was an error; since then the model reads it and tries again (SEP-1303).
        return Failure(_error_result(error.message, error.data) if revision >= Revision.V2025_11_25 else error)
    if isinstance(error, Refusal) and not isinstance(error, NotNow):  # NotNow is for the client, not for its model
        details = {"code": error.refusal_code, **{k: v for k, v in error.data.items() if k != "kind"}}
        return Failure(_error_result(error.message, {**error.data, REFUSAL: details}))
    if isinstance(error, ContentTooLarge):
        return Failure(_error_result(error.message, error.data))
    if isinstance(error, InternalError):
        # The timeout of this call, not that of a request that the handler has sent.
        late = isinstance(error, RequestTimeout) and error.method == call.method.name
        return Failure(
            _error_result(error.message, {**error.data, "kind": "tool_execution_timeout"} if late else error.data)
        )
    if isinstance(error, ProtocolError):
        return Failure(error)  # raised on purpose
    return Failure(_error_result(str(error)))


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
    return Failure(_error_result(message, details) if as_result else InternalError(message, data=details), reference)


def _error_result(text: str, details: Any = None) -> CallToolResult:
    """A failed tool result, for a model to read. Its details for programs are in `_meta`, under our own prefix."""
    meta: dict[str, Any] | None = None
    if isinstance(details, Mapping):
        error = dict(cast("Mapping[str, Any]", details))
        refusal = {REFUSAL: error.pop(REFUSAL)} if REFUSAL in error else {}
        meta = {"trunkline/error": error, **refusal}
    elif details is not None:  # a value of the handler
        meta = {"trunkline/error": details}
    return CallToolResult([TextContent(text)], is_error=True, meta=meta)
