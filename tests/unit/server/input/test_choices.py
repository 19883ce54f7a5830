"""Choices in forms, and fields that no form can have."""

import datetime
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import msgspec
import pytest
from msgspec import Meta, Struct

from trunkline.errors import MisuseError, PeerError
from trunkline.protocol.types import ElicitResult
from trunkline.server.input.choices import ChoiceField, EnumNames, Titles, choice_of
from trunkline.server.input.forms import ElicitationAnswer, build_form, read_answer


class Number(Enum):
    ONE = 1


class Nothing(Enum):
    pass


class Inner(Struct):
    x: int


def fields_of(**fields: Any) -> dict[str, Any]:
    made = msgspec.defstruct("Made", list(fields.items()))
    return msgspec.to_builtins(build_form(made))["properties"]


@pytest.mark.row("ELI-04")
@pytest.mark.parametrize(
    ("annotation", "values", "many"),
    [
        (Literal["b", "a"], ["b", "a"], False),
        (Literal["b"] | None, ["b"], False),
        (frozenset[Literal["a"]], ["a"], True),
        (tuple[Literal["a", "b"], ...], ["a", "b"], True),
        (list[Literal["a"]] | None, ["a"], True),
        (NotRequired[Annotated[Literal["a"], "note"]], ["a"], False),
        (Required[list[Literal["a"]]], ["a"], True),
        (Literal["b", None, "a"], ["b", "a"], False),  # noqa: PYI061 - some write it so
    ],
)
def test_choice_is_derived_from_annotation(annotation: Any, values: list[str], *, many: bool) -> None:
    assert choice_of(annotation, "f") == ChoiceField(values, many, None)


@pytest.mark.parametrize("annotation", [str, int | str, list[str], tuple[Literal["a"], Literal["b"]], dict[str, str]])
def test_other_annotations_are_no_choice(annotation: Any) -> None:
    assert choice_of(annotation, "f") is None


@pytest.mark.row("ELI-02")
@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Literal[1, 2], "has the value 1"),
        (Number, "has the value 1"),
        (Annotated[str, Titles(a="A")], "titles but no choices"),
        (Nothing, "no choices: Nothing has no members"),
        (Annotated[Literal["a"], Titles(b="B")], "title for 'b'"),
        (Annotated[list[Literal["a"]], EnumNames(a="A")], "EnumNames does not support"),
        (Inner, "cannot be part of a form"),
        (list[str], "cannot be part of a form"),
        (list[Inner], "cannot be part of a form"),
        (list[list[Literal["a"]]], "cannot be part of a form"),
        (dict[str, int], "cannot be part of a form"),
        (int | str, "cannot be part of a form"),
    ],
)
def test_unsupported_field_is_rejected_by_name(annotation: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=rf"field 'culprit' .*{why}"):
        fields_of(fine=int, culprit=annotation)


def test_non_type_is_rejected() -> None:
    with pytest.raises(MisuseError, match="cannot build a form from"):
        build_form(object())


@pytest.mark.row("ELI-03")
def test_form_has_formats_lengths_and_bounds() -> None:
    assert fields_of(
        day=datetime.date,
        moment=datetime.datetime,
        mail=Annotated[str, Meta(extra_json_schema={"format": "email"}, min_length=3, max_length=9)],
        above=Annotated[int, Meta(gt=0, lt=10)],
        share=Annotated[float, Meta(gt=0, le=1)],
    ) == {
        "day": {"type": "string", "format": "date"},
        "moment": {"type": "string", "format": "date-time"},
        "mail": {"type": "string", "format": "email", "minLength": 3, "maxLength": 9},
        "above": {"type": "integer", "minimum": 1, "maximum": 9},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
    }


@pytest.mark.row("ELI-03")
def test_answer_is_converted_to_its_type() -> None:
    @dataclass
    class Day:
        day: datetime.date = datetime.date(2026, 1, 1)

    assert msgspec.to_builtins(build_form(Day))["properties"]["day"]["default"] == "2026-01-01"
    answer = read_answer(ElicitResult("accept", {"day": "2026-07-28"}), Day)
    assert answer == ElicitationAnswer("accept", Day(datetime.date(2026, 7, 28)))


@pytest.mark.row("ELI-05")
def test_renamed_fields_keep_titles_and_defaults() -> None:
    class Renamed(Struct, rename="camel"):
        shirt_size: Annotated[Literal["s", "m"], Titles(s="Small")] = "m"

    one_of = [{"const": "s", "title": "Small"}, {"const": "m", "title": "m"}]
    shown = msgspec.to_builtins(build_form(Renamed))["properties"]
    assert shown == {"shirtSize": {"type": "string", "oneOf": one_of, "default": "m"}}


@pytest.mark.row("ELI-04")
def test_outermost_titles_win() -> None:
    inner = Annotated[Literal["a"], Titles(a="inner")]
    shown = fields_of(one=Annotated[inner | None, Titles(a="outer")], other=Annotated[list[inner], Titles(a="outer")])
    assert shown["one"]["oneOf"] == shown["other"]["items"]["anyOf"] == [{"const": "a", "title": "outer"}]


@pytest.mark.row("ELI-05")
def test_multiple_choice_defaults_follow_value_order() -> None:
    @dataclass
    class Several:
        many: tuple[Literal["a", "b", "c"], ...] = ("c", "a")

    assert msgspec.to_builtins(build_form(Several))["properties"]["many"]["default"] == ["a", "c"]


@pytest.mark.row("ELI-03")
def test_unsupported_format_becomes_plain_text() -> None:
    shown = fields_of(ident=uuid.UUID, hour=datetime.time, moment=datetime.datetime)
    assert shown["ident"] == shown["hour"] == {"type": "string"}
    assert shown["moment"] == {"type": "string", "format": "date-time"}


@pytest.mark.row("ELI-02")
def test_unsupported_format_in_handwritten_schema_is_rejected() -> None:
    with pytest.raises(MisuseError, match="field 'x' cannot be part of a form"):
        build_form({"properties": {"x": {"type": "string", "format": "uuid"}}})


@pytest.mark.row("ELI-04")
def test_handwritten_choice_may_omit_string_type() -> None:
    shown = msgspec.to_builtins(build_form({"properties": {"x": {"enum": ["a"]}}}))["properties"]
    assert shown == {"x": {"type": "string", "enum": ["a"]}}


@pytest.mark.row("ELI-04")
def test_typed_dict_supports_choices() -> None:
    class Typed(TypedDict):
        one: Annotated[Literal["z", "a"], Titles(z="Zed")]
        other: NotRequired[list[Literal["z", "a"]]]

    shown = msgspec.to_builtins(build_form(Typed))
    assert shown["properties"]["one"]["oneOf"][0] == {"const": "z", "title": "Zed"}
    assert shown["properties"]["other"]["items"]["enum"] == ["z", "a"]
    assert shown["required"] == ["one"]


class ModelField:
    """A field as pydantic describes it."""

    def __init__(self, default: Any = ..., alias: str | None = None) -> None:
        self.default, self.alias = default, alias

    def is_required(self) -> bool:
        return self.default is ...

    def get_default(self, *, call_default_factory: bool) -> Any:
        assert call_default_factory
        return None if self.is_required() else self.default


class Model:
    """The part of a pydantic model that forms use."""

    name: str
    size: Annotated[Literal["s", "m"], Titles(s="Small", m="Medium")]

    model_fields = {"name": ModelField(), "size": ModelField("s")}

    @staticmethod
    def model_json_schema() -> Any:
        sizes = {"enum": ["s", "m"], "type": "string", "title": "Size"}
        name = {"type": "string", "title": "Name", "minLength": 1}
        return {
            "type": "object",
            "properties": {"name": name, "size": {"$ref": "#/$defs/Size", "default": "s"}},
            "required": ["name"],
            "$defs": {"Size": sizes},
        }

    @staticmethod
    def model_validate(content: Any) -> Any:
        if not content.get("name"):
            raise ValueError("name is empty")
        return ("validated", content)


@pytest.mark.row("H02")
def test_form_from_any_class_with_pydantic_methods() -> None:
    shown = msgspec.to_builtins(build_form(Model))
    assert shown["required"] == ["name"]
    assert shown["properties"]["name"] == {"type": "string", "title": "Name", "minLength": 1}
    assert shown["properties"]["size"]["oneOf"][1] == {"const": "m", "title": "Medium"}
    assert shown["properties"]["size"]["default"] == "s"
    assert read_answer(ElicitResult("accept", {"name": "x"}), Model).data == ("validated", {"name": "x"})
    with pytest.raises(PeerError, match="name is empty"):
        read_answer(ElicitResult("accept", {}), Model)


@pytest.mark.row("H02")
def test_form_from_pydantic_model() -> None:
    import pydantic  # only where it is requested, as users have it

    model = pydantic.create_model(
        "Order",
        name=(Annotated[str, pydantic.Field(min_length=1)], ...),
        count=(Annotated[int, pydantic.Field(ge=1, le=9, alias="howMany")], 2),
        among=(Annotated[Literal["a", "b"], Titles(a="Ay"), pydantic.Field(alias="amongThem")], "b"),
        size=(Annotated[Literal["s", "m"], Titles(s="Small")], "s"),
        many=(list[Literal["a", "b"]], pydantic.Field(default_factory=list)),
    )
    shown = msgspec.to_builtins(build_form(model))["properties"]
    count = shown["howMany"]
    assert (count["minimum"], count["maximum"], count["default"]) == (1, 9, 2)
    assert shown["size"]["oneOf"][0] == {"const": "s", "title": "Small"}
    assert shown["amongThem"]["oneOf"][0] == {"const": "a", "title": "Ay"}
    assert shown["many"]["items"] == {"type": "string", "enum": ["a", "b"]}
    assert read_answer(ElicitResult("accept", {"name": "x"}), model).data == model(name="x")
    with pytest.raises(PeerError):
        read_answer(ElicitResult("accept", {"name": ""}), model)


@pytest.mark.row("ELI-05")
@pytest.mark.parametrize(
    ("annotation", "default", "strange"),
    [(Literal["a", "b"], "c", "c"), (list[Literal["a", "b"]], ["b", "c"], "c"), (Literal["a", "b"], 1, 1)],
)
def test_default_outside_the_choices_is_rejected(annotation: Any, default: Any, strange: Any) -> None:
    factory = msgspec.field(default_factory=lambda: default)
    made = msgspec.defstruct("Made", [("culprit", annotation, factory)])
    with pytest.raises(
        MisuseError, match=f"field 'culprit' has the default {strange!r}, which is not one of its values"
    ):
        build_form(made)
