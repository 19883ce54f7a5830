"""`Annotated` metadata: constraints and descriptions of several libraries, and the types that they fit."""

from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal

import annotated_types as at
import pydantic
import pytest
import typing_extensions
from msgspec import Meta
from tests.unit.registry.table.classes import Colour, Level, Point
from tests.unit.registry.table.tools import answered, given, returning, taking

from trunkline.errors import InvalidArguments, RegistrationError
from trunkline.registry.json_schema import schema_of_type
from trunkline.registry.results import BadResult


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Annotated[int, "one", "two"], {"type": "integer", "description": "one"}),
        (Annotated[int, typing_extensions.Doc("docs")], {"type": "integer", "description": "docs"}),
        (Annotated[int, Meta(extra_json_schema={"x": 1})], {"type": "integer", "x": 1}),
        (
            Annotated[int, pydantic.Field(json_schema_extra={"x": 1}, deprecated=True)],
            {"type": "integer", "x": 1, "deprecated": True},
        ),
        (Annotated[int, pydantic.Field(strict=True, ge=1)], {"type": "integer", "minimum": 1}),
        (pydantic.conint(gt=1), {"type": "integer", "exclusiveMinimum": 1}),
        (pydantic.constr(min_length=1), {"type": "string", "minLength": 1}),
        (Annotated[int, object()], {"type": "integer"}),
        (Annotated[time, Meta(tz=True)], {"type": "string", "format": "time"}),
        (Annotated[Level, at.Ge(2)], {"$ref": "#/$defs/Level", "description": "(at least 2)"}),
        (Annotated[int, at.Le(2**70)], {"type": "integer", "maximum": 2**70}),
        (Annotated[str, pydantic.Field(pattern=__import__("re").compile("^a"))], {"type": "string", "pattern": "^a"}),
    ],
)
def test_metadata_is_part_of_schema(kind: Any, schema: dict[str, Any]) -> None:
    described = schema_of_type(kind)
    described.pop("$defs", None)
    assert described == schema


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (Annotated[int, at.Le(2**70)], 2**71, "is greater than the maximum"),
        (Annotated[int, at.Ge(0.5)], 0, "0 is less than the minimum of 0.5"),
        (Annotated[Level, at.Ge(2)], 1, r"Expected `Level` >= 2"),
        (Annotated[datetime, at.Timezone(None)], "2026-01-02T12:00:00Z", "Expected `datetime` with no timezone"),
        (Annotated[tuple[int, int], at.MinLen(3)], [1, 2], r"\[1,2\] has less than 3 items"),
        (Annotated[Decimal, at.Gt(1)], 1, "1 is less than or equal to the minimum of 1"),
        (Annotated[Decimal, at.Gt(1)], "0.5", "Expected `Decimal` > 1"),
        (Annotated[Decimal, at.Le(1)], "1.5", "Expected `Decimal` <= 1"),
        (Annotated[list[Point] | None, at.MaxLen(1)], [{"x": 1}] * 2, "has more than 1 item"),
        (Annotated[str, at.Predicate(lambda text: text.islower())], "A", "Expected `str` for which .* is true"),
        (Annotated[int | str, at.Predicate(bool)], 0, "for which bool is true"),
        (Annotated[str, at.MinLen(1), at.Predicate(str.islower), Meta(pattern="^a")], "ba", "does not match"),
    ],
)
def test_values_over_limits_are_refused(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(InvalidArguments, match=why):
        given(taking(kind), value)
    with pytest.raises(BadResult):
        answered(kind, value)


def test_values_within_limits_are_accepted() -> None:
    kind = Annotated[str, at.MinLen(1), at.MaxLen(3), at.Predicate(str.islower), Meta(pattern="^a")]
    assert given(taking(kind), "ab") == "ab"
    assert given(taking(Annotated[Decimal, at.Ge(1)]), 1.5) == Decimal("1.5")
    assert given(taking(Annotated[time, at.Timezone(None), at.Lt(time(12))]), "11:00:00") == time(11)


def test_union_limits_apply_to_matching_options() -> None:
    kind = Annotated[int | str | None, at.Ge(1), at.MinLen(2)]

    assert schema_of_type(kind) == {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "minLength": 2}, {"type": "null"}]
    }
    assert [given(taking(kind), value) for value in (1, "ab", None)] == [1, "ab", None]
    for value in (0, "a"):
        with pytest.raises(InvalidArguments):
            given(taking(kind), value)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Annotated[str, at.Ge(0)], "`ge` does not apply to a value of type str"),
        (Annotated[str | None, at.Ge(0)], r"`ge` does not apply to a value of type str \| null"),
        (Annotated[bool, at.Ge(0)], "`ge` does not apply to a value of type bool"),
        (Annotated[int, at.MinLen(1)], "`min_length` does not apply to a value of type int"),
        (Annotated[Point, pydantic.Field(pattern="a")], "`pattern` does not apply to a value of type Point"),
        (Annotated[Literal["a"], at.MinLen(1)], "`min_length` does not apply to"),
        (Annotated[Colour, at.Ge(1)], "`ge` does not apply to a value of type Colour"),
        (Annotated[datetime, at.Timezone("UTC")], "times in JSON have a UTC offset, but no time zone"),
    ],
)
def test_inapplicable_limit_is_refused(kind: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        taking(kind)
    with pytest.raises(RegistrationError, match=why):
        returning(kind)


def test_incomparable_limit_refuses_value() -> None:
    with pytest.raises(InvalidArguments, match="can't compare offset-naive and offset-aware"):
        given(taking(Annotated[datetime, at.Ge(datetime(2026, 1, 1))]), "2026-01-02T12:00:00Z")


def test_member_limits_apply_in_every_class_kind() -> None:
    @dataclass
    class Bill:
        amount: Annotated[Decimal, at.Ge(0), "how much"]

    assert schema_of_type(Bill)["properties"]["amount"]["description"] == "how much"
    with pytest.raises(InvalidArguments, match=r"\$\.value\.amount: Expected `Decimal` >= 0"):
        given(taking(Bill), {"amount": "-1"})
    with pytest.raises(BadResult, match="Expected `Decimal` >= 0"):
        answered(Bill, Bill(Decimal(-1)))
