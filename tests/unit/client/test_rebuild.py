"""Values rebuilt from JSON by a schema."""

import datetime
import sys
import uuid
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from trunkline.client.rebuild import rebuilder

TREE = {
    "type": "object",
    "title": "Tree",
    "properties": {"n": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["n"],
}
UTC = datetime.UTC
DAY = datetime.date(2020, 1, 2)


@pytest.mark.parametrize(
    ("schema", "value", "rebuilt"),
    [
        ({"type": "string"}, "2020-01-02", "2020-01-02"),
        ({"type": "integer"}, 5, 5),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "integer"}, 10**30, 10**30),
        ({"type": "number"}, 5, 5.0),
        ({"type": "number"}, 2**53 + 1, 2**53 + 1),  # no float is the same
        ({"type": "boolean"}, True, True),
        ({"type": "null"}, None, None),
        (
            {"type": "string", "format": "date-time"},
            "2020-01-02T03:04:05Z",
            datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
        ),
        (
            {"type": "string", "format": "date-time"},
            "2020-01-02T03:04:05",
            datetime.datetime(2020, 1, 2, 3, 4, 5),
        ),
        ({"type": "string", "format": "date"}, "2020-01-02", DAY),
        ({"type": "string", "format": "time"}, "03:04:05", datetime.time(3, 4, 5)),
        ({"type": "string", "format": "duration"}, "P1DT90S", datetime.timedelta(days=1, seconds=90)),
        ({"type": "string", "format": "uuid"}, str(uuid.UUID(int=5)), uuid.UUID(int=5)),
        ({"type": "string", "format": "decimal"}, "1.10", Decimal("1.10")),
        ({"type": "string", "format": "email"}, "a@b", "a@b"),
        ({"type": "string", "format": ["date"]}, "2020-01-02", "2020-01-02"),
        ({"type": "string", "contentEncoding": "base64"}, "aGk=", b"hi"),
        ({"type": "string", "contentEncoding": "base64"}, "no base64", "no base64"),
        ({"type": "array", "items": {"type": "string", "format": "date"}}, ["2020-01-02"], [DAY]),
        ({"type": "array"}, [1, "a"], [1, "a"]),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [2, 1], {1, 2}),
        ({"type": "array", "items": {"type": "object"}, "uniqueItems": True}, [{}], [{}]),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, [["a"]], [["a"]]),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "no list", "no list"),
        (
            {"type": "array", "items": {"type": "string", "format": "duration"}, "uniqueItems": True},
            ["PT60S", "PT1M"],  # the same duration: a set would have one of them
            [datetime.timedelta(seconds=60)] * 2,
        ),
        (
            {"type": "array", "prefixItems": [{"type": "string", "format": "date"}, {}], "items": {"type": "number"}},
            ["2020-01-02", "a", 1],
            (DAY, "a", 1.0),
        ),
        (
            {"type": "array", "items": [{"type": "string", "format": "date"}]},  # before 2020-12
            ["2020-01-02", "2020-01-02"],
            (DAY, "2020-01-02"),
        ),
        ({"type": "array", "prefixItems": []}, 5, 5),
        ({"type": "object"}, {"a": 1}, {"a": 1}),
        (
            {"type": "object", "additionalProperties": {"format": "date", "type": "string"}},
            {"a": "2020-01-02"},
            {"a": DAY},
        ),
        ({"type": "object", "additionalProperties": {"type": "number"}}, [1], [1]),
        ({"enum": ["a", 1]}, "a", "a"),
        ({"const": "a"}, "a", "a"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, None, None),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, "2020-01-02", DAY),
        ({"oneOf": [{"type": "integer"}, {}]}, "a", "a"),
        ({"type": ["string", "null"], "format": "date"}, "2020-01-02", DAY),
        (
            {"anyOf": [{"type": "string"}, {"type": "string", "format": "date"}]},
            "2020-01-02",
            "2020-01-02",
        ),  # the first
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string"}]}, "2020-01-02", DAY),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string"}]}, "tomorrow", "tomorrow"),
        ({"type": "string", "anyOf": [{"format": "date"}, {"format": "uuid"}, {}]}, "2020-01-02", DAY),
        ({"type": "string", "format": "date", "anyOf": [True, {"minLength": 1}]}, "2020-01-02", DAY),
        ({"allOf": [{"type": "string", "format": "date"}]}, "2020-01-02", DAY),
        ({"anyOf": [{"const": True}, {"type": "number"}]}, 1, 1.0),
        ({"type": "hologram"}, 1, 1),
        ({"type": []}, 1, 1),
        ({"type": ["hologram", 5]}, 1, 1),
        ({"anyOf": []}, 1, 1),
        ({"anyOf": [], "type": "string", "format": "date"}, "2020-01-02", DAY),
        ({"$ref": "https://example.org/elsewhere"}, 1, 1),
        ({"$ref": "#/$defs/nothing"}, 1, 1),
        ({"$ref": 5}, 1, 1),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "number"}}}, 1, 1.0),
        ({"$ref": "#"}, 1, 1),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, 1, 1),
        ({"anyOf": [{"$ref": "#"}, {"type": "number"}, {"type": "string"}]}, 1, 1),  # a union that is its own option
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_value_is_rebuilt_by_its_schema(schema: Any, value: Any, rebuilt: Any) -> None:
    made = rebuilder(schema)(value)
    assert made == rebuilt
    assert type(made) is type(rebuilt)


@pytest.mark.parametrize("text", ["tomorrow", "", "2020-13-01", "P1Y", "1e", "2020-01-02T25:00:00Z"])
@pytest.mark.parametrize("name", ["date-time", "date", "time", "duration", "uuid", "decimal"])
def test_text_not_matching_its_format_stays_text(name: str, text: str) -> None:
    kind = {"type": "string", "format": name}
    made = rebuilder({"type": "object", "properties": {"a": kind, "b": {"type": "string", "format": "date"}}})
    assert made({"a": text, "b": "2020-01-02"}).a == text
    assert made({"a": text, "b": "2020-01-02"}).b == DAY  # what stands beside it is rebuilt


def test_object_gets_attributes() -> None:
    schema = {
        "type": "object",
        "title": "2 persons",
        "properties": {
            "first name": {"type": "string"},
            "first_name": {"type": "string"},
            "class": {"type": "integer", "default": 5},
            "1st": {"type": "boolean"},
            "born": {"type": "string", "format": "date"},
            "died": {"type": "string", "format": "date", "default": "1852-11-27"},
            "books": {"type": "array", "default": []},
        },
        "required": ["first name", "born"],
    }
    rebuild = rebuilder(schema)
    made = rebuild({"first name": "Ada", "born": "1815-12-10", "unheard": 1})
    assert (made.first_name, made.born) == ("Ada", datetime.date(1815, 12, 10))
    assert (made.class_, made._1st, made.first_name_) == (5, None, None)
    assert made.died == datetime.date(1852, 11, 27)
    assert type(made).__name__ == "_2persons"
    made.books.append("Notes")
    assert rebuild({"first name": "Ada", "born": "1815-12-10"}).books == []


@pytest.mark.parametrize(
    ("member", "attribute"),
    [
        ("__typename", "_typename"),
        ("__metadata__", "_metadata__"),
        ("__class__", "_class__"),
        ("__post_init__", "_post_init__"),
        ("__struct_fields__", "_struct_fields__"),
        ("____", "_"),
        ("", "_"),
        ("a-b", "a_b"),
        ("x²", "x2"),
        ("\u2163", "IV"),
        ("größe", "größe"),
        ("☃", "_"),
        ("None", "None_"),
        ("mro", "mro"),
    ],
)
def test_every_member_has_an_attribute(member: str, attribute: str) -> None:
    schema = {"type": "object", "properties": {member: {"type": "string"}, "other": {}}, "required": [member]}
    made = rebuilder(schema)({member: "a"})
    assert getattr(made, attribute) == "a"
    assert msgspec.to_builtins(made)[member] == "a"


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\0", "\x1f"])
def test_object_without_possible_class_is_a_dict(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string", "format": "date"}, "plain": {}}}
    assert rebuilder(schema)({name: "2020-01-02", "plain": 1, "more": 2}) == {name: DAY, "plain": 1, "more": 2}
    assert rebuilder({"type": "object", "properties": {name: {}}})({name: 1}) == {name: 1}
    assert rebuilder(schema)([name]) == [name]


def test_object_missing_a_member_is_a_dict() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "date"}, "b": {}}, "required": ["b"]}
    assert rebuilder(schema)({"a": "2020-01-02"}) == {"a": DAY}
    assert rebuilder(schema)("a") == "a"


# --- recursion ------------------------------------------------------------------------------------------------


def chain(length: int) -> dict[str, Any]:
    value: dict[str, Any] = {"n": 0, "below": []}
    for n in range(1, length):
        value = {"n": n, "below": [value]}
    return value


def depth(tree: Any) -> int:
    """The number of objects inside of each other, all of one class."""
    found, kind = 1, type(tree)
    while tree.below:
        (tree,) = tree.below
        assert type(tree) is kind
        found += 1
    return found


def test_recursive_type_has_one_class_at_any_depth() -> None:
    assert depth(rebuilder(TREE)(chain(100))) == 100


def test_root_repeating_a_definition_shares_its_class() -> None:
    tree = {**TREE, "properties": {**TREE["properties"], "below": {"items": {"$ref": "#/$defs/a~1b"}, "type": "array"}}}  # type: ignore[dict-item]
    assert depth(rebuilder({**tree, "$defs": {"a/b": tree}})(chain(50))) == 50
    assert depth(rebuilder({**tree, "$defs": {"other": {}, "a/b": tree}})(chain(3))) == 3


def test_mutually_recursive_definitions_are_rebuilt() -> None:
    schema = {
        "$ref": "#/definitions/a",
        "definitions": {
            "a": {"title": "A", "type": "object", "properties": {"b": {"$ref": "#/definitions/b"}}},
            "b": {
                "title": "B",
                "type": "object",
                "properties": {"a": {"anyOf": [{"$ref": "#/definitions/a"}, {"type": "null"}]}},
            },
        },
    }
    made = rebuilder(schema)({"b": {"a": {"b": {"a": None}}}})
    assert type(made.b.a) is type(made)
    assert made.b.a.b.a is None


def test_deeply_nested_data_stays_json() -> None:
    value = chain(sys.getrecursionlimit())
    assert rebuilder(TREE)(value) is value


# --- unions ---------------------------------------------------------------------------------------------------

CAT = {"title": "Cat", "type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}}
DOG = {"title": "Dog", "type": "object", "properties": {"kind": {"const": "dog"}, "lives": {"type": "integer"}}}
FISH = {"title": "Fish", "type": "object", "properties": {"fins": {"type": "integer"}}, "required": ["fins"]}
BIRD = {
    "title": "Bird",
    "type": "object",
    "properties": {"name": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"kind": "cat", "lives": 9}, "Cat"),
        ({"kind": "dog", "lives": 1}, "Dog"),
        ({"kind": "wolf", "fins": 2}, "Fish"),
        ({"kind": "wolf", "fins": "two"}, "dict"),
        ({"name": "Polly", "kind": 5}, "dict"),
        ([{"kind": "dog"}], "list"),
        ("a", "str"),
    ],
)
def test_union_option_is_chosen_by_the_value(value: Any, name: str) -> None:
    for word in ("anyOf", "oneOf"):
        for about in ({}, {"type": "object"}):
            schema = {word: [{"$ref": "#/$defs/cat"}, DOG, FISH, BIRD], "$defs": {"cat": CAT}, **about}
            assert type(rebuilder(schema)(value)).__name__ == name


def test_option_with_other_members_is_not_chosen() -> None:
    rebuild = rebuilder({"anyOf": [BIRD, CAT]})
    assert type(rebuild({"name": None})).__name__ == "Bird"
    assert type(rebuild({"lives": 1})).__name__ == "Cat"


def test_text_not_matching_its_format_does_not_exclude_an_option() -> None:
    dated = {**FISH, "properties": {"fins": {"type": "string", "format": "date"}}}
    made = rebuilder({"anyOf": [dated, CAT]})({"fins": "tomorrow"})
    assert (type(made).__name__, made.fins) == ("Fish", "tomorrow")


def test_array_options_are_distinguished_by_their_items() -> None:
    rebuild = rebuilder(
        {"anyOf": [{"type": "array", "items": CAT}, {"anyOf": [{"type": "array", "items": {"type": "number"}}]}]}
    )
    assert rebuild([1, 2]) == [1.0, 2.0]
    assert type(rebuild([1])[0]) is float
    assert rebuild([{"kind": "cat"}])[0].kind == "cat"
    assert rebuild([]) == []


def test_conditions_beside_members_do_not_change_them() -> None:
    schema = {**CAT, "anyOf": [{"required": ["kind"]}, {"required": ["lives"]}]}
    assert rebuilder(schema)({"kind": "cat"}).kind == "cat"
    assert rebuilder({"properties": {"a": {}}})({"a": 1}).a == 1


@pytest.mark.parametrize("const", [{"a": 1}, [1]])
def test_non_scalar_constants_are_compared_by_type(const: Any) -> None:
    rebuild = rebuilder({"anyOf": [{"const": const}, {"type": "number"}]})
    assert rebuild(const) is const
    assert rebuild(1) == 1.0


# --- wrapping, and bounds -------------------------------------------------------------------------------------


def test_wrapped_value_is_unwrapped() -> None:
    rebuild = rebuilder({"type": "object", "properties": {"result": {"type": "string", "format": "date"}}})
    assert rebuild({"result": "2020-01-02"}) == DAY
    assert rebuild("2020-01-02") == DAY


def test_values_of_an_oversized_schema_stay_json() -> None:
    many = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(3000)}}
    assert rebuilder(many)({"p1": 1}) == {"p1": 1}


def test_value_too_large_for_choosing_options_stays_json() -> None:
    options = [
        {"type": "object", "properties": {f"p{n}": {"type": "integer"}}, "required": [f"p{n}"]} for n in range(300)
    ]
    rebuild = rebuilder({"type": "array", "items": {"anyOf": options}})
    assert rebuild([{"p299": 1}])[0].p299 == 1
    many = [{"p299": 1}] * 10_000
    assert rebuild(many) is many
