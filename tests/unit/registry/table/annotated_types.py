"""Types with constraints and descriptions."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final

import annotated_types as at
import pydantic
from msgspec import Meta
from tests.unit.registry.table.classes import NOON, ModelCat, ModelDog
from tests.unit.registry.table.row import Row, Schema, loose

__all__ = ["ANNOTATED_TYPES"]

INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
STRING: Final[Schema] = {"type": "string"}
NULL: Final[Schema] = {"type": "null"}

ANNOTATED_TYPES: Final = (
    Row(
        Annotated[ModelCat | ModelDog, pydantic.Field(discriminator="kind")],
        {
            "discriminator": {
                "mapping": {"cat": "#/$defs/ModelCat", "dog": "#/$defs/ModelDog"},
                "propertyName": "kind",
            },
            "oneOf": [{"$ref": "#/$defs/ModelCat"}, {"$ref": "#/$defs/ModelDog"}],
        },
        {"kind": "dog", "good": True},
        ModelDog(kind="dog", good=True),
        (
            (1, '$: 1 is not of type "object"'),
            ({"kind": "cow"}, '$.kind: "cow" is not one of "cat" or "dog"'),
            ({"kind": "dog"}, '$: "good" is a required property'),
        ),
        ("ModelCat", "ModelDog"),
    ),
    Row(
        Annotated[Path, "where to look"],
        {"type": "string", "format": "path", "description": "where to look"},
        "a",
        Path("a"),
        (
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
            ({}, '$: {} is not of type "string"'),
        ),
    ),
    Row(
        Annotated[int, Meta(ge=1)],
        {"type": "integer", "minimum": 1},
        1,
        1,
        (
            (0, "$: 0 is less than the minimum of 1"),
            ("x", '$: "x" is not of type "integer"'),
            ([], '$: [] is not of type "integer"'),
        ),
    ),
    Row(
        Annotated[Decimal, Meta(ge=1)],
        {"anyOf": [{"type": "number", "minimum": 1}, {"type": "string", "format": "decimal"}]},
        "1",
        Decimal(1),
        (
            ("0", "@: Expected `Decimal` >= 1"),
            (0.5, "$: 0.5 is less than the minimum of 1"),
            ([], '$: [] is not of type "number" or "string"'),
        ),
        result={"type": "string", "format": "decimal", "description": "(at least 1)"},
    ),
    Row(
        Annotated[int, at.Ge(1), at.Lt(9)],
        {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
        1,
        1,
        (
            (0, "$: 0 is less than the minimum of 1"),
            (9, "$: 9 is greater than or equal to the maximum of 9"),
            ("x", '$: "x" is not of type "integer"'),
        ),
    ),
    Row(
        Annotated[int, at.Gt(1), at.Le(9)],
        {"type": "integer", "exclusiveMinimum": 1, "maximum": 9},
        9,
        9,
        (
            (1, "$: 1 is less than or equal to the minimum of 1"),
            (10, "$: 10 is greater than the maximum of 9"),
            ("x", '$: "x" is not of type "integer"'),
        ),
    ),
    Row(
        Annotated[int, at.Interval(ge=1, le=3)],
        {"type": "integer", "minimum": 1, "maximum": 3},
        1,
        1,
        (
            (0, "$: 0 is less than the minimum of 1"),
            (4, "$: 4 is greater than the maximum of 3"),
            ("x", '$: "x" is not of type "integer"'),
        ),
    ),
    Row(
        Annotated[int, at.MultipleOf(5)],
        {"type": "integer", "multipleOf": 5},
        10,
        10,
        (
            (1, "$: 1 is not a multiple of 5"),
            (2, "$: 2 is not a multiple of 5"),
            ("x", '$: "x" is not of type "integer"'),
        ),
    ),
    Row(
        Annotated[float, at.Ge(0)],
        {"type": "number", "minimum": 0},
        1.5,
        1.5,
        (
            (-1, "$: -1 is less than the minimum of 0"),
            (-0.5, "$: -0.5 is less than the minimum of 0"),
            ("x", '$: "x" is not of type "number"'),
        ),
    ),
    Row(
        Annotated[str, at.MinLen(2), at.MaxLen(3)],
        {"type": "string", "minLength": 2, "maxLength": 3},
        "ab",
        "ab",
        (
            ("a", '$: "a" is shorter than 2 characters'),
            ("abcd", '$: "abcd" is longer than 3 characters'),
            (1, '$: 1 is not of type "string"'),
        ),
    ),
    Row(
        Annotated[str, at.Predicate(str.islower)],
        STRING,
        "ab",
        "ab",
        (
            ("A", "@: Expected `str` for which islower is true"),
            ("", "@: Expected `str` for which islower is true"),
            (1, '$: 1 is not of type "string"'),
        ),
    ),
    Row(
        Annotated[bytes, at.MaxLen(3)],
        {"type": "string", "contentEncoding": "base64", "maxLength": 4},
        "AAEC",
        b"\0\1\2",
        (
            ("AAECAAEC", '$: "AAECAAEC" is longer than 4 characters'),
            ("!", "@: Invalid base64 encoded string"),
            (1, '$: 1 is not of type "string"'),
        ),
    ),
    Row(
        Annotated[list[int], at.Len(1, 2)],
        {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2},
        [1],
        [1],
        (
            ([], "$: [] has less than 1 item"),
            ([1, 2, 3], "$: [1,2,3] has more than 2 items"),
            (1, '$: 1 is not of type "array"'),
        ),
    ),
    Row(
        Annotated[dict[str, int], at.MinLen(1)],
        {"type": "object", "additionalProperties": INTEGER, "minProperties": 1},
        {"a": 1},
        {"a": 1},
        (
            ({}, "$: {} has less than 1 property"),
            ({"a": "b"}, '$.a: "b" is not of type "integer"'),
            (1, '$: 1 is not of type "object"'),
        ),
    ),
    Row(
        Annotated[tuple[int, ...], at.MinLen(1)],
        {"type": "array", "items": INTEGER, "minItems": 1},
        [1],
        (1,),
        (
            ([], "$: [] has less than 1 item"),
            (["a"], '$[0]: "a" is not of type "integer"'),
            (1, '$: 1 is not of type "array"'),
        ),
    ),
    Row(
        Annotated[Decimal, at.Ge(0), at.MultipleOf(0.25)],
        {"anyOf": [{"type": "number", "minimum": 0, "multipleOf": 0.25}, {"type": "string", "format": "decimal"}]},
        "1.50",
        Decimal("1.50"),
        (
            ("-1", "@: Expected `Decimal` >= 0"),
            ("1.6", "@: Expected `Decimal` that's a multiple of 0.25"),
            ([], '$: [] is not of type "number" or "string"'),
        ),
        result={"type": "string", "format": "decimal", "description": "(at least 0, a multiple of 0.25)"},
    ),
    Row(
        Annotated[datetime, at.Ge(NOON)],
        {"type": "string", "format": "date-time", "description": "(at least 2026-01-02T12:00:00Z)"},
        "2026-01-02T12:00:00Z",
        NOON,
        (
            ("2026-01-01T12:00:00Z", "@: Expected `datetime` >= 2026-01-02T12:00:00Z"),
            ("soon", "@: Invalid RFC3339 encoded datetime"),
            (1, '$: 1 is not of type "string"'),
        ),
        result={**loose("date-time"), "description": "(at least 2026-01-02T12:00:00Z)"},
    ),
    Row(
        Annotated[datetime, at.Timezone(...)],
        {"type": "string", "format": "date-time"},
        "2026-01-02T12:00:00Z",
        NOON,
        (
            ("2026-01-02T12:00:00", "@: Expected `datetime` with a timezone component"),
            ("soon", "@: Invalid RFC3339 encoded datetime"),
            (1, '$: 1 is not of type "string"'),
        ),
    ),
    Row(
        Annotated[date, at.Gt(date(2026, 1, 1)), "a day"],
        {"type": "string", "format": "date", "description": "a day (more than 2026-01-01)"},
        "2026-01-02",
        date(2026, 1, 2),
        (
            ("2026-01-01", "@: Expected `date` > 2026-01-01"),
            ("soon", "@: Invalid RFC3339 encoded date"),
            (1, '$: 1 is not of type "string"'),
        ),
    ),
    Row(
        Annotated[timedelta, at.Lt(timedelta(hours=1))],
        {"type": "string", "format": "duration", "description": "(less than PT3600S)"},
        "PT90S",
        timedelta(seconds=90),
        (
            ("PT3600S", "@: Expected `timedelta` < PT3600S"),
            ("soon", "@: Invalid ISO8601 duration"),
            (1, '$: 1 is not of type "string"'),
        ),
        result={**loose("duration"), "description": "(less than PT3600S)"},
    ),
    Row(
        Annotated[int, pydantic.Field(ge=1, description="how many", title="Count")],
        {"type": "integer", "minimum": 1, "title": "Count", "description": "how many"},
        1,
        1,
        (
            (0, "$: 0 is less than the minimum of 1"),
            ("x", '$: "x" is not of type "integer"'),
            ([], '$: [] is not of type "integer"'),
        ),
    ),
    Row(
        Annotated[str, pydantic.Field(pattern="^a")],
        {"type": "string", "pattern": "^a"},
        "ab",
        "ab",
        (
            ("b", '$: "b" does not match "^a"'),
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
    ),
    Row(
        Annotated[int, pydantic.Field(description="which", examples=[1])],
        {"type": "integer", "description": "which", "examples": [1]},
        1,
        1,
        (
            (1.5, '$: 1.5 is not of type "integer"'),
            ("x", '$: "x" is not of type "integer"'),
            ([], '$: [] is not of type "integer"'),
        ),
    ),
    Row(
        Annotated[Decimal, pydantic.Field(max_digits=3)],
        {"anyOf": [NUMBER, STRING]},
        "1.5",
        Decimal("1.5"),
        (
            ("12345", "@: Decimal: it: Decimal input should have no more than 3 digits in total"),
            ("x", "@: Decimal: it: Input should be a valid decimal"),
            ([], '$: [] is not of type "number" or "string"'),
        ),
        result=STRING,
    ),
    Row(
        Annotated[str, pydantic.StringConstraints(to_upper=True, min_length=1)],
        {"minLength": 1, "type": "string"},
        "A",
        "A",
        (
            ("", '$: "" is shorter than 1 character'),
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
    ),
    Row(
        Annotated[int | list[int], at.Ge(1)],
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": INTEGER}]},
        1,
        1,
        (
            (0, "$: 0 is less than the minimum of 1"),
            ("x", '$: "x" is not of type "integer" or "array"'),
            ({}, '$: {} is not of type "integer" or "array"'),
        ),
    ),
    Row(
        Annotated[int | None, at.Ge(1)],
        {"anyOf": [{"type": "integer", "minimum": 1}, NULL]},
        1,
        1,
        (
            (0, "$: 0 is less than the minimum of 1"),
            ("x", '$: "x" is not of type "integer"'),
            ({}, '$: {} is not of type "integer"'),
        ),
    ),
)
