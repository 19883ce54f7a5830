"""Choices in elicitation forms: single and multiple selection, derived from a type annotation.

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

__all__ = ["ChoiceField", "EnumNames", "Titles", "choice_of"]

_COLLECTION_TYPES: Final = frozenset({list, set, frozenset, tuple, Sequence, Collection, AbstractSet})


class Titles:
    """Display titles of the values of a choice: `Annotated[Literal["s", "m"], Titles(s="Small", m="Medium")]`."""

    __slots__ = ("shown",)

    def __init__(self, titles: Mapping[str, str] | None = None, /, **more: str) -> None:
        self.shown = {**(titles or {}), **more}

    def of(self, values: Sequence[str], field: str) -> list[str]:
        """Return the title of each value, by default the value itself. Raises `MisuseError` for an unknown value."""
        if unknown := [value for value in self.shown if value not in values]:
            raise MisuseError(f"field {field!r} has a title for {unknown[0]!r}, which is not one of its values")
        return [self.shown.get(value, value) for value in values]


class EnumNames(Titles):
    """`Titles` in the form that clients before 2025-11-25 know, `enumNames`. For single selection only."""

    __slots__ = ()


class ChoiceField(Struct, frozen=True):
    """A field that is a choice: its values, in the order of the annotation."""

    values: list[str]
    many: bool
    titles: Titles | None

    def schema(self, field: str) -> dict[str, Any]:
        """Return the JSON Schema of the choice. `field` is for error messages."""
        if self.titles is None:
            plain: dict[str, Any] = {"type": "string", "enum": self.values}
            return {"type": "array", "items": plain} if self.many else plain
        titles = self.titles.of(self.values, field)
        if isinstance(self.titles, EnumNames):
            if self.many:
                raise MisuseError(f"field {field!r} is a multiple choice, which EnumNames does not support; use Titles")
            return {"type": "string", "enum": self.values, "enumNames": titles}
        options = [{"const": value, "title": title} for value, title in zip(self.values, titles, strict=True)]
        return {"type": "array", "items": {"anyOf": options}} if self.many else {"type": "string", "oneOf": options}

    def ordered(self, chosen: Collection[str]) -> list[str]:
        """Return the chosen values in the order of the annotation."""
        return [value for value in self.values if value in chosen]


def choice_of(annotation: Any, field: str) -> ChoiceField | None:
    """Return the choice that an annotation describes; None if it describes none."""
    kind, titles = _unwrap_annotation(annotation)
    origin: Any = get_origin(kind)
    if origin in _COLLECTION_TYPES:
        inner = [argument for argument in get_args(kind) if argument is not Ellipsis]
        found = choice_of(inner[0], field) if len(inner) == 1 else None
        return None if found is None or found.many else ChoiceField(found.values, True, titles or found.titles)
    if origin is Literal:
        values: Sequence[Any] = [value for value in get_args(kind) if value is not None]
    elif isinstance(kind, type) and issubclass(kind, Enum):
        values = [member.value for member in kind]
        if not values:
            raise MisuseError(f"field {field!r} has no choices: {kind.__name__} has no members")
    else:
        if titles is not None:
            raise MisuseError(f"field {field!r} has titles but no choices; annotate it with a Literal or an Enum")
        return None
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise MisuseError(f"field {field!r} has the value {wrong[0]!r}; the values of a choice must be strings")
    return ChoiceField([str(value) for value in values], False, titles)


def _unwrap_annotation(annotation: Any) -> tuple[Any, Titles | None]:
    """Return the annotated type and its titles, without `Annotated` and without the None of an optional type."""
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
