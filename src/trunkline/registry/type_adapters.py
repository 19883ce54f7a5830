"""Types that msgspec cannot read by itself: what they are read as, and written as.

Most types need nothing from here, and are read by msgspec alone. The others are found at registration, and get a
stand-in wherever they stand: limits that msgspec does not know, unions that it refuses, what pydantic reads, classes
that hold such a thing or are made in a way of their own, and a few more.
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
    """Stands where msgspec cannot read a type: it hands over what it finds there."""

    take: Callable[[Any, Convert], Any]  # of a value, what it is read or written as

    def __instancecheck__(cls, instance: object) -> bool:
        return True  # what was taken is right already


# --- hooks -----------------------------------------------------------------------------------------


def decode_hook(kind: Any, value: Any) -> Any:
    """Reads what msgspec does not know."""
    return _take(kind, value, _strictly)


def text_hook(kind: Any, value: Any) -> Any:
    """The same where everything is text, and `"5"` may be a number."""
    return _take(kind, value, _loosely)


def _take(kind: Any, value: Any, convert: Convert) -> Any:
    if isinstance(kind, StandIn):
        return kind.take(value, convert)
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")  # noqa: TRY004 - as msgspec says it
    return kind(value)  # a path: there are no others


def _strictly(value: Any, kind: Any) -> Any:
    return _converted(value, kind, decode_hook, strict=True)


def _loosely(value: Any, kind: Any) -> Any:
    return _converted(value, kind, text_hook, strict=False)


def _converted(value: Any, kind: Any, hook: Callable[[Any, Any], Any], *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None  # so that msgspec adds the way to here


def decoder(kind: Any) -> Callable[[Any], Any]:
    """A function that reads JSON into a type; the bare one of msgspec wherever that will do."""
    return codec.decoder(adapt(kind, ValueDirection.ARGUMENT), decode_hook if needs_hooks(kind) else None)


def encode_hook(value: Any) -> Any:
    """Writes what msgspec does not know."""
    if is_path(type(value)) or isinstance(value, str):  # msgspec before 0.22 asks for keys that are members of an Enum
        return str(value)
    if pydantic_support.is_pydantic_type(type(value)):
        return pydantic_support.to_jsonable(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


to_json: Final = codec.encoder(encode_hook)
"""Any value as JSON. Raises TypeError for one that has none."""


def has_json(value: Any) -> bool:
    """Whether a value can be written."""
    try:
        to_json(value)
    except (TypeError, ValueError):
        return False
    return True


# --- what is needed ----------------------------------------------------------------------------------


def needs_hooks(kind: Any) -> bool:
    """Whether msgspec needs help with a type."""
    if is_plain(kind):
        return False
    return not is_native(kind) or any(map(is_path, walk_type(kind)))


def is_native(kind: Any) -> bool:
    """Whether msgspec reads a type as it stands, and as it is meant."""
    return is_plain(kind) or (not any(map(_is_misread, walk_type(kind))) and _is_readable(kind))


def _is_misread(kind: Any) -> bool:
    """Whether msgspec would read a type, but not as it is meant."""
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
    """A type in words that msgspec understands; most are their own. Raises `TypeError` if there are none."""
    return _Adapter(side).adapt(kind)


class _Adapter:
    """Finds stand-ins for all that needs one. What holds itself gets one only."""

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
        base, said = self.adapt(get_args(kind)[0]), read_metadata(kind.__metadata__)
        if not said.predicates:
            limited = _by_msgspec(base, said.limits)
            if limited is not None:
                return limited
        name = type_name(constrained_type(kind))
        return _stand_in(name, lambda value, convert: said.check(convert(value, base), name))

    def _union(self, options: list[Any]) -> Any:
        union: Any = typing.Union[tuple(options)]  # noqa: UP007 - of options that are only known now
        return union if _is_readable(union) else _first_match(options)

    def _named(self, kind: Any) -> StandIn:
        for known, stand_in in self._made:
            if known == kind:
                return stand_in
        ways: list[Callable[[Any, Convert], Any]] = []  # found out after it has its stand-in, since it may hold itself

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
        """How a class is made of a struct that is read in its place, or becomes one that is written in its place."""
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
    """What is not given is left to the class."""
    return msgspec.field(name=member.json_name, default=NODEFAULT if member.required else UNSET)


def _instance(origin: Any, members: list[Member], read: Any) -> Any:
    given = zip(members, astuple(read), strict=True)
    return origin(**{str(member.init_name): value for member, value in given if value is not UNSET})


def _to_members(made_of: Layout, members: list[Member], value: Any) -> Any:
    """An instance as JSON has it; what is none is for msgspec to judge."""
    if issubclass(made_of.origin, dict) or not isinstance(value, made_of.origin):
        return value
    if not made_of.array:
        return {m.json_name: part for m in members if (part := getattr(value, m.name)) is not UNSET}
    return [*(made_of.tag or ())[1:], *(getattr(value, m.name) for m in members)]


def _by_msgspec(kind: Any, limits: Mapping[str, Any]) -> Any:
    """A type with limits that msgspec can keep by itself; None if it cannot."""
    if not limits:
        return kind
    try:
        limited: Any = Annotated[kind, Meta(**limits)]
    except (TypeError, ValueError):
        return None
    return limited if _is_readable(limited) else None


def _first_match(options: list[Any]) -> StandIn:
    """The first of several options that fits."""

    def take(value: Any, convert: Convert) -> Any:
        why: list[str] = []
        for option in options:
            try:
                return convert(value, option)
            except ValueError as error:
                why.append(f"{type_name(option)}: {str(error).replace(' - at ', ' at ')}")  # the way to it comes last
        raise ValueError(f"Fits none of the options ({'; '.join(why)})")

    return _stand_in(" | ".join(map(type_name, options)), take)


def _values(kind: Any) -> StandIn:
    """One of the values that an Enum or a Literal has."""
    known = [(json_value(member), member) for member in enum_values(kind)]

    def take(value: Any, _: Convert) -> Any:
        for plain, member in known:
            if value is member or (value == plain and isinstance(value, bool) == isinstance(plain, bool)):
                return member
        raise ValueError(f"Invalid enum value {value!r}")

    return _stand_in(type_name(kind), take)
