"""Types: each as an argument and as a result, alone and inside others; its schema, its values, and rejected values."""

import dataclasses
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin
from uuid import UUID

import annotated_types as at
import jsonschema_rs
import pytest
from msgspec import Struct
from tests.unit.registry.table.annotated_types import ANNOTATED_TYPES
from tests.unit.registry.table.class_types import CLASS_TYPES
from tests.unit.registry.table.classes import Cat, Circle, Dog, ModelPoint, Place, Point, Square, StructPoint, Tree
from tests.unit.registry.table.definitions import DEFINITIONS
from tests.unit.registry.table.plain_types import PLAIN_TYPES
from tests.unit.registry.table.row import Row, Schema
from tests.unit.registry.table.tools import answered, given, returning, taking, tool

from trunkline.errors import InvalidArguments
from trunkline.registry import type_adapters
from trunkline.registry.class_layout import UNIONS, ValueDirection
from trunkline.registry.results import BadResult
from trunkline.wire import codec

TABLE = (*PLAIN_TYPES, *CLASS_TYPES, *ANNOTATED_TYPES)
SHAPES = ("plain", "optional", "list", "nested")
each_row = pytest.mark.parametrize("row", [pytest.param(row, id=f"{n}-{row.kind}") for n, row in enumerate(TABLE)])
each_shape = pytest.mark.parametrize("shape", SHAPES)


def _shaped(shape: str, kind: Any) -> Any:
    if shape == "nested":
        return dataclasses.make_dataclass("Holder", [("inner", kind)], namespace={"__module__": __name__})
    return {"plain": lambda: kind, "optional": lambda: kind | None, "list": lambda: list[kind]}[shape]()


def _in_json(shape: str, value: Any) -> Any:
    return {"list": [value, value], "nested": {"inner": value}}.get(shape, value)


def _described(shape: str, row: Row, own: Schema) -> tuple[Schema, dict[str, Schema]]:
    """The schema of a type in a shape, at its position within another, and all definitions."""
    known = {name: DEFINITIONS[name] for name in row.definitions}
    if shape == "optional":
        flat = get_origin(row.kind) in UNIONS
        return ({**own} if flat else {}) | {"anyOf": [*(own["anyOf"] if flat else [own]), {"type": "null"}]}, known
    if shape == "list":
        return {"type": "array", "items": own}, known
    if shape == "nested":
        holder = {"title": "Holder", "type": "object", "properties": {"inner": own}, "required": ["inner"]}
        return {"$ref": "#/$defs/Holder"}, {**known, "Holder": holder}
    return own, known


def _needed(schema: Schema, known: dict[str, Schema]) -> dict[str, Schema]:
    """The definitions that a schema refers to."""
    found: dict[str, Schema] = {}
    while more := {n for n in known if f'"#/$defs/{n}"' in json.dumps([schema, found])} - set(found):
        found |= {name: known[name] for name in more}
    return found


def _with(definitions: dict[str, Schema]) -> Schema:
    return {"$defs": definitions} if definitions else {}


@each_row
@each_shape
def test_argument_schema_matches_type(shape: str, row: Row) -> None:
    inner, known = _described(shape, row, row.schema)
    told = taking(_shaped(shape, row.kind)).definition.input_schema
    words = row.schema.get("description", "").partition("(")[0].strip()
    if shape == "optional" and words:
        inner["description"] = words  # an option's description becomes that of the argument

    expected = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    assert told == expected | _with(known)
    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **told})


@each_row
@each_shape
def test_result_schema_matches_type(shape: str, row: Row) -> None:
    inner, known = _described(shape, row, row.schema if row.result is None else row.result)
    told = returning(_shaped(shape, row.kind)).definition.output_schema

    root = known[inner["$ref"].rpartition("/")[2]] if set(inner) == {"$ref"} else inner
    needed = _needed(root, known)
    if root.get("type") != "object":
        root = {"type": "object", "properties": {"result": root}, "required": ["result"]}
    assert told == root | _with(needed)
    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **told})


@each_row
@each_shape
def test_argument_is_decoded_to_type(shape: str, row: Row) -> None:
    entry = taking(_shaped(shape, row.kind))
    read = given(entry, _in_json(shape, row.value))
    inside = {"list": lambda: read[1], "nested": lambda: read.inner}.get(shape, lambda: read)()

    assert inside == row.python
    assert type(inside) is type(row.python)
    jsonschema_rs.validate(entry.definition.input_schema, {"value": _in_json(shape, row.value)})
    if shape == "optional":
        assert given(entry, None) is None


@each_row
@each_shape
def test_invalid_argument_is_refused_with_reason(shape: str, row: Row) -> None:
    entry = taking(_shaped(shape, row.kind))
    where = {"list": ("$.value[0]", "$.value[1]"), "nested": ("$.value.inner",)}.get(shape, ("$.value",))

    assert len(row.wrong) == 3
    for wrong, *said in row.wrong:
        if shape == "optional" and wrong is None:
            continue
        with pytest.raises(InvalidArguments) as caught:
            given(entry, _in_json(shape, wrong))
        is_told = all(sentence[0] == "$" for sentence in said)
        places = where if is_told else where[:1]  # decoding ends at the first
        told = [f"{fault['path']}: {fault['message']}" for fault in caught.value.data["errors"]]
        assert told == [place + sentence[1:] for place in places for sentence in said]
        assert jsonschema_rs.is_valid(entry.definition.input_schema, {"value": _in_json(shape, wrong)}) != is_told


@each_row
@each_shape
def test_result_is_encoded(shape: str, row: Row) -> None:
    kind = _shaped(shape, row.kind)
    native = {"list": lambda: [row.python, row.python], "nested": lambda: kind(row.python)}.get(
        shape, lambda: row.python
    )

    assert answered(kind, native()) == _in_json(shape, row.value)
    if row.kind != dict[int, str]:  # whose keys are strings in JSON only
        assert answered(kind, _in_json(shape, row.value)) == _in_json(shape, row.value)
    if shape == "optional":
        assert answered(kind, None) is None


@each_row
@each_shape
def test_invalid_result_is_refused(shape: str, row: Row) -> None:
    kind = _shaped(shape, row.kind)

    for wrong in (object(), *(wrong for wrong, *_ in row.wrong)):
        if shape == "optional" and wrong is None:
            continue
        with pytest.raises(BadResult, match="the value does not match the declared return type: "):
            answered(kind, _in_json(shape, wrong))


def test_native_types_need_no_hooks() -> None:
    for kind in (int, list[str], dict[str, int | None], Point, set[UUID], StructPoint, Cat | Dog, Annotated[int, "a"]):
        assert not type_adapters.needs_hooks(kind)
        assert type_adapters.adapt(kind, ValueDirection.ARGUMENT) is kind
        assert type_adapters.adapt(kind, ValueDirection.RESULT) is kind
    for kind in (Path, list[ModelPoint], Circle | Square, Tree, Place, Annotated[Point, at.Predicate(bool)]):
        assert type_adapters.needs_hooks(kind)


# --- string arguments ------------------------------------------------------------------------------------


def test_texts_are_converted_to_types() -> None:
    def find(
        path: Path, count: Annotated[int, at.Ge(1)], price: Annotated[Decimal, at.Ge(0)], either: Circle | int | None
    ) -> Any:
        return path, count, price, either

    handler = tool(find).handler
    texts = {"path": "a", "count": "5", "price": "1.5", "either": "7"}
    assert handler.bind(handler.convert(texts), None) == (Path("a"), 5, Decimal("1.5"), 7)
    for name, wrong in (("count", "0"), ("price", "-1"), ("either", "x")):
        with pytest.raises(codec.DecodeError):
            handler.convert({**texts, name: wrong})


def test_texts_are_converted_beside_kwargs() -> None:
    def find(path: Path, number: Circle | int, **more: Any) -> Any:
        return path, number, more

    handler = tool(find).handler
    assert handler.bind(handler.convert({"path": "a", "number": "5", "b": "6"}), None) == (Path("a"), 5, {"b": "6"})
    assert handler.bind(handler.decode(b'{"path":"a","number":5,"b":6}'), None) == (Path("a"), 5, {"b": 6})


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
def test_json_in_string_is_decoded_if_no_string_fits(kind: Any, value: str, read_as: Any) -> None:
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
def test_useless_string_is_refused_unchanged(kind: Any, value: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        given(taking(kind), value)
    assert caught.value.data["errors"][0]["path"] == "$.value"


def test_strings_stay_strings_if_they_fit() -> None:
    def take(text: str, number: int, anything: Any = None) -> Any:
        return text, number, anything

    entry = tool(take)
    raw = b'{"text": "1", "number": "2", "anything": "3"}'
    with pytest.raises(codec.DecodeError) as caught:
        entry.decode(raw)
    assert entry.handler.bind(entry.decode_leniently(raw, caught.value), None) == ("1", 2, "3")


def test_custom_schemas_decide_about_strings() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"oneOf": [{"type": ["integer", "null"]}]}, "b": {"$ref": "#/$defs/n"}, "c": True},
        "$defs": {"n": {"type": "integer"}},
    }
    entry = tool(lambda **values: values, input_schema=schema, name="any")
    raw = b'{"a": "1", "b": "2", "c": "3"}'
    with pytest.raises(codec.DecodeError) as caught:
        entry.decode(raw)
    assert entry.handler.bind(entry.decode_leniently(raw, caught.value), None) == {"a": 1, "b": 2, "c": "3"}
