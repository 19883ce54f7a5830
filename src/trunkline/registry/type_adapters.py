"""Adapters for types that msgspec cannot decode or encode by itself.

Most types need no adapter. At registration, the others are replaced by stand-ins: types with limits that msgspec does
not support, unions that it rejects, pydantic types, classes that contain such types or have custom constructors, and a
few more.
"""

import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, Meta
from msgspec.structs import astuple

from trunkline.registry import pydantic_support
from trunkline.registry.annotations import constrained_type, distribute_limits, has_foreign_limits, read_metadata
from trunkline.registry.class_layout import (
    UNIONS,
    Layout,
    Member,
    ValueDirection,
    alias_value,
    enum_values,
    is_alias,
    is_path,
    is_plain,
    json_value,
    read_layout,
    rebuild_type,
    resolve_type,
    type_name,
    walk_type,
)
from trunkline.wire import codec

__all__ = ["adapt", "decode_hook", "decoder", "has_json", "is_native", "needs_hooks", "text_hook", "to_json"]

Convert = Callable[[Any, Any], Any]
"""(value, type) -> the value as that type; raises `ValueError`."""


class StandIn(type):
    """Metaclass of stand-in types: msgspec passes their values to a hook."""

    take: Callable[[Any, Convert], Any]  # converts a value

    def __instancecheck__(cls, instance: object) -> bool:
        return True  # converted values are valid


# --- hooks -----------------------------------------------------------------------------------------


def decode_hook(kind: Any, value: Any) -> Any:
    """Decode a type that msgspec does not support."""
    return _take(kind, value, _strictly)


def text_hook(kind: Any, value: Any) -> Any:
    """Decode like `decode_hook` from strings, where `"5"` may be a number."""
    return _take(kind, value, _loosely)


def _take(kind: Any, value: Any, convert: Convert) -> Any:
    if isinstance(kind, StandIn):
        return kind.take(value, convert)
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")  # noqa: TRY004 - as msgspec says it
    return kind(value)  # a path: the only other type


def _strictly(value: Any, kind: Any) -> Any:
    return _converted(value, kind, decode_hook, strict=True)


def _loosely(value: Any, kind: Any) -> Any:
    return _converted(value, kind, text_hook, strict=False)


def _converted(value: Any, kind: Any, hook: Callable[[Any, Any], Any], *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None  # so that msgspec adds the path


def decoder(kind: Any) -> Callable[[Any], Any]:
    """Return a function that decodes JSON to a type, without hooks if possible."""
    return codec.decoder(adapt(kind, ValueDirection.ARGUMENT), decode_hook if needs_hooks(kind) else None)


def encode_hook(value: Any) -> Any:
    """Encode a type that msgspec does not support."""
    if is_path(type(value)) or isinstance(value, str):  # msgspec before 0.22 calls the hook for Enum members as keys
        return str(value)
    if pydantic_support.is_pydantic_type(type(value)):
        return pydantic_support.to_jsonable(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


to_json: Final = codec.encoder(encode_hook)
"""Encode any value as JSON. Raise TypeError for a value without a JSON form."""


def has_json(value: Any) -> bool:
    """Return whether a value can be encoded."""
    try:
        to_json(value)
    except (TypeError, ValueError):
        return False
    return True


# --- what is needed ----------------------------------------------------------------------------------


def needs_hooks(kind: Any) -> bool:
    """Return whether msgspec needs a hook for a type."""
    if is_plain(kind):
        return False
    return not is_native(kind) or any(map(is_path, walk_type(kind)))


def is_native(kind: Any) -> bool:
    """Return whether msgspec decodes a type correctly by itself."""
    return is_plain(kind) or (not any(map(_is_misread, walk_type(kind))) and _is_readable(kind))


def _is_misread(kind: Any) -> bool:
    """Return whether msgspec would decode a type, but ignore part of its meaning."""
    if pydantic_support.is_pydantic_type(kind):
        return True
    if get_origin(kind) is Annotated:
        return has_foreign_limits(kind.__metadata__)
    made_of = read_layout(kind)
    return made_of is not None and made_of.custom_init


def _is_readable(kind: Any) -> bool:
    try:
        codec.decoder(kind)
    except (TypeError, ValueError, NotImplementedError, RecursionError):
        return False
    return True


# --- stand-ins ---------------------------------------------------------------------------------------


def adapt(kind: Any, side: ValueDirection) -> Any:
    """Return a type that msgspec supports; most types are returned unchanged. Raise `TypeError` if there is none."""
    return _Adapter(side).adapt(kind)


class _Adapter:
    """Replaces types by stand-ins. A recursive type gets one stand-in."""

    def __init__(self, side: ValueDirection) -> None:
        self._side = side
        self._made: list[tuple[Any, StandIn]] = []

    def adapt(self, kind: Any) -> Any:
        if is_native(kind):
            return kind
        kind = resolve_type(kind)
        origin = get_origin(kind)
        if pydantic_support.is_pydantic_type(kind):
            return self._pydantic_type(kind)
        if origin is Annotated:
            return self._annotated(distribute_limits(kind))
        if origin in UNIONS:
            return self._union([self.adapt(option) for option in get_args(kind)])
        if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
            return _values(kind)
        if is_alias(kind) or read_layout(kind) is not None:
            return self._named(kind)
        return rebuild_type(kind, self.adapt)

    def _pydantic_type(self, kind: Any) -> StandIn:
        name, by = type_name(kind), pydantic_support.adapter(kind)
        work = pydantic_support.read if self._side is ValueDirection.ARGUMENT else pydantic_support.write
        return _stand_in(name, lambda value, _: work(by, name, value))

    def _annotated(self, kind: Any) -> Any:
        base, metadata = self.adapt(get_args(kind)[0]), read_metadata(kind.__metadata__)
        if not metadata.predicates:
            limited = _by_msgspec(base, metadata.limits)
            if limited is not None:
                return limited
        name = type_name(constrained_type(kind))
        return _stand_in(name, lambda value, convert: metadata.check(convert(value, base), name))

    def _union(self, options: list[Any]) -> Any:
        union: Any = typing.Union[tuple(options)]  # noqa: UP007 - of options that are only known now
        return union if _is_readable(union) else _first_match(options)

    def _named(self, kind: Any) -> StandIn:
        for known, stand_in in self._made:
            if known == kind:
                return stand_in
        ways: list[Callable[[Any, Convert], Any]] = []  # set after the stand-in exists, since the type may be recursive

        def take(value: Any, convert: Convert) -> Any:
            return ways[0](value, convert)

        stand_in = _stand_in(type_name(kind), take)
        self._made.append((kind, stand_in))
        made_of = read_layout(kind)
        ways.append(self._by_value(alias_value(kind)) if made_of is None else self._mirror(made_of))
        return stand_in

    def _by_value(self, kind: Any) -> Callable[[Any, Convert], Any]:
        inner = self.adapt(kind)
        return lambda value, convert: convert(value, inner)

    def _mirror(self, made_of: Layout) -> Callable[[Any, Convert], Any]:
        """Return a converter between a class and a struct with the same members."""
        members = made_of.members_for(self._side)
        struct = msgspec.defstruct(
            made_of.origin.__name__,
            [(f"_{place}", self.adapt(m.kind), _default(m)) for place, m in enumerate(members)],
            kw_only=True,
            array_like=made_of.array,
            tag_field=made_of.tag and made_of.tag[0],
            tag=made_of.tag and made_of.tag[1],
            forbid_unknown_fields=made_of.closed,
        )
        if self._side is ValueDirection.ARGUMENT:
            return lambda value, convert: _instance(made_of.origin, members, convert(value, struct))
        return lambda value, convert: convert(_to_members(made_of, members, value), struct)


def _stand_in(name: str, take: Callable[[Any, Convert], Any]) -> StandIn:
    return StandIn(name, (), {"take": staticmethod(take)})


def _default(member: Member) -> Any:
    """Return the default of a mirrored member: the class provides missing values."""
    return msgspec.field(name=member.json_name, default=NODEFAULT if member.required else UNSET)


def _instance(origin: Any, members: list[Member], read: Any) -> Any:
    pairs = zip(members, astuple(read), strict=True)
    return origin(**{str(member.init_name): value for member, value in pairs if value is not UNSET})


def _to_members(made_of: Layout, members: list[Member], value: Any) -> Any:
    """Return the JSON members of an instance; leave other values to msgspec's validation."""
    if issubclass(made_of.origin, dict) or not isinstance(value, made_of.origin):
        return value
    if not made_of.array:
        return {m.json_name: part for m in members if (part := getattr(value, m.name)) is not UNSET}
    return [*(made_of.tag or ())[1:], *(getattr(value, m.name) for m in members)]


def _by_msgspec(kind: Any, limits: Mapping[str, Any]) -> Any:
    """Return a type with limits that msgspec enforces; None if it cannot."""
    if not limits:
        return kind
    try:
        limited: Any = Annotated[kind, Meta(**limits)]
    except (TypeError, ValueError):
        return None
    return limited if _is_readable(limited) else None


def _first_match(options: list[Any]) -> StandIn:
    """Return a stand-in for the first of several options that fits."""

    def take(value: Any, convert: Convert) -> Any:
        why: list[str] = []
        for option in options:
            try:
                return convert(value, option)
            except ValueError as error:
                why.append(f"{type_name(option)}: {str(error).replace(' - at ', ' at ')}")  # the path comes last
        raise ValueError(f"Fits none of the options ({'; '.join(why)})")

    return _stand_in(" | ".join(map(type_name, options)), take)


def _values(kind: Any) -> StandIn:
    """Return a stand-in for the values of an Enum or a Literal."""
    known = [(json_value(member), member) for member in enum_values(kind)]

    def take(value: Any, _: Convert) -> Any:
        for plain, member in known:
            if value is member or (value == plain and isinstance(value, bool) == isinstance(plain, bool)):
                return member
        raise ValueError(f"Invalid enum value {value!r}")

    return _stand_in(type_name(kind), take)
