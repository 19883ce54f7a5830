"""Results of tools with random output schemas, of every draft: a result that satisfies its schema is returned."""

import datetime
import logging
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trunkline.client.known_tools import KnownTool
from trunkline.client.rebuild import rebuilder
from trunkline.client.results import build_tool_result
from trunkline.errors import BadAnswer
from trunkline.protocol.types import CallToolResult, Tool

DRAFTS = (
    None,
    "http://json-schema.org/draft-03/schema#",
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
EXAMPLES = 2 * settings().max_examples  # of the profile: 100 in the suite, 400 in `make test-long`

odd_names = st.sampled_from(
    [
        *("__typename", "__metadata__", "__init__", "__class__", "__slots__", "__dict__", "__", "_", ""),
        *(
            'a"b',
            "a\\b",
            "a\nb",
            "\0",
            "class",
            "None",
            "1st",
            "a-b",
            "a.b",
            "größe",
            "x²",
            "☃",
            "mro",
            "result",
            "$ref",
        ),
        *("type", "properties", "$defs", "n", "below"),
    ]
)
names = odd_names | st.text(max_size=4).filter(lambda name: name.isprintable())
texts = st.text(max_size=6)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)

# --- anything that JSON can say in place of a schema -------------------------------------------------------------

KEYWORDS = (
    *("type", "properties", "items", "prefixItems", "additionalItems", "additionalProperties", "anyOf", "oneOf"),
    *("allOf", "not", "enum", "const", "required", "$ref", "$defs", "definitions", "format", "contentEncoding"),
    *("default", "title", "uniqueItems", "patternProperties", "$id", "id", "$anchor", "$dynamicRef", "$recursiveRef"),
    *("if", "then", "dependentRequired", "unevaluatedProperties", "minimum", "pattern", "discriminator", "extends"),
)
types = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null", "any", "hologram"])
references = st.sampled_from(
    ["#", "#/$defs/a", "#/$defs/b", "#/definitions/a", "#/properties/n", "#a", "x:y", "", "#/%"]
)
formats = st.sampled_from(["date-time", "date", "time", "duration", "uuid", "decimal", "email", "base64"])


def schemas_around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, max_size=3)
    by_name = st.dictionaries(names, inner, max_size=3)
    usual: dict[str, st.SearchStrategy[Any]] = {
        "type": types | st.lists(types, max_size=3),
        "properties": by_name,
        "items": inner | several,
        "prefixItems": several,
        "additionalProperties": inner,
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), several),
        **dict.fromkeys(("$defs", "definitions"), st.fixed_dictionaries({}, optional={"a": inner, "b": inner})),
        "enum": st.lists(scalars, max_size=3),
        "required": st.lists(names, max_size=2) | st.booleans(),
        "$ref": references,
        "format": formats,
        "contentEncoding": st.just("base64"),
        "uniqueItems": st.booleans(),
        "title": names,
    }
    described = st.fixed_dictionaries({}, optional=usual)
    wrong = st.dictionaries(st.sampled_from(KEYWORDS), values | inner | several, max_size=3)
    return described | st.tuples(described, wrong).map(lambda pair: {**pair[0], **pair[1]})


any_schema = st.recursive(st.booleans() | st.just({}) | scalars, schemas_around, max_leaves=6)
any_object = st.tuples(schemas_around(any_schema), st.sampled_from(DRAFTS)).map(
    lambda pair: pair[0] if pair[1] is None else {**pair[0], "$schema": pair[1]}
)

# --- schemas together with a value that satisfies them --------------------------------------------------------------

Pair = tuple[dict[str, Any], Any]


def of_format(name: str, source: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return source.map(lambda value: ({"type": "string", "format": name}, msgspec.to_builtins(value)))


leaves: st.SearchStrategy[Pair] = st.one_of(
    st.booleans().map(lambda value: ({"type": "boolean"}, value)),
    st.integers(-(2**70), 2**70).map(lambda value: ({"type": "integer"}, value)),
    numbers.map(lambda value: ({"type": "number"}, value)),
    texts.map(lambda value: ({"type": "string"}, value)),
    st.just(({"type": "null"}, None)),
    scalars.map(lambda value: ({"enum": [value]}, value)),
    values.map(lambda value: ({}, value)),
    st.binary(max_size=5).map(
        lambda value: ({"type": "string", "contentEncoding": "base64"}, msgspec.to_builtins(value))
    ),
    of_format("date-time", st.datetimes(timezones=st.none() | st.just(datetime.UTC))),
    of_format("date", st.dates()),
    of_format("time", st.times()),
    of_format("duration", st.timedeltas()),
    of_format("uuid", st.uuids().map(lambda one: uuid.UUID(int=one.int))),
    st.tuples(formats, texts).map(lambda pair: ({"type": "string", "format": pair[0]}, pair[1])),
)


def object_of(members: dict[str, Pair], title: str, closed: bool) -> Pair:
    schema = {
        "type": "object",
        "title": title,
        "properties": {name: pair[0] for name, pair in members.items()},
        "required": list(members),
    }
    return schema | ({"additionalProperties": False} if closed else {}), {n: pair[1] for n, pair in members.items()}


def array_of(places: list[Pair], old: bool) -> Pair:
    return {"type": "array", "items" if old else "prefixItems": [pair[0] for pair in places]}, [p[1] for p in places]


def repeated(pair: Pair, times: int) -> Pair:
    return {"type": "array", "items": pair[0]}, [pair[1]] * times


def option_of(pair: Pair, others: list[Pair], place: int) -> Pair:
    options = [other[0] for other in others]
    options.insert(place % (len(options) + 1), pair[0])
    return {"anyOf": options}, pair[1]


def pairs_around(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    return st.one_of(
        st.builds(object_of, st.dictionaries(names, inner, max_size=4), names, st.booleans()),
        st.builds(array_of, st.lists(inner, max_size=3), st.just(False)),
        st.builds(repeated, inner, st.integers(0, 3)),
        st.builds(option_of, inner, st.lists(inner, max_size=3), st.integers(0, 3)),
        inner.map(lambda pair: ({"type": "object", "additionalProperties": pair[0]}, {"a": pair[1], "b": pair[1]})),
        inner.map(lambda pair: ({"allOf": [pair[0]]}, pair[1])),
    )


pairs: st.SearchStrategy[Pair] = st.recursive(leaves, pairs_around, max_leaves=8)


# --- properties -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_is_caught(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if rebuilding raised an exception that only the last resort has caught."""
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def result_of(schema: Any, structured: Any) -> Any:
    """The value that `call_tool` returns for structured content."""
    known = KnownTool(Tool("t", {"type": "object"}, output_schema=schema))
    return build_tool_result("t", CallToolResult([], structured), known, msgspec.UNSET, raise_on_error=True)


def is_unpacked(schema: Any) -> bool:
    return list(schema.get("properties", ())) == ["result"]


@settings(max_examples=EXAMPLES)
@given(any_object, values)
@example({"type": []}, {})
@example({"anyOf": []}, {})
@example({"type": "object", "required": True}, {})
@example({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}]}}}, {})
def test_no_schema_withholds_a_result(schema: Any, structured: Any) -> None:
    try:
        result = result_of(schema, structured)
    except BadAnswer:
        assert not jsonschema_rs.validator_for(schema, validate_formats=False).is_valid(structured)
    else:
        assert result.structured == structured


@settings(max_examples=EXAMPLES)
@given(pairs, st.sampled_from(DRAFTS[2:]))
def test_result_satisfying_its_schema_is_returned(pair: Pair, draft: str) -> None:
    schema, structured = {**pair[0], "$schema": draft}, pair[1]
    assert result_of(schema, structured).structured == structured


def same(rebuilt: Any, sent: Any) -> bool:
    """Return whether a value equals the sent one, in other types. In an object with attributes, an absent member is
    None.
    """
    if isinstance(sent, dict):
        members = rebuilt if isinstance(rebuilt, dict) else members_of(rebuilt)
        there, wanted = without_nulls(members), without_nulls(sent)
        return there.keys() == wanted.keys() and all(same(there[name], inner) for name, inner in wanted.items())
    if isinstance(sent, list):
        return len(rebuilt) == len(sent) and all(map(same, rebuilt, sent))
    if isinstance(rebuilt, datetime.datetime | datetime.date | datetime.time | datetime.timedelta | uuid.UUID | bytes):
        return msgspec.convert(sent, type(rebuilt)) == rebuilt
    if isinstance(rebuilt, Decimal):
        return repr(rebuilt) == repr(Decimal(sent))
    return rebuilt == sent


def members_of(instance: Any) -> dict[str, Any]:
    return {field.encode_name: getattr(instance, field.name) for field in msgspec.structs.fields(instance)}


def without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


@settings(max_examples=EXAMPLES)
@given(pairs)
def test_rebuilding_preserves_values(pair: Pair) -> None:
    schema, structured = pair
    sent = structured["result"] if is_unpacked(schema) else structured
    assert same(rebuilder(schema)(structured), sent)
