"""Types that msgspec does not know: what they are read as, and written as.

Most types need nothing from here, and are read by msgspec alone. The others are found at registration: paths and
pydantic models, which have hooks; limits that were noted in the words of annotated-types or pydantic; and unions that
msgspec refuses, whose options are tried in order. A class that holds such a thing gets a stand-in, which is read in its
place and then made into the class. Neither pydantic nor attrs is ever imported: a model is only met where its user has
imported it.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, cast, get_args, get_origin, is_typeddict

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from trunkline.wire import codec

__all__ = ["Choice", "Mirror", "adapt", "decode_hook", "decoder", "has_json", "is_model", "needs_hooks", "to_json"]

_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None), list, dict, Any, object})
_UNIONS: Final = (typing.Union, types.UnionType)
_NOTED: Final = frozenset({"annotated_types", "pydantic"})  # whose notes are understood
_LIMITS: Final = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern")
_WORDS: Final = ("title", "description", "examples")


class Choice(type):
    """Stands for a union that msgspec refuses: the first option that fits is taken."""

    options: tuple[Any, ...]

    def __instancecheck__(cls, instance: object) -> bool:
        return True  # what was read is one of the options already

    def read(cls, value: Any) -> Any:
        """A value of the first option that it fits."""
        why: list[str] = []
        for option in cls.options:
            try:
                return msgspec.convert(value, option, dec_hook=decode_hook)
            except msgspec.ValidationError as error:
                why.append(f"{_name(option)}: {error}")
        raise ValueError(f"Fits none of the options ({'; '.join(why)})")


class Mirror(type):
    """Stands for a class with members that msgspec cannot read: a struct is read, and the class made of it."""

    origin: type
    struct: type[Struct]
    names: Mapping[str, str]  # of the struct's fields, as the class wants them

    def __instancecheck__(cls, instance: object) -> bool:
        return True

    def read(cls, value: Any) -> Any:
        """An instance of the class."""
        if isinstance(value, cls.origin):
            return value
        read = msgspec.convert(value, cls.struct, dec_hook=decode_hook)
        return cls.origin(**{given: getattr(read, field) for field, given in cls.names.items()})


class _Field(typing.NamedTuple):
    """A member of a class, whatever kind of class."""

    name: str
    given: str  # its name when the class is called
    encoded: str  # its name in JSON
    kind: Any
    default: Any = NODEFAULT
    factory: Any = NODEFAULT


# --- reading and writing ---------------------------------------------------------------------------


def decoder(kind: Any) -> Callable[[Any], Any]:
    """A function that reads JSON into a type; the bare one of msgspec wherever that will do."""
    return codec.decoder(adapt(kind), decode_hook if needs_hooks(kind) else None)


def decode_hook(kind: Any, value: Any) -> Any:
    """Reads what msgspec does not know."""
    if isinstance(kind, Choice | Mirror):
        return kind.read(value)
    if isinstance(value, kind):
        return value
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")  # noqa: TRY004 - as msgspec says it
        return kind(value)
    return _model(kind, value)


def _model(kind: Any, value: Any) -> Any:
    try:
        return kind.model_validate_json(to_json(value))
    except ValueError as error:
        told: list[Any] = cast("Any", error).errors()
        why = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in told)
        raise ValueError(f"{kind.__name__}: {why}") from None


def encode_hook(value: Any) -> Any:
    """Writes what msgspec does not know."""
    if isinstance(value, PurePath):
        return str(value)
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
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


def is_model(kind: Any) -> bool:
    """Whether a type is a pydantic model."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


# --- what is needed ----------------------------------------------------------------------------------


def needs_hooks(kind: Any) -> bool:
    """Whether msgspec needs help with a type."""
    return any(_is_foreign(part) or _is_odd(part) for part in _parts(kind))


def _is_foreign(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, PurePath) or is_model(kind))


def _is_odd(kind: Any) -> bool:
    """Whether a type has to be put in other words before msgspec can read it."""
    if get_origin(kind) is Annotated:
        return any(map(_is_noted, kind.__metadata__))
    if get_origin(kind) in _UNIONS:
        return len(set(get_args(kind)) - {type(None)}) > 1 and not _is_readable(kind)
    return any(field.default is not NODEFAULT and not _has_native_json(field.default) for field in _fields(kind))


def _is_noted(note: Any) -> bool:
    return type(note).__module__.partition(".")[0] in _NOTED


def _is_readable(kind: Any) -> bool:
    try:
        codec.decoder(kind)
    except TypeError:
        return False
    return True


def _has_native_json(value: Any) -> bool:
    try:
        codec.to_json(value)
    except TypeError:
        return False
    return True


def _parts(kind: Any) -> Iterator[Any]:
    """A type and every type that it is made of."""
    if isinstance(kind, type) and kind in _PLAIN:
        return
    seen: list[Any] = []  # not everything that stands in an annotation has a hash
    waiting = [kind]
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.append(part)
        yield part
        if get_origin(part) is not typing.Literal:
            waiting.extend(get_args(part)[:1] if get_origin(part) is Annotated else get_args(part))
            waiting.extend(field.kind for field in _fields(part))
            waiting.extend(_closed(part).values())


def _closed(kind: Any) -> Mapping[str, Any]:
    """The members of a class that cannot have a stand-in."""
    is_named_tuple = hasattr(kind, "_fields") and hasattr(kind, "_field_defaults")
    return _hints(kind) if is_named_tuple or is_typeddict(kind) else {}


def _hints(kind: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):  # which msgspec will find out, and say
        return {}


def _fields(kind: Any) -> list[_Field]:
    """The members of a dataclass, an attrs class or a struct."""
    kind = get_origin(kind) or kind
    if not isinstance(kind, type):
        return []
    owner: Any = kind
    if issubclass(kind, Struct):
        members: Any = () if kind.__struct_config__.array_like else msgspec.structs.fields(kind)
        return [_Field(f.name, f.name, f.encode_name, f.type, f.default, f.default_factory) for f in members]
    if hasattr(owner, "__attrs_attrs__"):
        hints = _hints(owner)
        return [_attribute(a, hints.get(a.name, Any)) for a in owner.__attrs_attrs__ if a.init]
    if dataclasses.is_dataclass(owner):
        hints = _hints(owner)
        return [_member(f, hints.get(f.name, Any)) for f in dataclasses.fields(owner) if f.init]
    return []


def _member(field: "dataclasses.Field[Any]", kind: Any) -> _Field:
    missing = dataclasses.MISSING
    default = NODEFAULT if field.default is missing else field.default
    factory = NODEFAULT if field.default_factory is missing else field.default_factory
    return _Field(field.name, field.name, field.name, kind, default, factory)


def _attribute(attribute: Any, kind: Any) -> _Field:
    name, default = attribute.name, attribute.default
    if hasattr(default, "takes_self"):  # a factory
        return _Field(name, attribute.alias, name, kind, NODEFAULT, default.factory)
    is_required = repr(default) == "NOTHING"
    return _Field(name, attribute.alias, name, kind, NODEFAULT if is_required else default)


# --- in other words ----------------------------------------------------------------------------------


def adapt(kind: Any) -> Any:
    """A type in words that msgspec understands; most are their own. Raises `TypeError` if there are none."""
    return _adapt(kind, {}) if any(map(_is_odd, _parts(kind))) else kind


def _adapt(kind: Any, made: dict[Any, Mirror]) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if not any(map(_is_odd, _parts(kind))):
        return kind
    if origin is Annotated:
        return _annotated(_adapt(arguments[0], made), kind.__metadata__)
    if origin in _UNIONS:
        return _union([_adapt(option, made) for option in arguments])
    if _closed(kind) or (origin is not None and _fields(kind)):
        raise TypeError(f"{_name(kind)} has a member of a type that only a dataclass, attrs class or Struct can hold")
    if origin is not None:
        return origin[tuple(part if part is ... else _adapt(part, made) for part in arguments)]
    return made[kind] if kind in made else _mirror(kind, made)


def _mirror(kind: type, made: dict[Any, Mirror]) -> Mirror:
    stand_in = made[kind] = Mirror(kind.__name__, (), {"origin": kind})
    fields = _fields(kind)
    stand_in.names = {field.name: field.given for field in fields}
    config: dict[str, Any] = {}
    if issubclass(kind, Struct):
        own = kind.__struct_config__
        config = {"tag": own.tag, "tag_field": own.tag_field, "forbid_unknown_fields": own.forbid_unknown_fields}
    members = [(field.name, _adapt(field.kind, made), _default(field)) for field in fields]
    stand_in.struct = msgspec.defstruct(kind.__name__, members, kw_only=True, **config)
    return stand_in


def _default(field: _Field) -> Any:
    default: Any = field.default
    if default is NODEFAULT:
        return msgspec.field(name=field.encoded, default_factory=field.factory)
    if not _has_native_json(default):
        return msgspec.field(name=field.encoded, default_factory=lambda: default)  # which the schema does not tell
    return msgspec.field(name=field.encoded, default=default)


def _union(options: list[Any]) -> Any:
    union: Any = typing.Union[tuple(options)]  # noqa: UP007 - of options that are only known now
    if len(set(options) - {type(None)}) < 2 or _is_readable(union):  # noqa: PLR2004 - msgspec takes one, or nothing
        return union
    return Choice(" | ".join(map(_name, options)), (), {"options": tuple(options)})


def _name(kind: Any) -> str:
    return "null" if kind is type(None) else getattr(kind, "__name__", None) or str(kind)


def _annotated(kind: Any, notes: tuple[Any, ...]) -> Any:
    """The same notes as msgspec writes them. Limits of a union are those of the options that can have them."""
    own = [note for note in notes if not _is_noted(note)]
    said: dict[str, Any] = {}
    for note in filter(_is_noted, notes):
        _collect(note, said)
    words = {name: said.pop(name) for name in _WORDS if name in said}
    if said:
        kind = _limited(kind, Meta(**said))
    if words:
        own.append(Meta(**words))
    return Annotated[(kind, *own)] if own else kind


def _limited(kind: Any, limits: Meta) -> Any:
    limited: Any = Annotated[kind, limits]
    if get_origin(kind) not in _UNIONS:
        codec.decoder(limited)  # says what cannot be limited like that
        return limited
    options = [Annotated[option, limits] for option in get_args(kind)]
    if not any(map(_is_readable, options)):
        codec.decoder(limited)
    return _union([o if _is_readable(o) else get_args(o)[0] for o in options])


def _collect(note: Any, said: dict[str, Any]) -> None:
    """What a note says: a limit, several, or words about it."""
    parts = getattr(note, "metadata", None)  # a pydantic Field
    if parts is None and hasattr(note, "__iter__"):
        parts = note  # an Interval or a Len
    for part in parts or ():
        _collect(part, said)
    for name in _WORDS if parts is not None else _LIMITS:
        if (value := getattr(note, name, None)) is not None:
            said[name] = value
