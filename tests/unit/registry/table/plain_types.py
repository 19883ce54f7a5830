"""Types that need no class, and enums."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Final, Literal
from uuid import UUID

import pydantic
from tests.unit.registry.table.classes import IDENT, NOON, Colour, Level, Ratio
from tests.unit.registry.table.row import Row, Schema, loose

__all__ = ["PLAIN_TYPES"]

INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
STRING: Final[Schema] = {"type": "string"}

PLAIN_TYPES: Final = (
    Row(
        str,
        STRING,
        "a",
        "a",
        (
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
            ({}, '$: {} is not of type "string"'),
        ),
    ),
    Row(
        int,
        INTEGER,
        5,
        5,
        (
            (1.5, '$: 1.5 is not of type "integer"'),
            ("x", '$: "x" is not of type "integer"'),
            ([], '$: [] is not of type "integer"'),
        ),
    ),
    Row(
        float,
        NUMBER,
        1.5,
        1.5,
        (
            ("x", '$: "x" is not of type "number"'),
            ([], '$: [] is not of type "number"'),
            (True, '$: true is not of type "number"'),
        ),
    ),
    Row(
        bool,
        {"type": "boolean"},
        True,
        True,
        (
            (1, '$: 1 is not of type "boolean"'),
            ("yes", '$: "yes" is not of type "boolean"'),
            ([], '$: [] is not of type "boolean"'),
        ),
    ),
    Row(
        list,
        {"type": "array"},
        [1, "a"],
        [1, "a"],
        (
            (1, '$: 1 is not of type "array"'),
            ("a", '$: "a" is not of type "array"'),
            ({}, '$: {} is not of type "array"'),
        ),
    ),
    Row(
        list[int],
        {"type": "array", "items": INTEGER},
        [1],
        [1],
        (
            (1, '$: 1 is not of type "array"'),
            (["a"], '$[0]: "a" is not of type "integer"'),
            ({}, '$: {} is not of type "array"'),
        ),
    ),
    Row(
        dict,
        {"type": "object"},
        {"a": 1},
        {"a": 1},
        (
            (1, '$: 1 is not of type "object"'),
            ("a", '$: "a" is not of type "object"'),
            ([], '$: [] is not of type "object"'),
        ),
    ),
    Row(
        dict[str, int],
        {"type": "object", "additionalProperties": INTEGER},
        {"a": 1},
        {"a": 1},
        (
            (1, '$: 1 is not of type "object"'),
            ({"a": "b"}, '$.a: "b" is not of type "integer"'),
            ([], '$: [] is not of type "object"'),
        ),
    ),
    Row(
        dict[int, str],
        {"type": "object", "propertyNames": {"pattern": "^-?[0-9]+$"}, "additionalProperties": STRING},
        {"1": "a"},
        {1: "a"},
        (
            (1, '$: 1 is not of type "object"'),
            ({"a": "b"}, '$: "a" does not match "^-?[0-9]+$"'),
            ({"1": 1}, '$[1]: 1 is not of type "string"'),
        ),
    ),
    Row(
        dict[Colour, int],
        {"type": "object", "propertyNames": {"$ref": "#/$defs/Colour"}, "additionalProperties": INTEGER},
        {"red": 1},
        {Colour.RED: 1},
        (
            (1, '$: 1 is not of type "object"'),
            ({"green": 1}, '$: "green" is not one of "red" or "blue"'),
            ({"red": "a"}, '$.red: "a" is not of type "integer"'),
        ),
        ("Colour",),
    ),
    Row(
        Literal["a", "b"],
        {"type": "string", "enum": ["a", "b"]},
        "a",
        "a",
        (
            ("c", '$: "c" is not one of "a" or "b"'),
            (1, '$: 1 is not of type "string"', '$: 1 is not one of "a" or "b"'),
            ([], '$: [] is not of type "string"', '$: [] is not one of "a" or "b"'),
        ),
    ),
    Row(
        Literal[1, "a"],
        {"enum": [1, "a"]},
        1,
        1,
        (
            ("c", '$: "c" is not one of 1 or "a"'),
            (2, '$: 2 is not one of 1 or "a"'),
            ([], '$: [] is not one of 1 or "a"'),
        ),
    ),
    Row(
        Literal[Colour.RED],
        {"type": "string", "enum": ["red"]},
        "red",
        Colour.RED,
        (
            ("blue", '$: "blue" is not one of "red"'),
            (1, '$: 1 is not of type "string"', '$: 1 is not one of "red"'),
            ([], '$: [] is not of type "string"', '$: [] is not one of "red"'),
        ),
    ),
    Row(
        Colour,
        {"$ref": "#/$defs/Colour"},
        "red",
        Colour.RED,
        (
            ("green", '$: "green" is not one of "red" or "blue"'),
            (1, '$: 1 is not of type "string"', '$: 1 is not one of "red" or "blue"'),
            ([], '$: [] is not of type "string"', '$: [] is not one of "red" or "blue"'),
        ),
        ("Colour",),
    ),
    Row(
        Level,
        {"$ref": "#/$defs/Level"},
        1,
        Level.LOW,
        (
            (3, "$: 3 is not one of 1 or 2"),
            ("LOW", '$: "LOW" is not of type "integer"', '$: "LOW" is not one of 1 or 2'),
            ([], '$: [] is not of type "integer"', "$: [] is not one of 1 or 2"),
        ),
        ("Level",),
    ),
    Row(
        Ratio,
        {"$ref": "#/$defs/Ratio"},
        0.5,
        Ratio.HALF,
        (
            (2, "$: 2 is not one of 0.5 or 1"),
            (True, "$: true is not one of 0.5 or 1"),
            ("HALF", '$: "HALF" is not one of 0.5 or 1'),
        ),
        ("Ratio",),
    ),
    Row(
        set[int],
        {"type": "array", "items": INTEGER, "uniqueItems": True},
        [1, 2],
        {1, 2},
        (
            (1, '$: 1 is not of type "array"'),
            (["a"], '$[0]: "a" is not of type "integer"'),
            ([None], '$[0]: null is not of type "integer"'),
        ),
    ),
    Row(
        frozenset[str],
        {"type": "array", "items": STRING, "uniqueItems": True},
        ["a"],
        frozenset({"a"}),
        (
            (1, '$: 1 is not of type "array"'),
            ([1], '$[0]: 1 is not of type "string"'),
            ({"a": 1}, '$: {"a":1} is not of type "array"'),
        ),
    ),
    Row(
        tuple[int, str],
        {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2},
        [1, "a"],
        (1, "a"),
        (
            ([1], "$: [1] has less than 2 items"),
            (["a", "a"], '$[0]: "a" is not of type "integer"'),
            ([1, "a", 2], '$: [1,"a",2] has more than 2 items'),
        ),
    ),
    Row(
        tuple[int, ...],
        {"type": "array", "items": INTEGER},
        [1, 2, 3],
        (1, 2, 3),
        (
            (1, '$: 1 is not of type "array"'),
            (["a"], '$[0]: "a" is not of type "integer"'),
            ({}, '$: {} is not of type "array"'),
        ),
    ),
    Row(
        datetime,
        {"type": "string", "format": "date-time"},
        "2026-01-02T12:00:00Z",
        NOON,
        (
            ("soon", "@: Invalid RFC3339 encoded datetime"),
            (1.5, '$: 1.5 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
        result=loose("date-time"),
    ),
    Row(
        date,
        {"type": "string", "format": "date"},
        "2026-01-02",
        date(2026, 1, 2),
        (
            ("soon", "@: Invalid RFC3339 encoded date"),
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
    ),
    Row(
        time,
        {"type": "string", "format": "time"},
        "12:30:00",
        time(12, 30),
        (
            ("soon", "@: Invalid RFC3339 encoded time"),
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
        result=loose("time"),
    ),
    Row(
        timedelta,
        {"type": "string", "format": "duration"},
        "PT90S",
        timedelta(seconds=90),
        (
            ("soon", "@: Invalid ISO8601 duration"),
            ({}, '$: {} is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
        result=loose("duration"),
    ),
    Row(
        UUID,
        {"type": "string", "format": "uuid"},
        "12345678-1234-5678-1234-567812345678",
        UUID(IDENT),
        (("me", "@: Invalid UUID"), (1, '$: 1 is not of type "string"'), ([], '$: [] is not of type "string"')),
    ),
    Row(
        Decimal,
        {"anyOf": [NUMBER, {"type": "string", "format": "decimal"}]},
        "1.50",
        Decimal("1.50"),
        (
            ("much", "@: Invalid decimal string"),
            ({}, '$: {} is not of type "number" or "string"'),
            ([], '$: [] is not of type "number" or "string"'),
        ),
        result={"type": "string", "format": "decimal"},
    ),
    Row(
        Path,
        {"type": "string", "format": "path"},
        "a/b",
        Path("a/b"),
        (
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
            ({}, '$: {} is not of type "string"'),
        ),
    ),
    Row(
        PurePosixPath,
        {"type": "string", "format": "path"},
        "/a",
        PurePosixPath("/a"),
        (
            (1, '$: 1 is not of type "string"'),
            (None, '$: null is not of type "string"'),
            ({}, '$: {} is not of type "string"'),
        ),
    ),
    Row(
        bytes,
        {"type": "string", "contentEncoding": "base64"},
        "AAEC",
        b"\0\1\2",
        (
            ("!", "@: Invalid base64 encoded string"),
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
    ),
    Row(
        int | str,
        {"anyOf": [INTEGER, STRING]},
        "a",
        "a",
        (
            (1.5, '$: 1.5 is not of type "integer" or "string"'),
            ([], '$: [] is not of type "integer" or "string"'),
            ({}, '$: {} is not of type "integer" or "string"'),
        ),
    ),
    Row(
        datetime | str,
        {"anyOf": [{"type": "string", "format": "date-time"}, STRING]},
        "2026-01-02T12:00:00Z",
        NOON,
        (
            (1.5, '$: 1.5 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
            ({}, '$: {} is not of type "string"'),
        ),
        result={"anyOf": [loose("date-time"), STRING]},
    ),
    Row(
        list[int] | set[str],
        {"anyOf": [{"type": "array", "items": INTEGER}, {"type": "array", "items": STRING, "uniqueItems": True}]},
        [1],
        [1],
        (
            (1, '$: 1 is not of type "array"'),
            ([None], "$: [null] is not valid under any of the schemas listed in the 'anyOf' keyword"),
            ({}, '$: {} is not of type "array"'),
        ),
    ),
    Row(
        Path | int,
        {"anyOf": [{"type": "string", "format": "path"}, INTEGER]},
        5,
        5,
        (
            (1.5, '$: 1.5 is not of type "string" or "integer"'),
            ([], '$: [] is not of type "string" or "integer"'),
            ({}, '$: {} is not of type "string" or "integer"'),
        ),
    ),
    Row(
        pydantic.HttpUrl,
        {"format": "uri", "maxLength": 2083, "minLength": 1, "type": "string"},
        "https://example.com/",
        pydantic.HttpUrl("https://example.com/"),
        (
            ("x", "@: HttpUrl: it: Input should be a valid URL, relative URL without a base"),
            (1, '$: 1 is not of type "string"'),
            ([], '$: [] is not of type "string"'),
        ),
    ),
)
