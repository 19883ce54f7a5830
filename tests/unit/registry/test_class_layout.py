"""Classes as arguments and results: construction of instances, and resolution of annotations."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    AnyStr,
    Final,
    Generic,
    LiteralString,
    NewType,
    Optional,
    Self,
    TypedDict,
    TypeVar,
)

import annotated_types as at
import attrs
import msgspec
import pydantic
import pytest
import typing_extensions
from msgspec import UNSET, Struct, UnsetType
from tests.unit.registry.table.classes import Box, Cat, Circle, Colour, Dog, Drawing, Limits, Place, Point, Square, Tree
from tests.unit.registry.table.tools import answered, given, returning, taking

from trunkline.errors import InvalidArguments, RegistrationError
from trunkline.registry.json_schema import schema_of_type
from trunkline.wire import codec

Item = TypeVar("Item")
Bounded = TypeVar("Bounded", bound=int)
UserId = NewType("UserId", Annotated[int, at.Gt(0)])


# --- construction of instances -----------------------------------------------------------------------


def test_attrs_class_uses_aliases_and_converters() -> None:
    entry = taking(Limits)

    assert given(entry, {"_least": 1, "word": "ABC", "hidden": 9}) == Limits(least=1, word="abc")
    with pytest.raises(InvalidArguments, match=r"\$\.value\.most"):
        given(entry, {"_least": 1, "most": 10})
    assert "hidden" not in schema_of_type(Limits)["properties"]
    assert answered(Limits, Limits(least=1)) == {"_least": 1, "most": 9, "word": "a", "hidden": 1}


def test_attrs_converter_runs() -> None:
    @attrs.define
    class Word:
        text: str = attrs.field(converter=str.lower)

    assert given(taking(Word), {"text": "ABC"}) == Word("abc")


@attrs.define
class AttrsCounter:
    count: int = attrs.field(init=False, default=0)


@dataclass
class Counter:
    count: int = field(init=False, default=0)


@pytest.mark.parametrize("kind", [Counter, AttrsCounter])
def test_non_init_member_is_no_argument(kind: Any) -> None:
    assert given(taking(kind), {"count": 5}) == kind()
    assert schema_of_type(kind)["properties"] == {}
    assert answered(kind, kind()) == {"count": 0}


def test_attrs_default_may_use_instance() -> None:
    @attrs.define
    class Span:
        start: int
        end: int = attrs.field()

        @end.default
        def after(self) -> int:
            return self.start + 1

    assert given(taking(Span), {"start": 1}) == Span(1, 2)
    assert "default" not in schema_of_type(Span)["properties"]["end"]


def test_init_var_is_argument_only() -> None:
    @dataclass
    class Doubled:
        once: InitVar[int]
        times: InitVar[int] = 2
        twice: int = field(init=False)

        def __post_init__(self, once: int, times: int) -> None:
            self.twice = once * times

    assert given(taking(Doubled), {"once": 2}).twice == 4
    assert answered(Doubled, Doubled(2)) == {"twice": 4}
    assert list(schema_of_type(Doubled)["properties"]) == ["once", "times"]


def test_constructor_error_has_path() -> None:
    @dataclass
    class Even:
        number: Annotated[int, at.Ge(0)]

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("is odd")

    @dataclass
    class Holder:
        numbers: list[Even]

    with pytest.raises(InvalidArguments, match=r"\$\.value\.numbers\[1\]: is odd"):
        given(taking(Holder), {"numbers": [{"number": 2}, {"number": 3}]})


def test_union_error_explains_each_option() -> None:
    @dataclass
    class Bill:
        amount: Annotated[Decimal, at.Ge(0)]

    @dataclass
    class Day:
        amount: date

    why = "Bill: Expected `Decimal` >= 0 at `$.amount`; Day: Invalid RFC3339 encoded date at `$.amount`"
    with pytest.raises(InvalidArguments) as caught:
        given(taking(list[Bill | Day]), [{"amount": "-1"}])
    assert caught.value.data["errors"] == [
        {"path": "$.value[0]", "rule": "type", "message": f"Fits none of the options ({why})"}
    ]


def test_deeply_nested_value_is_refused() -> None:
    deep = b'{"value":' + b'{"label":"a","below":[' * 5000 + b"]}" * 5000 + b"}"
    with pytest.raises((RecursionError, codec.DecodeError)):
        taking(Tree).decode(deep)


def test_renamed_struct_keeps_constraints() -> None:
    with pytest.raises(InvalidArguments, match="unknown"):
        given(taking(Drawing), {"firstShape": {"side": 1}, "unknown": 1})


def test_tagged_struct_with_constraints_keeps_its_tag() -> None:
    class Sized(Struct, tag="sized", kw_only=True):
        size: Annotated[int, at.Ge(1)] = 1
        name: str
        more: int | UnsetType = UNSET

    class Row(Struct, array_like=True, tag="row"):
        size: Annotated[int, at.Ge(1)]

    assert given(taking(Sized | Cat), {"type": "sized", "name": "a"}) == Sized(name="a")
    assert answered(Sized | Row, Row(2)) == ["row", 2]
    assert answered(Sized | Row, Sized(name="a")) == {"type": "sized", "size": 1, "name": "a"}
    assert schema_of_type(Sized)["properties"]["more"] == {"type": "integer"}


def test_json_defaults_are_part_of_schema() -> None:
    assert schema_of_type(Place)["properties"]["where"] == {"type": "string", "format": "path", "default": "a"}
    told = taking(Path, default=Path("a/b")).definition.input_schema["properties"]["value"]
    assert told == {"type": "string", "format": "path", "default": "a/b"}

    @dataclass
    class Odd:
        value: Any = object

    assert schema_of_type(Odd)["properties"] == {"value": {}}


# --- resolution of annotations -----------------------------------------------------------------------


@dataclass
class Family:
    parent: Optional[Self] = None  # noqa: UP045 - as many write it
    children: list[Self] = field(default_factory=list)


def test_self_refers_to_class() -> None:
    assert given(taking(Family), {"parent": {}, "children": [{}]}) == Family(Family(), [Family()])
    with pytest.raises(InvalidArguments, match=r"\$\.value\.parent\.parent: 1 is not of type \"object\""):
        given(taking(Family), {"parent": {"parent": 1}})


@dataclass
class Shelf(Box[list[Item]], Generic[Item]):
    other: Item = None  # type: ignore[assignment]


class Base(TypedDict, Generic[Item]):
    item: Item


class Derived(Base[list[Item]], Generic[Item]):
    limit: Annotated[int, at.Ge(0)]
    other: Item


@pytest.mark.parametrize(
    ("kind", "value", "where"),
    [
        (Shelf[int], {"item": ["a"], "other": 1}, r"\$\.value\.item\[0\]"),
        (Shelf[int], {"item": [1], "other": "a"}, r"\$\.value\.other"),
        (Derived[int], {"item": ["a"], "other": 1, "limit": 1}, r"\$\.value\.item\[0\]"),
        (Derived[int], {"item": [1], "other": "a", "limit": 1}, r"\$\.value\.other"),
        (Derived[int], {"item": [1], "other": 1, "limit": -1}, r"\$\.value\.limit"),
    ],
)
def test_type_variables_are_substituted(kind: Any, value: Any, where: str) -> None:
    with pytest.raises(InvalidArguments, match=where):
        given(taking(kind), value)


def test_quoted_type_variable_is_resolved() -> None:
    if sys.version_info >= (3, 12):
        source = "@dataclass\nclass Crate[Own]:\n    items: 'list[Own]'\n"
    else:
        source = "@dataclass\nclass Crate(Generic[Item]):\n    items: 'list[Item]'\n"
    names: dict[str, Any] = {"__name__": __name__, "dataclass": dataclass, "Generic": Generic, "Item": Item}
    exec(source, names)

    with pytest.raises(InvalidArguments, match=r"\$\.value\.items\[0\]: \"a\" is not of type \"integer\""):
        given(taking(names["Crate"][int]), {"items": ["a"]})


class Keys(typing_extensions.TypedDict, total=False):
    a: "typing_extensions.Required[int]"
    b: "Annotated[typing_extensions.NotRequired[int], 'the b']"
    c: "typing_extensions.Required[typing_extensions.ReadOnly[int]]"


@dataclass
class Fixed:
    size: Final[Annotated[int, at.Ge(1)]]


def test_type_qualifiers_are_resolved() -> None:
    described = schema_of_type(Keys)

    assert described["required"] == ["a", "c"]
    assert described["properties"]["b"] == {"type": "integer", "description": "the b"}
    assert given(taking(Keys), {"a": 1, "c": 2}) == {"a": 1, "c": 2}
    with pytest.raises(InvalidArguments, match=r"\$\.value\.size: 0 is less than"):
        given(taking(Fixed), {"size": 0})


@pytest.mark.parametrize(
    ("kind", "schema", "value", "read"),
    [
        (UserId, {"type": "integer", "exclusiveMinimum": 0}, 1, 1),
        (
            Annotated[UserId, at.Lt(9)],
            {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9},
            1,
            1,
        ),
        (Item, {}, 1, 1),
        (Bounded, {"type": "integer"}, 1, 1),
        (AnyStr, {"anyOf": [{"type": "string", "contentEncoding": "base64"}, {"type": "string"}]}, "!", "!"),
        (LiteralString, {"type": "string"}, "a", "a"),
        (Iterable[int], {"type": "array", "items": {"type": "integer"}}, [1], [1]),
        (Iterable, {"type": "array"}, [1, "a"], [1, "a"]),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}, [1], [1]),
        (AbstractSet[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1], {1}),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": 1}),
        (tuple, {"type": "array"}, [1, "a"], (1, "a")),
        (tuple[()], {"type": "array"}, [], ()),
        (set, {"type": "array", "uniqueItems": True}, [1], {1}),
        (object, {}, 1, 1),
        (Any, {}, 1, 1),
        (msgspec.Raw, {}, 1, msgspec.Raw(b"1")),
    ],
)
def test_type_aliases_are_resolved(kind: Any, schema: Any, value: Any, read: Any) -> None:
    assert schema_of_type(kind) == schema
    assert given(taking(kind), value) == read


def test_none_is_a_type() -> None:
    assert given(taking(None), None) is None
    assert given(taking(list[None]), [None]) == [None]
    assert answered(list[None], [None]) == [None]
    assert returning(None).definition.output_schema is None


# --- aliases -------------------------------------------------------------------------------------------


def _json() -> Any:
    """`type Json = dict[str, Json] | list[Json] | int | None`, in the syntax of this Python."""
    if sys.version_info >= (3, 12):
        names: dict[str, Any] = {}
        exec("type Json = dict[str, Json] | list[Json] | int | None", names)
        return names["Json"]
    alias = typing_extensions.TypeAliasType("Json", int)
    object.__setattr__(alias, "__value__", dict[str, alias] | list[alias] | int | None)  # type: ignore[valid-type]
    return alias


def test_recursive_alias_is_decoded() -> None:
    alias = _json()
    entry = taking(alias)
    value = {"a": [1, {"b": None}]}

    assert given(entry, value) == value
    assert answered(alias, value) == value
    assert entry.definition.input_schema["properties"]["value"] == {"$ref": "#/$defs/Json"}
    told = 'is not of type "object" or "array" or "integer"'
    with pytest.raises(InvalidArguments, match=rf'\$\.value\.a\[0\]: "b" {told}'):
        given(entry, {"a": ["b"]})


def test_alias_is_equivalent_to_its_type() -> None:
    limited = typing_extensions.TypeAliasType("limited", Annotated[int, at.Ge(1)])
    pair = typing_extensions.TypeAliasType("pair", tuple[Item, Item], type_params=(Item,))

    assert schema_of_type(list[limited]) == {"type": "array", "items": {"type": "integer", "minimum": 1}}
    assert schema_of_type(pair[int])["prefixItems"] == [{"type": "integer"}, {"type": "integer"}]
    assert given(taking(pair[limited]), [1, 2]) == (1, 2)
    with pytest.raises(InvalidArguments, match=r"\$\.value\[1\]: 0 is less than the minimum of 1"):
        given(taking(pair[limited]), [1, 0])


# --- names in a schema -------------------------------------------------------------------------------


def _other_point() -> Any:
    @dataclass
    class Point:
        z: Path = Path()

    return Point


def _other_model() -> Any:
    class Point(pydantic.BaseModel):
        z: int

    return Point


def test_classes_of_same_name_have_two_definitions() -> None:
    first, second = _other_point(), _other_point()
    kind = tuple[Point, first, second, _other_model(), first]
    described = schema_of_type(kind)

    assert [place["$ref"] for place in described["prefixItems"]] == [
        "#/$defs/Point",
        "#/$defs/Point_2",
        "#/$defs/Point_3",
        "#/$defs/Point_4",
        "#/$defs/Point_2",
    ]
    assert list(described["$defs"]["Point"]["properties"]) == ["x", "y"]
    assert described["$defs"]["Point_4"]["properties"]["z"] == {"title": "Z", "type": "integer"}
    read = given(taking(kind), [{"x": 1}, {"z": "a"}, {}, {"z": 1}, {}])
    assert read[1] == first(Path("a"))


def test_long_class_names_are_supported() -> None:
    name = "A" * 70
    kind = msgspec.defstruct(name, [("x", int)])

    assert list(schema_of_type(list[kind])["$defs"]) == [name]  # type: ignore[valid-type]
    assert given(taking(list[kind]), [{"x": 1}])[0].x == 1  # type: ignore[valid-type]


# --- rejected classes --------------------------------------------------------------------------------


@dataclass
class WithField:
    x: int = pydantic.Field(5)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (complex, "complex is not supported, since it has no JSON form; use a JSON type"),
        (Circle | complex, "complex is not supported"),
        (type[int], r"type\[int\] is not supported"),
        (set[Point], "Point is not hashable, so it cannot be a set item"),
        (frozenset[list[int]], r"list\[int\] is not hashable"),
        (dict[Point, int], "Point is not hashable"),
        (WithField, r"WithField.x has a pydantic Field as its default"),
        (Cat | Dog | Square | bytearray | complex, "complex is not supported"),
    ],
)
def test_undecodable_type_is_refused(kind: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        taking(kind)
    with pytest.raises(RegistrationError, match=why):
        returning(kind)


def test_callable_type_is_refused() -> None:
    from collections.abc import Callable

    with pytest.raises(RegistrationError, match=r"take: .* value: Callable\[\[int\], str\] is not supported"):
        taking(Callable[[int], str])


def test_enum_with_unencodable_values_is_refused() -> None:
    from enum import Enum

    class Odd(Enum):
        PAIR = (1, 2)

    with pytest.raises(RegistrationError, match=r"Odd has a value without a JSON form: \(1, 2\)"):
        taking(Odd)
    assert given(taking(Colour), "red") is Colour.RED


def test_class_with_unresolvable_annotations_is_refused() -> None:
    @dataclass
    class Lost:
        other: "Nowhere"  # noqa: F821

    with pytest.raises(RegistrationError, match=r"Lost: an annotation names something that is not defined: .*Nowhere"):
        taking(Lost)
    with pytest.raises(RegistrationError, match="Nowhere"):
        returning(Lost)
