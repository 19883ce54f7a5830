"""Dispatch of requests and notifications to handlers: find the handler of a method and decode its params."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, to_builtins

from trunkline.errors import (
    InvalidParams,
    MethodNotFound,
)
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import Method, find_method
from trunkline.rpc.run_handler import Work
from trunkline.wire import codec

__all__ = ["CustomMethod", "Dispatcher", "Feature", "MethodHandler", "find_target"]

MethodHandler = Callable[[Any, IncomingRequest, Any], Work]
"""Handles a request or a notification. Takes the connection, the request under way, and the decoded params."""

_Decode = Callable[[Any], Any]
_Target = Callable[[Any], str]
_Wrap = Callable[[str, MethodHandler], MethodHandler]
_Prepared = tuple[_Decode, _Decode, _Target | None, MethodHandler]
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
    """One page of the specification: its name, and the handlers of its methods. A handler is looked up with the first
    request for its method, so a mapping may import it then. Handlers of an `undecoded` feature take the params as they
    were received."""

    name: str
    handlers: Mapping[str, MethodHandler]
    undecoded: bool = False


class CustomMethod(Struct, frozen=True):
    """A method outside of the specification: its row, the decoder of its params, and its handler."""

    row: Method
    decode: _Decode
    handler: MethodHandler


class Dispatcher:
    """The handlers of all features by method, with the decoders of their params."""

    def __init__(
        self, features: Iterable[Feature], find_custom: Callable[[str], CustomMethod | None] = lambda _: None
    ) -> None:
        """`find_custom` returns a method outside of the specification."""
        self.features = tuple(features)
        self._find_custom = find_custom
        self._wrap_custom: _Wrap | None = None
        self._methods: dict[str, tuple[Method, Feature]] = {}
        self._wrappers: dict[str, _Wrap] = {}
        self._prepared: dict[str, _Prepared] = {}  # methods that have been called
        for feature in self.features:
            for name in feature.handlers:
                row = find_method(name)
                if row is None:
                    raise MethodNotFound(name)
                self._methods[name] = (row, feature)

    def has_handler(self, name: str) -> bool:
        """Return whether a feature handles this method."""
        return name in self._methods or self._find_custom(name) is not None

    def find_custom_row(self, name: str) -> Method | None:
        """Return the row of a method outside of the specification."""
        custom = self._find_custom(name)
        return None if custom is None else custom.row

    def wrap_handlers(self, names: Iterable[str], wrap: _Wrap) -> None:
        """Wrap the handlers of some methods, in place of an earlier wrapping."""
        for name in names:
            self._wrappers[name] = wrap
            self._prepared.pop(name, None)

    def wrap_custom_requests(self, wrap: _Wrap) -> None:
        """Wrap the handlers of requests outside of the specification, in place of an earlier wrapping."""
        self._wrap_custom = wrap

    def _prepare_custom(self, name: str) -> _Prepared:
        """Return the same as `_prepare`, each time: the method may be registered again."""
        custom = self._find_custom(name)
        if custom is None:
            raise MethodNotFound(name)
        handler, wrap = custom.handler, self._wrap_custom if custom.row.is_request else None
        return custom.decode, custom.decode, None, handler if wrap is None else wrap(name, handler)

    def _prepare(self, name: str) -> _Prepared:
        """Return the decoders, the target and the handler of a method; make them on its first call."""
        prepared = self._prepared.get(name)
        if prepared is None:
            row, feature = self._methods.get(name) or (None, None)
            if row is None or feature is None:
                return self._prepare_custom(name)
            handler, wrap = feature.handlers[name], self._wrappers.get(name)
            prepared = self._prepared[name] = (
                _keep_encoded if feature.undecoded else codec.json_decoder(row.params),
                _keep_encoded if feature.undecoded else codec.decoder(row.params),
                None if feature.undecoded else _TARGETS.get(name),
                handler if wrap is None else wrap(name, handler),
            )
        return prepared

    def dispatch(self, connection: Any, call: IncomingRequest, params: Any) -> Work:
        """Call the handler of a request with decoded params; return its result, or the work that leads to it. Raises
        the error of either step."""
        name = call.method.name
        read, decode, target, answer = self._prepared.get(name) or self._prepare(name)
        timing = call.timing
        if timing is not None and timing.params is not None:
            typed = timing.params
        else:
            try:
                typed = read(params) if type(params) is Raw else decode(b"{}" if params is UNSET else params)
            except (codec.DecodeError, RecursionError) as error:
                from trunkline.protocol import lenient  # imported here: few peers send other shapes

                typed = None if params is UNSET else lenient.read_rewritten(call.method.params, params)
                if typed is None:
                    encoded = b"{}" if params is UNSET else params
                    raise _invalid_params(call.method.name, codec.explain_decode_error(error, encoded)) from None
        if target is not None:
            call.target = target(typed)
        if timing is not None:
            timing.on_decoded(call, typed)
        return answer(connection, call, typed)

    def decode_early(self, call: IncomingRequest, params: Any) -> tuple[Any, str | None]:
        """Return the params of a request and the name or URI that they are about, before it is dispatched; None for
        both if it has no target, or they cannot be decoded."""
        name = call.method.name
        if not self.has_handler(name):
            return None, None
        read, decode, target, _ = self._prepared.get(name) or self._prepare(name)
        if target is None:
            return None, None
        try:
            typed = read(params) if type(params) is Raw else decode(b"{}" if params is UNSET else params)
        except (codec.DecodeError, RecursionError):
            return None, None
        return typed, target(typed)


def find_target(method: str, params: Any) -> str | None:
    """Return the name or URI in the params of a request of ours; None if there is none."""
    target = _TARGETS.get(method)
    try:
        return None if target is None else target(params)
    except AttributeError:  # params of another shape
        return None


def _keep_encoded(params: Any) -> Raw:
    return Raw(params) if isinstance(params, bytes) else codec.original_json(params)


def _invalid_params(name: str, reason: str) -> InvalidParams:
    from trunkline.registry.validators import Fault  # imported here: most params are valid

    what, _, where = reason.partition(" - at `")
    fault = Fault(where.removesuffix("`") or "$", "params", what)
    return InvalidParams(f"params of {name}: {reason}", errors=[to_builtins(fault)])
