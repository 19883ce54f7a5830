"""Choices in forms: what stands in an annotation, as one value or several of a list.

A `Literal` or an `Enum` of texts is a choice of one; a list, set or tuple of such is a choice of any number. `Titles`
beside it in `Annotated` says how the values are shown, and so does `EnumNames` in the older way.
"""

import types
import typing
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Struct

from trunkline.errors import MisuseError

__all__ = ["Choice", "EnumNames", "Titles", "choice_of"]

_COLLECTION_TYPES: Final = frozenset({list, set, frozenset, tuple, Sequence, Collection, AbstractSet})


class Titles:
    """How the values of a choice are shown: `Annotated[Literal["s", "m"], Titles(s="Small", m="Medium")]`."""

    __slots__ = ("shown",)

    def __init__(self, titles: Mapping[str, str] | None = None, /, **more: str) -> None:
        self.shown = {**(titles or {}), **more}

    def of(self, values: Sequence[str], field: str) -> list[str]:
        """A title for each value; one that has none is its own. Raises `MisuseError` for a title of nothing."""
        if strange := [value for value in self.shown if value not in values]:
            raise MisuseError(f"field {field!r} has a title for {strange[0]!r}, which is not one of its values")
        return [self.shown.get(value, value) for value in values]


class EnumNames(Titles):
    """`Titles`, said as clients before 2025-11-25 know them: with `enumNames`. For a choice of one value only."""

    __slots__ = ()


class Choice(Struct, frozen=True):
    """The values of a field that is a choice, in the order in which they were written."""

    values: list[str]
    many: bool
    titles: Titles | None

    def schema(self, field: str) -> dict[str, Any]:
        """What the schema of the field says of it."""
        if self.titles is None:
            plain: dict[str, Any] = {"type": "string", "enum": self.values}
            return {"type": "array", "items": plain} if self.many else plain
        titles = self.titles.of(self.values, field)
        if isinstance(self.titles, EnumNames):
            if self.many:
                raise MisuseError(
                    f"field {field!r} is a choice of several, for which there are no EnumNames; use Titles"
                )
            return {"type": "string", "enum": self.values, "enumNames": titles}
        options = [{"const": value, "title": title} for value, title in zip(self.values, titles, strict=True)]
        return {"type": "array", "items": {"anyOf": options}} if self.many else {"type": "string", "oneOf": options}

    def ordered(self, chosen: Collection[str]) -> list[str]:
        """Some of the values, in their order."""
        return [value for value in self.values if value in chosen]


def choice_of(annotation: Any, field: str) -> Choice | None:
    """The choice that an annotation describes; None where it is not one."""
    kind, titles = _unwrap_annotation(annotation)
    origin: Any = get_origin(kind)
    if origin in _COLLECTION_TYPES:
        inner = [argument for argument in get_args(kind) if argument is not Ellipsis]
        found = choice_of(inner[0], field) if len(inner) == 1 else None
        return None if found is None or found.many else Choice(found.values, True, titles or found.titles)
    if origin is Literal:
        values: Sequence[Any] = [value for value in get_args(kind) if value is not None]
    elif isinstance(kind, type) and issubclass(kind, Enum):
        values = [member.value for member in kind]
        if not values:
            raise MisuseError(f"field {field!r} has nothing to choose from: {kind.__name__} has no members")
    else:
        if titles is not None:
            raise MisuseError(f"field {field!r} has titles but nothing to choose from; give it a Literal or an Enum")
        return None
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise MisuseError(f"field {field!r} can be {wrong[0]!r}; what a form lets choose from is text")
    return Choice([str(value) for value in values], False, titles)


def _unwrap_annotation(annotation: Any) -> tuple[Any, Titles | None]:
    """The type that an annotation is about, without `Annotated` and the None that an optional one allows."""
    titles: Titles | None = None
    while True:
        origin: Any = get_origin(annotation)
        if origin is Annotated:
            kind, *notes = get_args(annotation)
            titles = titles or next((note for note in notes if isinstance(note, Titles)), None)
            annotation = kind
        elif origin in {typing.Union, types.UnionType}:
            options = [option for option in get_args(annotation) if option is not types.NoneType]
            if len(options) != 1:
                return annotation, titles
            annotation = options[0]
        elif origin in {typing.Required, typing.NotRequired, typing.Final, typing.ClassVar}:
            annotation = get_args(annotation)[0]
        else:
            return annotation, titles
