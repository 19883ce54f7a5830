"""Pydantic: models, its dataclasses, its types, and its own metadata."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Generic, TypeVar

import annotated_types as at
import msgspec
import pydantic
import pytest
from tests.unit.registry.table.classes import ModelPoint, Point, PydanticPoint, Report
from tests.unit.registry.table.tools import answered, given, returning, taking, tool

from trunkline.errors import InvalidArguments, RegistrationError
from trunkline.protocol.types import CallToolResult
from trunkline.registry.json_schema import schema_of_type
from trunkline.registry.results import BadResult

Item = TypeVar("Item")
WRITTEN = {"day": "2026-01-02", "howMany": 2, "twice": 4}


def test_model_schema_depends_on_direction() -> None:
    entry, output = taking(Report), returning(Report)

    assert entry.definition.input_schema["$defs"]["Report"] == {
        "title": "Report",
        "description": "Its encoded form differs from its decoded one.",
        "type": "object",
        "properties": {
            "on": {"title": "On", "type": "string", "format": "date"},
            "howMany": {"title": "Howmany", "type": "integer", "minimum": 0},
        },
        "required": ["on", "howMany"],
        "additionalProperties": False,
    }
    assert output.definition.output_schema == {
        "title": "Report",
        "description": "Its encoded form differs from its decoded one.",
        "type": "object",
        "properties": {
            "day": {"title": "Day", "type": "string", "format": "date"},
            "howMany": {"title": "Howmany", "type": "integer", "minimum": 0},
            "twice": {"title": "Twice", "type": "integer", "readOnly": True},
        },
        "required": ["day", "howMany", "twice"],
        "additionalProperties": False,
    }
    report = given(entry, {"on": "2026-01-02", "howMany": 2})
    assert report == Report(on=date(2026, 1, 2), howMany=2)
    assert answered(Report, report) == WRITTEN
    assert answered(list[Report | None], [report, None]) == [WRITTEN, None]


def test_result_violating_schema_is_refused() -> None:
    report = Report(on=date(2026, 1, 2), howMany=2)
    report.count = -1
    with pytest.raises(BadResult, match=r"\$\.howMany: -1 is less than the minimum of 0"):
        answered(Report, report)
    with pytest.raises(BadResult, match="Report: on: Field required"):
        answered(Report, {"howMany": 2})
    with pytest.raises(BadResult, match=r"\$\.x: .* is not of type"):
        answered(ModelPoint, ModelPoint.model_construct(x="a"))


def test_unencodable_model_is_refused() -> None:
    class Anything(pydantic.BaseModel):
        value: Any

    with pytest.raises(BadResult, match="Anything: Unable to serialize unknown type"):
        answered(Anything, Anything(value=object()))


def test_whole_result_is_checked_against_annotation() -> None:
    def give(day: str, note: str = "") -> Annotated[CallToolResult, Report, "a report"]:
        return CallToolResult([], {**WRITTEN, "day": day} if not note else {"note": note})

    entry = tool(give)
    assert entry.definition.output_schema == returning(Report).definition.output_schema
    assert entry.output.convert(give("2026-01-02"), None).structured_content == WRITTEN
    with pytest.raises(BadResult, match="Additional properties"):
        entry.output.convert(give("", "a"), None)
    assert returning(Annotated[CallToolResult, "as it is"]).definition.output_schema is None


def test_missing_member_is_reported() -> None:
    class Strict(pydantic.BaseModel):
        day: date

        @pydantic.model_validator(mode="after")
        def check(self) -> "Strict":
            if self.day.year < 2000:
                raise ValueError("too long ago")
            return self

    entry = taking(Strict)
    assert given(entry, {"day": "2026-01-02"}) == Strict(day=date(2026, 1, 2))
    with pytest.raises(InvalidArguments, match=r"\$\.value: Strict: it: Value error, too long ago"):
        given(entry, {"day": "1999-01-02"})


def test_nested_dataclass_validators_run() -> None:
    @dataclass
    class Holder:
        points: list[PydanticPoint]

    assert given(taking(Holder), {"points": [{"x": 1, "why": 2}]}) == Holder([PydanticPoint(x=1, why=2)])
    assert answered(Holder, Holder([PydanticPoint(x=1, why=2)])) == {"points": [{"x": 1, "why": 2}]}
    with pytest.raises(InvalidArguments, match=r"\$\.value\.points\[1\]: PydanticPoint: x: Value error, unlucky"):
        given(taking(Holder), {"points": [{"x": 1}, {"x": 13}]})


def test_generic_pydantic_dataclass_is_decoded_by_pydantic() -> None:
    @pydantic.dataclasses.dataclass
    class Crate(Generic[Item]):
        item: Item

    assert given(taking(Crate[int]), {"item": 1}) == Crate(item=1)
    with pytest.raises(InvalidArguments, match=r"\$\.value\.item"):
        given(taking(Crate[int]), {"item": "a"})


def test_root_model_is_its_root() -> None:
    class Names(pydantic.RootModel[list[str]]):
        """Names."""

    class Ages(pydantic.RootModel[dict[str, int]]):
        """Ages."""

    assert answered(Names, Names(["a"])) == ["a"]
    assert returning(Names).output.wraps
    assert answered(Ages, Ages({"a": 1})) == {"a": 1}
    assert not returning(Ages).output.wraps


def test_shared_model_has_one_definition() -> None:
    class Line(pydantic.BaseModel):
        start: ModelPoint

    class Path(pydantic.BaseModel):
        points: list[ModelPoint]

    assert list(schema_of_type(tuple[Line, Path, ModelPoint])["$defs"]) == ["Line", "ModelPoint", "Path"]


def test_models_of_same_name_have_two_definitions() -> None:
    def line_of(point: Any) -> Any:
        return pydantic.create_model("Line", start=(point, ...))

    other = pydantic.create_model("ModelPoint", z=(int, ...))
    kind = tuple[line_of(ModelPoint), line_of(other)]
    described = schema_of_type(kind)

    assert list(described["$defs"]) == ["Line", "Line_2", "ModelPoint", "ModelPoint_2"]
    assert described["$defs"]["Line_2"]["properties"]["start"] == {"$ref": "#/$defs/ModelPoint_2"}
    assert given(taking(kind), [{"start": {"x": 1}}, {"start": {"z": 1}}])[1].start.z == 1


def test_nested_model_of_same_name_is_described() -> None:
    other = pydantic.create_model("Point", z=(int, ...))
    kind = pydantic.create_model("Point", other=(other, ...))
    described = schema_of_type(list[kind])

    assert len(described["$defs"]) == 2
    assert given(taking(kind), {"other": {"z": 1}}).other.z == 1


def test_models_work_in_unions() -> None:
    class Text(pydantic.BaseModel):
        value: str

    class Number(pydantic.BaseModel):
        value: int

    assert given(taking(Number | Text), {"value": "5"}) == Text(value="5")
    assert given(taking(Number | Point | None), {"x": 1}) == Point(1)


def test_pydantic_metadata_selects_pydantic() -> None:
    kind = Annotated[str, pydantic.AfterValidator(str.strip), "some text"]
    entry = taking(kind)

    assert given(entry, " a ") == "a"
    assert entry.definition.input_schema["properties"]["value"] == {"type": "string", "description": "some text"}


def test_model_description_is_beside_reference() -> None:
    schema = taking(Annotated[ModelPoint, pydantic.Field(description="where")]).definition.input_schema

    assert schema["properties"]["value"] == {"$ref": "#/$defs/ModelPoint", "description": "where"}


def test_limits_of_pydantic_types_use_pydantic() -> None:
    entry = taking(Annotated[pydantic.AnyUrl, at.MaxLen(20)])

    assert entry.definition.input_schema["properties"]["value"]["maxLength"] == 20
    with pytest.raises(InvalidArguments, match="is longer than 20 characters"):
        given(entry, "https://example.com/long")


def test_unsupported_pydantic_type_is_refused() -> None:
    class Plain:
        pass

    class Loose(pydantic.BaseModel, arbitrary_types_allowed=True):
        plain: Plain

    class Lost(pydantic.BaseModel):
        other: "Nowhere"  # noqa: F821

    with pytest.raises(RegistrationError, match="pydantic cannot read it: Unable to generate"):
        taking(Annotated[Plain, pydantic.AfterValidator(str)])
    with pytest.raises(RegistrationError, match="pydantic cannot describe it: Cannot generate a JsonSchema"):
        taking(Loose)
    with pytest.raises(RegistrationError, match=r"Lost.* is not fully defined"):
        taking(Lost)


def test_pydantic_result_has_text_content() -> None:
    def give() -> Any: ...

    output = tool(give).output
    block = output.convert({"url": pydantic.HttpUrl("https://example.com"), "point": ModelPoint(x=1)}, None).content[0]
    assert msgspec.json.decode(block.text) == {"url": "https://example.com/", "point": {"x": 1, "y": 0}}  # type: ignore[union-attr]
