"""Dispatch of requests and notifications to handlers: find the handler of a method and decode its params."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, to_builtins

from trunkline.errors import (
    InvalidParams,
    MethodNotFound,
)
from trunkline.protocol import lenient
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import find_method
from trunkline.registry.validators import Fault
from trunkline.rpc.run_handler import Work
from trunkline.wire import codec

__all__ = ["Dispatcher", "Feature", "MethodHandler"]

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
