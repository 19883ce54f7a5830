"""Event to handler to reply: params into their type, the feature that answers, and errors into what the peer may see.

This is the one place where an exception becomes an answer. What the peer may read is decided by its type: an error
that was meant for the peer goes as it is; anything else becomes a sentence with a reference, under which the
operator finds all of it, or the exception's type and message where errors are exposed.
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
"""Answers a request, or takes a notification: the connection of whoever answers, request under way, params in their
type."""

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
}  # what a request is about, by its method


class Feature(Struct, frozen=True):
    """One page of the specification: its name and who answers its methods."""

    name: str
    handlers: Mapping[str, MethodHandler]


class Dispatcher:
    """Finds who answers a method and hands over the params, read into their type."""

    def __init__(self, features: Iterable[Feature]) -> None:
        self.features = tuple(features)
        self._handlers: dict[str, tuple[_Decode, _Decode, _Target | None, MethodHandler]] = {}
        self._unwrapped: dict[str, MethodHandler] = {}  # without what goes around them
        for feature in self.features:
            for name, answer in feature.handlers.items():
                row = find_method(name)
                if row is None:
                    raise MethodNotFound(name)
                read, decode = codec.json_decoder(row.params), codec.decoder(row.params)
                self._handlers[name] = (read, decode, _TARGETS.get(name), answer)
                self._unwrapped[name] = answer

    def has_handler(self, name: str) -> bool:
        """Whether some feature answers that method."""
        return name in self._handlers

    def wrap_handlers(self, names: Iterable[str], wrap: Callable[[str, MethodHandler], MethodHandler]) -> None:
        """Puts something around the answers of some methods, in place of what was there."""
        for name in names:
            if name in self._unwrapped:
                read, decode, target, _ = self._handlers[name]
                self._handlers[name] = (read, decode, target, wrap(name, self._unwrapped[name]))

    def dispatch(self, connection: Any, call: IncomingRequest, params: Any) -> Work:
        """The answer to a request, or the work that leads to it. Raises what went wrong on the way."""
        found = self._handlers.get(call.method.name)
        if found is None:
            raise MethodNotFound(call.method.name)
        read, decode, target, answer = found
        given: Any = b"{}" if params is UNSET else params
        try:
            typed = read(given) if type(given) is Raw else decode(given)
        except (codec.DecodeError, RecursionError) as error:
            typed = None if params is UNSET else lenient.read_rewritten(call.method.params, params)
            if typed is None:
                raise _invalid_params(call.method.name, codec.explain_decode_error(error, given)) from None
        if target is not None:
            call.target = target(typed)
        return answer(connection, call, typed)

    def read_target(self, call: IncomingRequest, params: Any) -> str | None:
        """The name or URI that a request is about, before it is dispatched; None if there is none, or it cannot be
        read."""
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
    """What a request that failed is answered with: a result that says so, or an error."""

    reply: CallToolResult | ProtocolError
    reference: str | None = None  # where the operator finds more


_FAILURE_KINDS: Final = {
    "tools/call": "tool_execution_failed",
    "prompts/get": "prompt_render_failed",
    "resources/subscribe": "subscription_failed",
    "completion/complete": "completion_failed",
}  # the kind of a handler's failure, by the method it answers


def build_failure(error: BaseException, call: IncomingRequest, revision: Revision, *, expose: bool = False) -> Failure:
    """What the peer is told of an exception; of one that has no words for itself, what it is told of any other. With
    `expose` it is told the type and the message of one that was not meant for it."""
    try:
        return _expected_failure(error, call, revision, expose=expose)
    except Exception:  # noqa: BLE001 - somebody's own exception, which may do anything
        return _unexpected_failure(error, call, expose=False)


def _expected_failure(error: BaseException, call: IncomingRequest, revision: Revision, *, expose: bool) -> Failure:
    as_result = call.method.fails_as_result
    if isinstance(error, BadResult) or not isinstance(error, ProtocolError | ToolError | PeerError):
        return _unexpected_failure(error, call, expose=expose)
    if not as_result:
        return Failure(error if isinstance(error, ProtocolError) else InternalError(str(error)))
    if isinstance(error, InvalidArguments):
        # Up to 2025-06-18 this was an error; since then the model gets to read it and tries again (SEP-1303).
        return Failure(_error_result(error.message, error.data) if revision >= Revision.V2025_11_25 else error)
    if isinstance(error, Refusal) and not isinstance(error, NotNow):  # which is nothing for a model to read
        details = {"code": error.refusal_code, **{k: v for k, v in error.data.items() if k != "kind"}}
        return Failure(_error_result(error.message, {**error.data, REFUSAL: details}))
    if isinstance(error, ContentTooLarge):
        return Failure(_error_result(error.message, error.data))
    if isinstance(error, InternalError):
        late = isinstance(error, RequestTimeout) and error.method == call.method.name  # not something it asked for
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
        said = printable(str(error), multiline=True)
        told = f"{type(error).__name__}: {said}" if said else type(error).__name__
    else:
        told = f"{what} failed; the log has the details under {reference}"
    kind = _FAILURE_KINDS.get(call.method.name, InternalError.kind)
    if isinstance(error, BadResult):
        kind = error.data["kind"]
    elif as_result and isinstance(error, CancelledError):  # by itself: the caller still waits
        kind = "tool_execution_cancelled"
    details = {"kind": kind, "reference": reference}
    return Failure(_error_result(told, details) if as_result else InternalError(told, data=details), reference)


def _error_result(text: str, details: Any = None) -> CallToolResult:
    """A tool's failure, for a model to read; what a program may want to know lies in `_meta`, under our own prefix."""
    meta: dict[str, Any] | None = None
    if isinstance(details, Mapping):
        told = dict(cast("Mapping[str, Any]", details))
        refusal = {REFUSAL: told.pop(REFUSAL)} if REFUSAL in told else {}
        meta = {"trunkline/error": told, **refusal}
    elif details is not None:  # whatever a handler gave
        meta = {"trunkline/error": details}
    return CallToolResult([TextContent(text)], is_error=True, meta=meta)
