"""Forms made of types, and their answers."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from msgspec import Meta, Struct

from trunkline.errors import MisuseError, PeerError
from trunkline.protocol.types import ElicitResult
from trunkline.server.forms import Answer, form_of, read_answer


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
    return msgspec.to_builtins(form_of(wanted))["properties"]


def test_h02_eli_03_every_kind_of_field_is_said_in_its_own_schema() -> None:
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


def test_h02_fields_without_a_default_are_required() -> None:
    assert form_of(Data).required == ["text"]
    assert form_of(Typed).required is None
    assert form_of({"properties": {}, "required": []}).required is None


def test_h02_a_schema_written_by_hand_goes_as_it_is() -> None:
    written = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string", "enum": ["a"]}}}}
    assert fields_of(written) == written["properties"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"properties": {"x": {"type": "object"}}},
        {"properties": {"x": {}}},
        {"properties": {"x": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
    ],
)
def test_eli_02_what_is_not_flat_is_refused(wanted: Any) -> None:
    with pytest.raises(MisuseError, match="text, numbers, yes/no and choices"):
        form_of(wanted)


def test_h02_an_accepted_form_is_read_into_its_type() -> None:
    result = ElicitResult("accept", {"text": "x", "whole": 4, "colour": "blue", "yes": True})
    assert read_answer(result, Data) == Answer("accept", Data("x", 4, None, True, Colour.BLUE))
    assert read_answer(ElicitResult("accept", {"text": "x"}), Typed) == Answer("accept", {"text": "x"})
    assert read_answer(ElicitResult("accept", {"any": 1}), {"properties": {}}) == Answer("accept", {"any": 1})


def test_h02_numbers_that_a_client_sends_as_text_are_numbers_all_the_same() -> None:
    assert read_answer(ElicitResult("accept", {"mail": "a@b.c", "age": "20"}), Record).data == Record("a@b.c", 20)


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_h02_without_consent_there_is_no_data(action: Any) -> None:
    answer = read_answer(ElicitResult(action, {"text": "x"}), Data)
    assert answer == Answer(action)
    assert not answer.accepted


@pytest.mark.parametrize("content", [None, {}, {"text": "x", "whole": "many"}])
def test_eli_15_content_that_does_not_fit_is_the_clients_fault(content: Any) -> None:
    with pytest.raises(PeerError, match="does not fit"):
        read_answer(ElicitResult("accept", content), Data)
