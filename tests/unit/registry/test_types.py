"""Types: each as an argument and as a result, alone and inside others; its schema, its values, and what it refuses."""

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import annotated_types as at
import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest
from msgspec import Meta, Struct

from trunkline.config import Settings
from trunkline.errors import InvalidArguments, RegistrationError
from trunkline.registry import types
from trunkline.registry.handlers import read
from trunkline.registry.results import BadResult
from trunkline.registry.schema import of_type
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.wire import codec


class Context:
    """Stands for the context of a call."""


def tool(function: Any, **options: Any) -> ToolEntry:
    return make_tool(read(function, Context), Settings(), **options)


def taking(kind: Any, **default: Any) -> ToolEntry:
    def take(value: Any = None) -> Any:
        return value

    take.__annotations__ = {"value": kind}
    take.__defaults__ = (default["default"],) if default else None
    return tool(take)


def returning(kind: Any) -> ToolEntry:
    def give() -> Any: ...

    give.__annotations__ = {"return": kind}
    return tool(give)


def given(entry: ToolEntry, value: Any) -> Any:
    """What the function of a tool gets for a value in JSON."""
    raw = msgspec.json.encode({"value": value})
    try:
        arguments = entry.decode(raw)
    except codec.DecodeError as error:
        arguments = entry.reread(raw, error)
    return arguments.value


def answered(kind: Any, value: Any) -> Any:
    """What the tool answers with, after a look at its schema."""
    output = returning(kind).output
    result = msgspec.json.decode(msgspec.json.encode(output.convert(value, None)))
    schema = output.wrapped_schema()
    assert schema is not None
    jsonschema_rs.meta.validate(schema)
    jsonschema_rs.validate(schema, result["structuredContent"])
    (block,) = result["content"]
    structured = result["structuredContent"]
    value = structured["result"] if output.wraps else structured
    assert block["text"] == value or msgspec.json.decode(block["text"]) == value
    return value


# --- the types -------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    x: int
    y: str = "a"


class Options(TypedDict):
    deep: bool


class StructPoint(Struct):
    x: int
    y: int = 0


@dataclass
class Point:
    x: int
    y: int = 0


@attrs.define
class AttrsPoint:
    x: int
    y: int = 0


class ModelPoint(pydantic.BaseModel):
    x: int
    y: int = 0


@dataclass
class Node:
    name: str
    children: "list[Node]" = field(default_factory=list)


class ModelNode(pydantic.BaseModel):
    name: str
    children: "list[ModelNode]" = []


@dataclass
class Circle:
    radius: float
    kind: Literal["circle"] = "circle"


@dataclass
class Square:
    side: float
    kind: Literal["square"] = "square"


class Cat(Struct, tag=True):
    lives: int


class Dog(Struct, tag=True):
    good: bool


@dataclass
class Tree:
    """Holds itself, beside what msgspec would not have beside it."""

    label: Annotated[str, at.MinLen(1)]
    below: "list[Tree | Circle]" = field(default_factory=list)


@attrs.define
class Limits:
    _least: Annotated[int, at.Ge(0)]
    most: Annotated[int, pydantic.Field(le=9)] = 9
    tags: list[str] = attrs.field(factory=list)
    hidden: int = attrs.field(init=False, default=1)


class Drawing(Struct, rename="camel", forbid_unknown_fields=True):
    first_shape: Circle | Square
    other_shapes: list[Circle | Square] = []


@dataclass
class Place:
    where: Path = Path("a")
    colour: Colour = Colour.RED


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
IDENT = "12345678-1234-5678-1234-567812345678"
WRONG_POINTS: list[Any] = [1, {}, {"x": [], "y": 1}]
WRONG_SHAPES: list[Any] = [1, {"radius": []}, {"side": 1, "kind": "circle"}]

# type, its schema or None, a value in JSON, the same in Python, three values that do not fit
TABLE: list[tuple[Any, Any, Any, Any, list[Any]]] = [
    (set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 2], {1, 2}, [1, ["a"], [None]]),
    (
        frozenset[str],
        {"type": "array", "items": STRING, "uniqueItems": True},
        ["a"],
        frozenset({"a"}),
        [1, [1], {"a": 1}],
    ),
    (tuple[int, str], None, [1, "a"], (1, "a"), [[1], ["a", "a"], [1, "a", 2]]),
    (tuple[int, ...], {"type": "array", "items": INTEGER}, [1, 2, 3], (1, 2, 3), [1, ["a"], {}]),
    (Pair, None, [1, "b"], Pair(1, "b"), [[], ["a", "b"], [1, 2]]),
    (datetime, STRING, "2026-01-02T12:00:00Z", NOON, ["soon", 1.5, []]),
    (date, {"type": "string", "format": "date"}, "2026-01-02", date(2026, 1, 2), ["soon", 1, []]),
    (time, STRING, "12:30:00", time(12, 30), ["soon", 1, []]),
    (timedelta, {"type": "string", "format": "duration"}, "PT90S", timedelta(seconds=90), ["soon", {}, []]),
    (UUID, {"type": "string", "format": "uuid"}, IDENT, UUID(IDENT), ["me", 1, []]),
    (Decimal, {"type": "string", "format": "decimal"}, "1.50", Decimal("1.50"), ["much", {}, []]),
    (Path, {"type": "string", "format": "path"}, "a/b", Path("a/b"), [1, [], {}]),
    (PurePosixPath, {"type": "string", "format": "path"}, "/a", PurePosixPath("/a"), [1, None, {}]),
    (bytes, {"type": "string", "contentEncoding": "base64"}, "AAEC", b"\0\1\2", ["!", 1, []]),
    (Colour, {"title": "Colour", "enum": ["red"]}, "red", Colour.RED, ["blue", 1, []]),
    (Options, None, {"deep": True}, {"deep": True}, [1, {}, {"deep": 1}]),
    (StructPoint, None, {"x": 1, "y": 2}, StructPoint(1, 2), WRONG_POINTS),
    (Point, None, {"x": 1, "y": 2}, Point(1, 2), WRONG_POINTS),
    (AttrsPoint, None, {"x": 1, "y": 2}, AttrsPoint(1, 2), WRONG_POINTS),
    (ModelPoint, None, {"x": 1, "y": 2}, ModelPoint(x=1, y=2), WRONG_POINTS),
    (
        Node,
        None,
        {"name": "a", "children": [{"name": "b", "children": []}]},
        Node("a", [Node("b")]),
        [1, {}, {"name": "a", "children": [1]}],
    ),
    (
        ModelNode,
        None,
        {"name": "a", "children": [{"name": "b", "children": []}]},
        ModelNode(name="a", children=[ModelNode(name="b")]),
        [1, {}, {"name": "a", "children": [1]}],
    ),
    (Cat | Dog, None, {"type": "Dog", "good": True}, Dog(True), [1, {}, {"type": "Cow"}]),
    (Circle | Square, None, {"side": 1.0, "kind": "square"}, Square(1), WRONG_SHAPES),
    (ModelPoint | Circle, None, {"radius": 1.0, "kind": "circle"}, Circle(1), WRONG_SHAPES),
    (StructPoint | AttrsPoint, None, {"x": 1, "y": 2}, StructPoint(1, 2), WRONG_POINTS),
    (
        datetime | str,
        {"anyOf": [STRING, STRING]},
        "2026-01-02T12:00:00Z",
        NOON,
        [1.5, [], {}],
    ),
    (list[int] | set[str], None, [1], [1], [1, [None], {}]),
    (Path | int, {"anyOf": [{"type": "string", "format": "path"}, INTEGER]}, 5, 5, [1.5, [], {}]),
    (
        Tree,
        None,
        {"label": "a", "below": [{"label": "b", "below": []}, {"radius": 1.0, "kind": "circle"}]},
        Tree("a", [Tree("b"), Circle(1)]),
        [1, {"label": ""}, {"label": "a", "below": [1]}],
    ),
    (
        Drawing,
        None,
        {"firstShape": {"side": 1.0, "kind": "square"}, "otherShapes": []},
        Drawing(Square(1)),
        [1, {}, []],
    ),
    (Place, None, {"where": "b", "colour": "red"}, Place(Path("b")), [1, {"where": 1}, {"colour": "blue"}]),
    (Annotated[int, at.Ge(1), at.Lt(9)], {**INTEGER, "minimum": 1, "exclusiveMaximum": 9}, 1, 1, [0, 9, "x"]),
    (Annotated[int, at.Gt(1), at.Le(9)], {**INTEGER, "exclusiveMinimum": 1, "maximum": 9}, 9, 9, [1, 10, "x"]),
    (Annotated[int, at.Interval(ge=1, le=3)], {**INTEGER, "minimum": 1, "maximum": 3}, 1, 1, [0, 4, "x"]),
    (Annotated[int, at.MultipleOf(5)], {**INTEGER, "multipleOf": 5}, 10, 10, [1, 2, "x"]),
    (
        Annotated[str, at.MinLen(2), at.MaxLen(3)],
        {**STRING, "minLength": 2, "maxLength": 3},
        "ab",
        "ab",
        ["a", "abcd", 1],
    ),
    (
        Annotated[list[int], at.Len(1, 2)],
        {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2},
        [1],
        [1],
        [[], [1, 2, 3], 1],
    ),
    (
        Annotated[int, pydantic.Field(ge=1, description="how many", title="Count")],
        {**INTEGER, "minimum": 1, "description": "how many", "title": "Count"},
        1,
        1,
        [0, "x", None],
    ),
    (Annotated[str, pydantic.Field(pattern="^a")], {**STRING, "pattern": "^a"}, "ab", "ab", ["b", 1, None]),
    (Annotated[int, pydantic.Field(description="which")], {**INTEGER, "description": "which"}, 1, 1, [1.5, "x", None]),
    (Annotated[int, Meta(ge=1)], {**INTEGER, "minimum": 1}, 1, 1, [0, "x", None]),
    (
        Annotated[int | list[int], at.Ge(1)],
        {"anyOf": [{**INTEGER, "minimum": 1}, {"type": "array", "items": INTEGER}]},
        1,
        1,
        [0, "x", None],
    ),
    (Annotated[Path, "where to look"], {"type": "string", "format": "path"}, "a", Path("a"), [1, None, []]),
]
NAMES = [str(getattr(row[0], "__name__", row[0])) + f"-{number}" for number, row in enumerate(TABLE)]


def _plain(kind: Any, value: Any) -> tuple[Any, Any]:
    return kind, value


def _optional(kind: Any, value: Any) -> tuple[Any, Any]:
    return kind | None, value


def _list(kind: Any, value: Any) -> tuple[Any, Any]:
    return list[kind], [value, value]


def _nested(kind: Any, value: Any) -> tuple[Any, Any]:
    return dataclasses.make_dataclass("Holder", [("inner", kind)], namespace={"__module__": __name__}), {"inner": value}


SHAPES = {"plain": _plain, "optional": _optional, "list": _list, "nested": _nested}
each_type = pytest.mark.parametrize(("kind", "schema", "value", "python", "wrong"), TABLE, ids=NAMES)
each_shape = pytest.mark.parametrize("shape", SHAPES)


def _inside(shape: str, value: Any) -> Any:
    return {"list": lambda: value[0], "nested": lambda: value.inner}.get(shape, lambda: value)()


@each_type
@each_shape
def test_a_type_is_read_told_and_refused(  # noqa: PLR0917 - the columns of the table
    shape: str, kind: Any, schema: Any, value: Any, python: Any, wrong: list[Any]
) -> None:
    shaped, in_json = SHAPES[shape](kind, value)
    entry = taking(shaped)
    told = entry.definition.input_schema
    jsonschema_rs.meta.validate(told)
    jsonschema_rs.validate(told, {"value": in_json})
    assert _inside(shape, given(entry, in_json)) == python
    assert type(_inside(shape, given(entry, in_json))) is type(python)
    if shape == "optional":
        assert given(entry, None) is None
    for bad in wrong:
        if shape == "optional" and bad is None:
            continue
        with pytest.raises(InvalidArguments) as caught:
            given(entry, SHAPES[shape](kind, bad)[1])
        errors = caught.value.data["errors"]
        assert all(error["message"] for error in errors)
        assert all(error["path"].startswith("$.value") for error in errors), errors


@each_type
@each_shape
def test_a_type_is_a_result(  # noqa: PLR0917 - the columns of the table
    shape: str, kind: Any, schema: Any, value: Any, python: Any, wrong: list[Any]
) -> None:
    shaped, in_json = SHAPES[shape](kind, value)
    native = {"list": lambda: [python, python], "nested": lambda: shaped(python)}.get(shape, lambda: python)()

    assert answered(shaped, native) == in_json
    with pytest.raises(BadResult, match="the value is not what the tool declares"):
        answered(shaped, object())


@each_type
def test_a_type_has_its_schema(kind: Any, schema: Any, value: Any, python: Any, wrong: list[Any]) -> None:
    if schema is not None:
        assert of_type(kind) == schema


# --- beyond the table --------------------------------------------------------------------------------


def test_what_msgspec_can_read_alone_is_read_by_msgspec_alone() -> None:
    bare = type(msgspec.json.Decoder(int).decode)
    for kind in (int, list[str], dict[str, int | None], Point, set[UUID], StructPoint, Cat | Dog, Annotated[int, "a"]):
        assert not types.needs_hooks(kind)
        assert types.adapt(kind) is kind
        assert type(taking(kind).decode) is bare
    for kind in (Path, list[ModelPoint], Circle | Square, Tree, Place):
        assert types.needs_hooks(kind)


def test_an_attrs_class_is_made_by_its_own_names() -> None:
    entry = taking(Limits)

    assert given(entry, {"_least": 1}) == Limits(least=1)
    with pytest.raises(InvalidArguments, match=r"\$\.value\.most"):
        given(entry, {"_least": 1, "most": 10})


def test_a_renamed_struct_keeps_its_rules() -> None:
    with pytest.raises(InvalidArguments, match="unknown"):
        given(taking(Drawing), {"firstShape": {"side": 1}, "unknown": 1})


def test_defaults_that_have_json_are_told() -> None:
    told = taking(Path, default=Path("a/b")).definition.input_schema["properties"]["value"]
    assert told == {"type": "string", "format": "path", "default": "a/b"}
    told = taking(ModelPoint, default=ModelPoint(x=1)).definition.input_schema["properties"]["value"]
    assert told["default"] == {"x": 1, "y": 0}


def test_a_root_model_is_no_object() -> None:
    class Names(pydantic.RootModel[list[str]]):
        """Names."""

    assert answered(Names, Names(["a"])) == ["a"]


def test_a_model_says_what_it_misses() -> None:
    class Strict(pydantic.BaseModel, extra="forbid"):
        day: date

        @pydantic.model_validator(mode="after")
        def check(self) -> "Strict":
            if self.day.year < 2000:
                raise ValueError("too long ago")
            return self

    entry = taking(Strict)
    assert given(entry, {"day": "2026-01-02"}) == Strict(day=date(2026, 1, 2))
    with pytest.raises(InvalidArguments, match=r"Strict: it: Value error, too long ago"):
        given(entry, {"day": "1999-01-02"})


Item = TypeVar("Item")


@dataclass
class Box(Generic[Item]):
    item: Item


@dataclass
class OddBox(Generic[Item]):
    item: Item
    shape: Circle | Square


class OddPair(NamedTuple):
    shape: Circle | Square


def _other_point() -> Any:
    @dataclass
    class Point:
        z: Path = Path()

    return Point


def _other_model() -> Any:
    class Point(pydantic.BaseModel):
        z: int

    return Point


def test_a_generic_class_may_hold_a_path() -> None:
    assert given(taking(Box[Path]), {"item": "a"}) == Box(Path("a"))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (OddPair, "OddPair has a member of a type that only a dataclass, attrs class or Struct can hold"),
        (OddBox[int], "OddBox.* has a member of a type that only a dataclass"),
        (Annotated[Decimal, at.Ge(0)], "Can only set `ge` on a numeric type"),
        (Annotated[str | None, at.Ge(0)], "Can only set `ge` on a numeric type"),
        (Circle | complex, "complex"),
        (tuple[Point, _other_point()], "two types are named Point; rename one"),
        (tuple[_other_point(), _other_point()], "two types are named Point; rename one"),
        (tuple[_other_model(), _other_point()], "two types are named Point; rename one"),
    ],
)
def test_what_cannot_be_read_is_refused_at_registration(kind: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        taking(kind)
    with pytest.raises(RegistrationError, match=why):
        returning(kind)


def test_a_class_whose_annotations_cannot_be_resolved_is_refused() -> None:
    @dataclass
    class Lost:
        other: "Nowhere"  # noqa: F821

    with pytest.raises(RegistrationError, match="Nowhere"):
        taking(Lost)
    with pytest.raises(RegistrationError, match="Nowhere"):
        returning(Lost)


# --- JSON inside of strings --------------------------------------------------------------------------


class Sized(Struct, array_like=True):
    width: int


@pytest.mark.parametrize(
    ("kind", "value", "read_as"),
    [
        (int, "5", 5),
        (list[int], "[1, 2]", [1, 2]),
        (Point, '{"x": 1}', Point(1)),
        (ModelPoint, '{"x": 1}', ModelPoint(x=1)),
        (int | None, "null", None),
        (bool, "true", True),
        (Literal[1, 2], "2", 2),
        (Sized, "[1]", Sized(1)),
        (Circle | Square, '{"side": 1}', Square(1)),
    ],
)
def test_json_inside_a_string_is_read_where_no_string_fits(kind: Any, value: str, read_as: Any) -> None:
    assert given(taking(kind), value) == read_as


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "five"),
        (int, "5.5"),
        (list[int], '["a"]'),
        (list[int], "[" * 5000),
        (date, '"2026-01-02"'),
        (Literal["a"], "1"),
    ],
)
def test_a_string_that_does_not_help_is_refused_as_it_came(kind: Any, value: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        given(taking(kind), value)
    assert caught.value.data["errors"][0]["path"] == "$.value"


def test_strings_are_left_alone_where_strings_fit() -> None:
    def take(text: str, number: int, anything: Any = None) -> Any:
        return text, number, anything

    entry = tool(take)
    raw = b'{"text": "1", "number": "2", "anything": "3"}'
    with pytest.raises(codec.DecodeError) as caught:
        entry.decode(raw)
    assert entry.handler.bind(entry.reread(raw, caught.value), None) == ("1", 2, "3")


def test_hand_written_schemas_are_read_at_a_glance() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"oneOf": [{"type": ["integer", "null"]}]}, "b": {"$ref": "#/$defs/n"}, "c": True},
        "$defs": {"n": {"type": "integer"}},
    }
    entry = tool(lambda **values: values, input_schema=schema, name="any")
    raw = b'{"a": "1", "b": "2", "c": "3"}'
    with pytest.raises(codec.DecodeError) as caught:
        entry.decode(raw)
    assert entry.handler.bind(entry.reread(raw, caught.value), None) == {"a": 1, "b": 2, "c": "3"}
