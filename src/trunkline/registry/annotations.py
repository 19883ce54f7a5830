"""Metadata of `Annotated` types: limits of values, and schema keywords such as a description.

Strings, `msgspec.Meta`, annotated-types and pydantic's `Field` are supported. Annotated-types and pydantic are never
imported: their objects are recognised by module name and read by attribute name.
"""

import re
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, get_args, get_origin

from msgspec import Meta, Struct, field

from trunkline.registry.class_layout import UNIONS, resolve_type, type_name
from trunkline.registry.pydantic_support import is_field
from trunkline.wire import codec

__all__ = ["TypeMetadata", "constrained_type", "distribute_limits", "has_foreign_limits", "read_metadata"]

_BOUNDS: Final = ("ge", "gt", "le", "lt")
_LENGTHS: Final = ("min_length", "max_length")
_LIMITS: Final = (*_BOUNDS, "multiple_of", *_LENGTHS, "pattern", "tz")
_KEYWORDS: Final = ("title", "description", "examples", "deprecated")
_NUMBERS: Final = (int, float, Decimal)
_MOMENTS: Final = (datetime, date, time)
_SIZED: Final = (str, bytes, bytearray, list, set, frozenset, tuple, dict)
_CONSTRAINED_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(_BOUNDS, (*_NUMBERS, *_MOMENTS, timedelta)),
    **dict.fromkeys(_LENGTHS, _SIZED),
    "multiple_of": (*_NUMBERS, timedelta),
    "pattern": (str,),
    "tz": (datetime, time),
}


class TypeMetadata(Struct, eq=False):
    """The combined metadata of one type."""

    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    keywords: dict[str, Any] = field(default_factory=dict[str, Any])
    predicates: tuple[Callable[[Any], Any], ...] = ()

    def check(self, value: Any, name: str) -> Any:
        """Return the value if it respects the limits; raise `ValueError` with msgspec's wording otherwise."""
        for limit, bound in self.limits.items():
            if not _CHECKS[limit](value, bound):
                raise ValueError(f"Expected `{name}` {_MESSAGES[limit].format(_format_bound(bound))}")
        for test in self.predicates:
            if not test(value):
                raise ValueError(f"Expected `{name}` for which {getattr(test, '__name__', test)} is true")
        return value

    def describe_limits(self) -> str:
        """Describe bounds in words, for types whose JSON Schema has no keywords for them."""
        ordered = ((_DESCRIPTIONS[limit], bound) for limit, bound in self.limits.items() if limit in _DESCRIPTIONS)
        return ", ".join(words.format(_format_bound(bound)) for words, bound in ordered)


def _format_bound(bound: Any) -> Any:
    return bound if isinstance(bound, int | float | str) else codec.to_json(bound).decode().strip('"')


def _is_multiple(value: Any, of: Any) -> bool:
    return value % (Decimal(str(of)) if isinstance(value, Decimal) else of) in (0, timedelta())


_CHECKS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "ge": lambda value, bound: value >= bound,
    "gt": lambda value, bound: value > bound,
    "le": lambda value, bound: value <= bound,
    "lt": lambda value, bound: value < bound,
    "multiple_of": _is_multiple,
    "min_length": lambda value, bound: len(value) >= bound,
    "max_length": lambda value, bound: len(value) <= bound,
    "pattern": lambda value, bound: re.search(bound, value) is not None,
    "tz": lambda value, bound: (value.tzinfo is not None) == bound,
}
_MESSAGES: Final[Mapping[str, str]] = {
    "ge": ">= {}",
    "gt": "> {}",
    "le": "<= {}",
    "lt": "< {}",
    "multiple_of": "that's a multiple of {}",
    "min_length": "of length >= {}",
    "max_length": "of length <= {}",
    "pattern": "matching regex {!r}",
    "tz": "with a timezone component: {}",
}
_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "ge": "at least {}",
    "gt": "more than {}",
    "le": "at most {}",
    "lt": "less than {}",
    "multiple_of": "a multiple of {}",
}


# --- reading notes -------------------------------------------------------------------------------------


def read_metadata(notes: Iterable[Any]) -> TypeMetadata:
    """Combine the metadata of an annotation. Ignore unknown objects."""
    combined = TypeMetadata()
    for note in notes:
        _collect(note, combined)
    return combined


def _collect(note: Any, combined: TypeMetadata) -> None:
    if isinstance(note, str):
        combined.keywords.setdefault("description", note)
    elif isinstance(note, TypeMetadata):
        combined.limits |= note.limits
        combined.keywords |= note.keywords
        combined.predicates += note.predicates
    elif isinstance(note, Meta):
        _copy_members(note, (*_LIMITS, *_KEYWORDS), combined)
        combined.keywords |= note.extra_json_schema or {}
    elif is_field(note):
        _copy_members(note, _KEYWORDS, combined)
        extra: Any = note.json_schema_extra
        combined.keywords |= extra if isinstance(extra, dict) else {}
        _collect_all(note.metadata, combined)
    elif _module(note) in {"annotated_types", "pydantic"}:
        _collect_foreign(note, combined)
    elif hasattr(note, "documentation"):  # a `Doc`
        combined.keywords.setdefault("description", note.documentation)


def _collect_all(notes: Iterable[Any], combined: TypeMetadata) -> None:
    for note in notes:
        _collect(note, combined)


def _collect_foreign(note: Any, combined: TypeMetadata) -> None:
    if hasattr(note, "__iter__"):  # an Interval, a Len or the like
        _collect_all(note, combined)
    elif hasattr(note, "func"):  # a Predicate
        combined.predicates += (note.func,)
    elif hasattr(note, "tz"):
        combined.limits["tz"] = {None: False, ...: True}.get(note.tz, note.tz)
    else:
        _copy_members(note, _LIMITS, combined)


def _copy_members(note: Any, names: Iterable[str], combined: TypeMetadata) -> None:
    for name in names:
        value = getattr(note, name, None)
        if value is None:
            continue
        if name in _LIMITS:
            combined.limits[name] = getattr(value, "pattern", value) if name == "pattern" else value
        else:
            combined.keywords[name] = value


def _module(note: Any) -> str:
    return type(note).__module__.partition(".")[0]


def has_foreign_limits(notes: Iterable[Any]) -> bool:
    """Return whether some limits come from libraries that msgspec ignores."""
    metadata = read_metadata(note for note in notes if not isinstance(note, Meta))
    return bool(metadata.limits or metadata.predicates)


# --- limits and types ----------------------------------------------------------------------------------


def constrained_type(kind: Any) -> Any:
    """Return the class that the limits of a type apply to."""
    while get_origin(kind) is Annotated:
        kind = resolve_type(get_args(kind)[0])
    return get_origin(kind) or kind


def distribute_limits(kind: Any) -> Any:
    """Rewrite an annotated type so that every limit stands at a type that supports it: the limits of a union move to
    the options that they apply to. Raise `TypeError` for a limit that applies to none."""
    base, metadata = resolve_type(get_args(kind)[0]), read_metadata(kind.__metadata__)
    if get_origin(base) is Annotated:
        return distribute_limits(Annotated[(base, *kind.__metadata__)])
    options = get_args(base) if get_origin(base) in UNIONS else (base,)
    if not isinstance(metadata.limits.get("tz", True), bool):
        raise TypeError("times in JSON have a UTC offset, but no time zone; use Timezone(...) for any offset")
    for limit in metadata.limits:
        if not any(_applies_to(limit, option) for option in options):
            raise TypeError(f"`{limit}` does not apply to a value of type {type_name(base)}")
    if len(options) == 1:
        return Annotated[base, metadata]
    made = tuple(_with_applicable_limits(option, metadata) for option in options)
    return Annotated[typing.Union[made], TypeMetadata(keywords=metadata.keywords, predicates=metadata.predicates)]  # noqa: UP007 - only known now


def _applies_to(limit: str, option: Any) -> bool:
    kind: Any = constrained_type(resolve_type(option))
    return isinstance(kind, type) and kind is not bool and issubclass(kind, _CONSTRAINED_TYPES[limit])


def _with_applicable_limits(option: Any, metadata: TypeMetadata) -> Any:
    limits = {limit: bound for limit, bound in metadata.limits.items() if _applies_to(limit, option)}
    return Annotated[option, TypeMetadata(limits=limits)] if limits else option
