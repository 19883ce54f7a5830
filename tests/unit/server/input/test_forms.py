"""Forms derived from types, and their answers."""

import datetime
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from msgspec import Meta, Struct

from trunkline.errors import MisuseError, PeerError
from trunkline.protocol.types import ElicitResult
from trunkline.server.input.choices import Titles
from trunkline.server.input.forms import ElicitationAnswer, build_form, read_answer


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Data:
    """Not part of the form."""

    text: str
    whole: int = 3
    number: float | None = None
    yes: bool = field(default=False)
    colour: Colour | None = None
    word: Literal["a", "b"] = "a"


class Record(Struct):
    mail: Annotated[str, Meta(extra_json_schema={"format": "email"}, title="E-mail")]
    age: Annotated[int, Meta(ge=0, le=150)] = 18


class Typed(TypedDict, total=False):
    text: str


def fields_of(wanted: Any) -> dict[str, Any]:
    return msgspec.to_builtins(build_form(wanted))["properties"]


@pytest.mark.row("ELI-03", "H02")
def test_each_field_kind_has_its_schema() -> None:
    assert fields_of(Data) == {
        "text": {"type": "string"},
        "whole": {"type": "integer", "default": 3},
        "number": {"type": "number"},
        "yes": {"type": "boolean", "default": False},
        "colour": {"type": "string", "enum": ["red", "blue"], "title": "Colour"},
        "word": {"type": "string", "enum": ["a", "b"], "default": "a"},
    }
    assert fields_of(Record) == {
        "mail": {"type": "string", "format": "email", "title": "E-mail"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "default": 18},
    }


@pytest.mark.row("H02")
def test_fields_without_default_are_required() -> None:
    assert build_form(Data).required == ["text"]
    assert build_form(Typed).required is None
    assert build_form({"properties": {}, "required": []}).required is None


@pytest.mark.row("H02")
def test_handwritten_schema_is_sent_unchanged() -> None:
    written = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string", "enum": ["a"]}}}}
    assert fields_of(written) == written["properties"]


@pytest.mark.row("ELI-02")
@pytest.mark.parametrize(
    "wanted",
    [
        {"properties": {"x": {"type": "object"}}},
        {"properties": {"x": {}}},
        {"properties": {"x": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
    ],
)
def test_nested_fields_are_rejected(wanted: Any) -> None:
    with pytest.raises(MisuseError, match="text, numbers, booleans and choices"):
        build_form(wanted)


@pytest.mark.row("H02")
def test_accepted_form_is_converted_to_its_type() -> None:
    result = ElicitResult("accept", {"text": "x", "whole": 4, "colour": "blue", "yes": True})
    assert read_answer(result, Data) == ElicitationAnswer("accept", Data("x", 4, None, True, Colour.BLUE))
    assert read_answer(ElicitResult("accept", {"text": "x"}), Typed) == ElicitationAnswer("accept", {"text": "x"})
    assert read_answer(ElicitResult("accept", {"any": 1}), {"properties": {}}) == ElicitationAnswer(
        "accept", {"any": 1}
    )


@pytest.mark.row("H02")
def test_numeric_strings_are_accepted_as_numbers() -> None:
    assert read_answer(ElicitResult("accept", {"mail": "a@b.c", "age": "20"}), Record).data == Record("a@b.c", 20)


@pytest.mark.row("H02")
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_declined_or_cancelled_form_has_no_data(action: Any) -> None:
    answer = read_answer(ElicitResult(action, {"text": "x"}), Data)
    assert answer == ElicitationAnswer(action)
    assert not answer.accepted


@pytest.mark.row("ELI-15")
@pytest.mark.parametrize("content", [None, {}, {"text": "x", "whole": "many"}])
def test_invalid_content_raises_peer_error(content: Any) -> None:
    with pytest.raises(PeerError, match="does not fit"):
        read_answer(ElicitResult("accept", content), Data)


# --- single values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "field", "value", "data"),
    [
        (str, {"type": "string"}, "x", "x"),
        (int, {"type": "integer"}, 3, 3),
        (float, {"type": "number"}, 1.5, 1.5),
        (bool, {"type": "boolean"}, False, False),
        (datetime.date, {"type": "string", "format": "date"}, "2026-07-28", datetime.date(2026, 7, 28)),
        (Annotated[str, Meta(min_length=2)], {"type": "string", "minLength": 2}, "xy", "xy"),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b"),
        (Colour, {"type": "string", "enum": ["red", "blue"], "title": "Colour"}, "blue", Colour.BLUE),
        (
            Annotated[Literal["a"], Titles(a="A")],
            {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
            "a",
            "a",
        ),
        (
            list[Literal["a", "b"]],
            {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            ["b"],
            ["b"],
        ),
        (
            set[Colour],
            {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
            ["red", "blue"],
            {Colour.RED, Colour.BLUE},
        ),
    ],
)
def test_single_value_form_has_one_field(wanted: Any, field: Any, value: Any, data: Any) -> None:
    form = build_form(wanted)
    assert msgspec.to_builtins(form)["properties"] == {"value": field}
    assert form.required == ["value"]
    assert read_answer(ElicitResult("accept", {"value": value}), wanted) == ElicitationAnswer("accept", data)
    for content in (None, {}, {"other": value}):
        with pytest.raises(PeerError, match="does not fit"):
            read_answer(ElicitResult("accept", content), wanted)
    assert read_answer(ElicitResult("decline"), wanted) == ElicitationAnswer("decline")


@pytest.mark.parametrize("wanted", [str | None, Literal["x", None], Annotated[str | None, Meta(title="T")]])  # noqa: PYI061
def test_optional_single_value_is_not_required(wanted: Any) -> None:
    assert build_form(wanted).required is None
    assert read_answer(ElicitResult("accept", {}), wanted) == ElicitationAnswer("accept", None)
    assert read_answer(ElicitResult("accept", {"value": "x"}), wanted) == ElicitationAnswer("accept", "x")


@pytest.mark.parametrize("wanted", [None, type(None)])
def test_none_builds_a_confirmation_form(wanted: Any) -> None:
    assert fields_of(wanted) == {}
    assert read_answer(ElicitResult("accept", {}), wanted) == ElicitationAnswer("accept", None)
    assert read_answer(ElicitResult("accept", {"any": 1}), wanted) == ElicitationAnswer("accept", None)
    assert read_answer(ElicitResult("cancel"), wanted) == ElicitationAnswer("cancel")


@pytest.mark.parametrize("wanted", [list[str], list, set[str], tuple[str, ...], list[str] | None])
def test_list_of_free_text_is_rejected_with_advice(wanted: Any) -> None:
    with pytest.raises(MisuseError, match=r"write list\[Literal\[\.\.\.\]\] or a list of an Enum"):
        build_form(wanted)


@pytest.mark.parametrize("wanted", [dict, dict[str, int], Any, object, int | str, list[Data], Literal[1], ["a", "b"]])
def test_unsupported_types_are_rejected(wanted: Any) -> None:
    with pytest.raises(MisuseError):
        build_form(wanted)


@pytest.mark.parametrize("wanted", [{"amount": int}, {"type": "string"}])
def test_mapping_without_object_schema_is_rejected(wanted: Any) -> None:
    with pytest.raises(MisuseError, match='a schema needs "type"'):
        build_form(wanted)


class Choices(TypedDict):
    one: Literal["a", "b"]
    enum: Colour
    many: list[Colour]
    yes: NotRequired[bool]


@dataclass
class ChoicesOfData:
    one: Literal["a", "b"]
    enum: Colour
    many: list[Colour]
    yes: bool | None = None


class ChoicesOfStruct(Struct):
    one: Literal["a", "b"]
    enum: Colour
    many: list[Colour]
    yes: bool | None = None


@pytest.mark.parametrize("wanted", [Choices, ChoicesOfData, ChoicesOfStruct])
def test_all_class_kinds_build_the_same_form(wanted: Any) -> None:
    form = build_form(wanted)
    shown = msgspec.to_builtins(form)["properties"]
    assert shown["one"] == {"type": "string", "enum": ["a", "b"]}
    assert shown["enum"]["enum"] == shown["many"]["items"]["enum"] == ["red", "blue"]
    assert shown["yes"] == {"type": "boolean"}
    assert form.required == ["one", "enum", "many"]
    content = {"one": "b", "enum": "red", "many": ["red", "blue"]}
    data = read_answer(ElicitResult("accept", content), wanted).data
    read = data if isinstance(data, dict) else {name: getattr(data, name) for name in content}
    assert read == {"one": "b", "enum": Colour.RED, "many": [Colour.RED, Colour.BLUE]}
