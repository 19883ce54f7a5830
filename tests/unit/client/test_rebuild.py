"""Values rebuilt from JSON by a schema."""

import datetime
import uuid
from decimal import Decimal
from typing import Any, Literal

import pytest

from trunkline.client.rebuild import rebuilder, type_of

TREE = {
    "type": "object",
    "title": "Tree",
    "properties": {"n": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, str),
        ({"type": "integer"}, int),
        ({"type": "number"}, float),
        ({"type": "boolean"}, bool),
        ({"type": "null"}, type(None)),
        ({"type": "string", "format": "date-time"}, datetime.datetime),
        ({"type": "string", "format": "date"}, datetime.date),
        ({"type": "string", "format": "time"}, datetime.time),
        ({"type": "string", "format": "duration"}, datetime.timedelta),
        ({"type": "string", "format": "uuid"}, uuid.UUID),
        ({"type": "string", "format": "decimal"}, Decimal),
        ({"type": "string", "format": "email"}, str),
        ({"type": "string", "contentEncoding": "base64"}, bytes),
        ({"type": "array", "items": {"type": "integer"}}, list[int]),
        ({"type": "array"}, list[Any]),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, set[int]),
        ({"type": "array", "items": {"type": "object"}, "uniqueItems": True}, list[dict[str, Any]]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, tuple[int, str]),
        ({"type": "object"}, dict[str, Any]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, dict[str, int]),
        ({"enum": ["a", 1]}, Literal["a", 1]),
        ({"const": "a"}, Literal["a"]),
        ({"enum": ["a", 1.5]}, Any),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, int | None),
        ({"oneOf": [{"type": "integer"}, {}]}, Any),
        ({"type": ["string", "null"]}, str | None),
        ({"anyOf": [{"type": "string"}, {"type": "string", "format": "date"}]}, Any),  # nothing tells them apart
        ({"type": "hologram"}, Any),
        ({"$ref": "https://example.org/elsewhere"}, Any),
        ({"$ref": "#/$defs/nothing"}, Any),
        ({"$ref": 5}, Any),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, int),
        ({}, Any),
        (True, Any),
    ],
)
def test_a_schema_becomes_a_type(schema: Any, kind: Any) -> None:
    assert type_of(schema) == kind


def test_an_object_becomes_one_with_attributes() -> None:
    schema = {
        "type": "object",
        "title": "2 persons",
        "properties": {
            "first name": {"type": "string"},
            "first_name": {"type": "string"},
            "class": {"type": "integer", "default": 5},
            "1st": {"type": "boolean"},
            "born": {"type": "string", "format": "date"},
        },
        "required": ["first name", "born"],
    }
    made = rebuilder(schema)({"first name": "Ada", "born": "1815-12-10", "unheard": 1})
    assert (made.first_name, made.born) == ("Ada", datetime.date(1815, 12, 10))
    assert (made.class_, made._1st, made.first_name_) == (5, None, None)
    assert type(made).__name__ == "_2persons"


def test_what_holds_itself_is_plain_inside_of_itself() -> None:
    tree = rebuilder(TREE)({"n": 1, "below": [{"n": 2, "below": []}]})
    assert tree.n == 1
    assert tree.below[0].n == 2
    assert tree.below[0].below == []


def test_what_was_wrapped_only_to_be_an_object_comes_out_of_it() -> None:
    rebuild = rebuilder({"type": "object", "properties": {"result": {"type": "string", "format": "date"}}})
    assert rebuild({"result": "2020-01-02"}) == datetime.date(2020, 1, 2)
    assert rebuild("2020-01-02") == datetime.date(2020, 1, 2)


def test_what_does_not_fit_stays_as_it_is() -> None:
    assert rebuilder({"type": "string", "format": "date"})("tomorrow") == "tomorrow"
    assert rebuilder({"type": "object"})({"a": 1}) == {"a": 1}
