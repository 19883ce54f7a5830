"""Handlers of methods outside of the specification: their params, and their results.

The members of the params become the arguments of the function, by name; members without a parameter are ignored, as
everywhere in the protocol. The result of a request is an object.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from msgspec import Raw, Struct

from trunkline.errors import InvalidParams
from trunkline.errors.options import describe_value
from trunkline.protocol.custom_methods import custom_method
from trunkline.protocol.methods import Method
from trunkline.registry import type_adapters
from trunkline.registry.access import Access
from trunkline.registry.handlers import Handler, Run, make_runner
from trunkline.registry.results import BadResult
from trunkline.wire import codec

__all__ = ["MethodEntry", "decode_params", "make_method", "read_meta"]

decode_params: Final[Callable[[Any], dict[str, Any]]] = codec.decoder(dict[str, Any])
"""Decode the params of any method outside of the specification."""

_decode_members: Final = codec.json_decoder(dict[str, Raw])


def read_meta(params: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of params; empty if it is not an object."""
    meta: Any = params.get("_meta")
    return cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}


class MethodEntry(Struct, frozen=True):
    """One method: a request or a notification."""

    row: Method
    handler: Handler
    run: Run
    access: Access | None = None
    timeout: float | None = None  # seconds; None: the default

    def __repr__(self) -> str:
        return f"MethodEntry({self.key!r})"

    @property
    def key(self) -> str:
        """The name of the method."""
        return self.row.name

    def arguments(self, params: dict[str, Any]) -> Any:
        """Return the handler's arguments. Raise `InvalidParams` if the params do not fit."""
        known = self.handler.arguments.__struct_encode_fields__
        if self.handler.accepts_extra:
            members = {name: value for name, value in params.items() if name != "_meta"}
        else:
            members = {name: params[name] for name in known if name in params}
        try:
            return self.handler.decode(codec.to_raw(members))
        except (codec.DecodeError, RecursionError) as error:
            raise InvalidParams(f"params of {self.key}: {error}") from None


def _to_result(name: str, value: Any, _: Any) -> dict[str, Raw]:
    """Convert the value of a request handler to a result."""
    if value is None:
        return {}
    try:
        return _decode_members(type_adapters.to_json(value))
    except codec.DecodeError:
        what = "an object, such as a dict or a dataclass, or None"
        raise BadResult(f"method {name!r} must return {what}, not {describe_value(value)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise BadResult(f"method {name!r}: the result has no JSON: {error}") from error


def _to_nothing(_value: Any, _: Any) -> None:
    """Drop the value of a notification handler."""


def make_method(
    name: str, handler: Handler, *, request: bool, access: Access | None = None, timeout: float | None = None
) -> MethodEntry:
    """Build a method from a function. The name has been checked."""
    finish: Callable[[Any, Any], Any] = partial(_to_result, name) if request else _to_nothing
    return MethodEntry(custom_method(name, request=request), handler, make_runner(handler, finish), access, timeout)
