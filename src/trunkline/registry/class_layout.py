"""Introspection of types: their parts, and the members of classes of any kind.

Dataclasses, attrs classes, structs, named tuples and typed dicts are treated alike, with type variables substituted.
attrs is never imported: an attrs class exists only if its author has imported attrs.
"""

import collections.abc
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from types import UnionType
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from trunkline.registry import pydantic_support

__all__ = [
    "UNIONS",
    "Layout",
    "Member",
    "ValueDirection",
    "alias_value",
    "enum_values",
    "is_alias",
    "is_path",
    "is_plain",
    "json_value",
    "read_layout",
    "rebuild_type",
    "resolve_type",
    "type_name",
    "walk_type",
]

UNIONS: Final = (typing.Union, UnionType)
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None), list, dict, Any, object})
_SELF: Final[Any] = typing.Self  # pyright: ignore[reportUnknownMemberType] - a special form
_QUALIFIERS: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final"})


def is_path(kind: Any) -> bool:
    """Return whether a type is a path class, without importing pathlib: such a type exists only if its user did."""
    base = getattr(sys.modules.get("pathlib"), "PurePath", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


def _is_init_var(kind: Any) -> bool:
    init_var = getattr(sys.modules.get("dataclasses"), "InitVar", None)
    return init_var is not None and isinstance(kind, init_var)


class ValueDirection(Enum):
    """The direction in which a value is sent."""

    ARGUMENT = auto()  # from the peer: decoded
    RESULT = auto()  # to the peer: encoded


class Member(typing.NamedTuple):
    """A member of a class."""

    name: str
    json_name: str  # its name in JSON
    kind: Any
    init_name: str | None  # its parameter of the constructor; None: it has none
    required: bool
    default: Any = NODEFAULT
    factory: Any = NODEFAULT
    is_stored: bool = True  # whether instances have the attribute


class Layout(Struct, frozen=True):
    """The JSON form of a class: an object, or an array with one item per member."""

    origin: Any
    members: tuple[Member, ...]
    array: bool = False
    closed: bool = False  # accepts no unknown members
    tag: tuple[str, str | int] | None = None  # member and value that discriminate it in a union
    custom_init: bool = False  # msgspec cannot construct its instances

    def members_for(self, side: ValueDirection) -> list[Member]:
        """Return the members that are sent in one direction."""
        return [
            m for m in self.members if (m.init_name is not None if side is ValueDirection.ARGUMENT else m.is_stored)
        ]


# --- types -----------------------------------------------------------------------------------------


def is_plain(kind: Any) -> bool:
    """Return whether a type consists of basic JSON types only, so that it needs no inspection."""
    if isinstance(kind, type):
        return kind in _PLAIN
    return kind is Any or (get_origin(kind) in {list, dict, *UNIONS} and all(map(is_plain, get_args(kind))))


def type_name(kind: Any) -> str:
    """Return the name of a type for messages."""
    if kind is type(None):
        return "null"
    if get_origin(kind) is Annotated:
        return type_name(get_args(kind)[0])
    if get_origin(kind) in UNIONS:
        return " | ".join(map(type_name, get_args(kind)))
    if isinstance(kind, list):  # the parameters of a Callable
        return f"[{', '.join(map(type_name, cast('list[Any]', kind)))}]"
    name: str = getattr(kind, "__name__", None) or str(kind)
    inner = () if get_origin(kind) in {None, Literal} else get_args(kind)
    return f"{name}[{', '.join(map(type_name, inner))}]" if inner else name


def enum_values(kind: Any) -> list[Any]:
    """Return the values of an Enum or a Literal."""
    return list(cast("Any", kind)) if isinstance(kind, type) else list(get_args(kind))


def json_value(value: Any) -> Any:
    """Return the JSON form of an Enum member or Literal value."""
    return value.value if isinstance(value, Enum) else value


def is_alias(kind: Any) -> bool:
    """Return whether a type was defined with a `type` statement."""
    return hasattr(get_origin(kind) or kind, "__value__")


def resolve_type(kind: Any) -> Any:
    """Resolve aliases, type variables and qualifiers of a type. A recursive alias is returned as it is, since it needs
    its name."""
    while True:
        if isinstance(kind, NewType):
            kind = kind.__supertype__
        elif isinstance(kind, TypeVar):
            kind = _of_variable(kind)
        elif _is_init_var(kind):
            kind = kind.type
        elif kind is None:
            kind = type(None)
        elif kind is typing.LiteralString:
            kind = str
        elif _qualifier(kind) is not None:
            kind = get_args(kind)[0]
        elif (get_origin(kind) or kind) is collections.abc.Iterable:
            kind = list[get_args(kind)] if get_args(kind) else list
        elif is_alias(kind) and not any(kind == part for part in walk_type(alias_value(kind))):
            kind = alias_value(kind)
        else:
            return kind


def alias_value(alias: Any) -> Any:
    """Return the type that an alias stands for."""
    origin: Any = get_origin(alias)
    if origin is None:
        return alias.__value__
    return _substitute(origin.__value__, dict(zip(origin.__type_params__, get_args(alias), strict=True)))


def _of_variable(variable: TypeVar) -> Any:
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007 - of options that are only known now
    return Any if variable.__bound__ is None else variable.__bound__


def _qualifier(kind: Any) -> str | None:
    """Return the name of a type qualifier such as `Required[…]`, from whichever module."""
    name = str(get_origin(kind)).rpartition(".")[2]
    return name if name in _QUALIFIERS else None


def walk_type(kind: Any) -> Iterator[Any]:
    """Yield a type and all types that it contains. Do not look into pydantic types."""
    seen: list[Any] = []  # annotations may be unhashable
    waiting = [kind]
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.append(part)
        yield part
        if get_origin(part) is Literal or pydantic_support.is_pydantic_type(part):
            continue
        waiting.extend(get_args(part)[:1] if get_origin(part) is Annotated else get_args(part))
        if is_alias(part):
            waiting.append(alias_value(part))
        elif (made_of := read_layout(part)) is not None:
            waiting.extend(member.kind for member in made_of.members)


def rebuild_type(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return the type with `change` applied to its parts."""
    origin, old = get_origin(kind), get_args(kind)
    if origin is None or origin is Literal or not old:
        return kind
    if origin is Annotated:
        return Annotated[(change(old[0]), *old[1:])]
    new = tuple(part if part is ... else change(part) for part in old)
    if new == old:
        return kind
    if origin in UNIONS:
        return typing.Union[new]  # noqa: UP007 - of options that are only known now
    return origin[new[0]] if len(new) == 1 else origin[new]


def _substitute(kind: Any, scope: Mapping[Any, Any]) -> Any:
    """Replace type variables and `Self` in a type."""
    if isinstance(kind, TypeVar) or kind is _SELF:
        return scope.get(kind, kind)
    return rebuild_type(kind, lambda part: _substitute(part, scope))


# --- classes ---------------------------------------------------------------------------------------


def read_layout(kind: Any) -> Layout | None:
    """Return the layout of a class; None for a type without members. Raise `TypeError` if the members cannot be
    determined."""
    origin: Any = get_origin(kind) or kind
    if not isinstance(origin, type) or pydantic_support.is_pydantic_type(origin):
        return None
    read = _reader(origin)
    if read is None:
        return None
    made = read(origin, _hints(kind, origin))
    for member in made.members:
        if pydantic_support.is_field(member.default):
            why = "has a pydantic Field as its default, which only pydantic classes support"
            raise TypeError(f"{origin.__name__}.{member.name} {why}; write Annotated[…, Field(…)] and a plain default")
    return made


def _reader(origin: Any) -> Callable[[Any, Mapping[str, Any]], Layout] | None:
    if issubclass(origin, Struct):
        return _struct
    if hasattr(origin, "__attrs_attrs__"):
        return _attrs
    if hasattr(origin, "__dataclass_fields__"):
        return _dataclass
    if hasattr(origin, "__total__") and issubclass(origin, dict):
        return _typed_dict
    if hasattr(origin, "_field_defaults") and issubclass(origin, tuple):
        return _named_tuple
    return None


def _struct(origin: Any, hints: Mapping[str, Any]) -> Layout:
    config = origin.__struct_config__
    members = tuple(
        Member(f.name, f.encode_name, hints[f.name], f.name, f.required, f.default, f.default_factory)
        for f in msgspec.structs.fields(origin)
    )
    tag = None if config.tag is None else (config.tag_field, config.tag)
    return Layout(origin, members, config.array_like, config.forbid_unknown_fields, tag)


def _attrs(origin: Any, hints: Mapping[str, Any]) -> Layout:
    nothing = sys.modules["attr"].NOTHING
    members: list[Member] = []
    own_way = False
    for a in origin.__attrs_attrs__:
        is_factory = hasattr(a.default, "takes_self")
        default = NODEFAULT if is_factory or a.default is nothing else a.default
        factory = a.default.factory if is_factory and not a.default.takes_self else NODEFAULT
        init_name = a.alias if a.init else None
        members.append(
            Member(a.name, a.name, hints.get(a.name, Any), init_name, a.default is nothing, default, factory)
        )
        own_way = own_way or init_name is None or a.converter is not None
    return Layout(origin, tuple(members), custom_init=own_way)


def _dataclass(origin: Any, hints: Mapping[str, Any]) -> Layout:
    import dataclasses  # a dataclass exists only if its author has imported this

    missing = dataclasses.MISSING
    members: list[Member] = []
    for f in dataclasses.fields(origin):
        default = NODEFAULT if f.default is missing else f.default
        factory = NODEFAULT if f.default_factory is missing else f.default_factory
        required = default is NODEFAULT and factory is NODEFAULT
        members.append(Member(f.name, f.name, hints[f.name], f.name if f.init else None, required, default, factory))
    for name, kind in hints.items():
        if _is_init_var(kind):
            default = getattr(origin, name, NODEFAULT)
            members.append(Member(name, name, kind, name, default is NODEFAULT, default, is_stored=False))
    return Layout(origin, tuple(members), custom_init=any(m.init_name is None or not m.is_stored for m in members))


def _typed_dict(origin: Any, hints: Mapping[str, Any]) -> Layout:
    members: list[Member] = []
    for name, kind in hints.items():
        words = list(_qualifiers(kind))
        required = "Required" in words or (name in origin.__required_keys__ and "NotRequired" not in words)
        members.append(Member(name, name, kind, name, required))
    return Layout(origin, tuple(members))


def _qualifiers(kind: Any) -> Iterator[str]:
    while (name := _qualifier(kind)) is not None or get_origin(kind) is Annotated:
        if name is not None:
            yield name
        kind = get_args(kind)[0]


def _named_tuple(origin: Any, hints: Mapping[str, Any]) -> Layout:
    defaults = origin._field_defaults
    members = tuple(
        Member(name, name, hints.get(name, Any), name, name not in defaults, defaults.get(name, NODEFAULT))
        for name in origin._fields
    )
    return Layout(origin, members, array=True, closed=True)


# --- annotations of a class ------------------------------------------------------------------------


def _hints(kind: Any, origin: Any) -> Mapping[str, Any]:
    """Return the annotations of a class, with the type variables of its bases substituted."""
    variables = {v.__name__: v for c in origin.__mro__ for v in getattr(c, "__type_params__", ())}
    try:
        found = typing.get_type_hints(origin, localns=variables or None, include_extras=True)
    except NameError as error:
        raise TypeError(f"{origin.__name__}: an annotation names something that is not defined: {error}") from None
    scopes: dict[Any, dict[Any, Any]] = {}
    _collect_type_arguments(kind, {}, scopes)
    order: Any = (
        list(scopes)[::-1] if hasattr(origin, "__total__") else origin.__mro__
    )  # a typed dict does not record its bases
    made: dict[str, Any] = {}
    for name, hint in found.items():
        owner = next((c for c in order if name in inspect.get_annotations(c)), origin)
        made[name] = _substitute(hint, {**scopes.get(owner, {}), _SELF: kind})
    return made


def _collect_type_arguments(kind: Any, scope: Mapping[Any, Any], found: dict[Any, dict[Any, Any]]) -> None:
    """Record the type arguments of a class and all its bases."""
    origin: Any = get_origin(kind) or kind
    if not isinstance(origin, type) or origin in found:
        return
    filled_in = [_substitute(argument, scope) for argument in get_args(kind)]
    found[origin] = dict(zip(getattr(origin, "__parameters__", ()), filled_in, strict=False))
    for base in origin.__dict__.get("__orig_bases__", origin.__bases__):
        _collect_type_arguments(base, found[origin], found)
