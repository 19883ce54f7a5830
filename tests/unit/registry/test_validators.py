"""JSON Schema: derived from types, and compiled from handwritten ones."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import jsonschema_rs
import pytest
from msgspec import Meta, Struct

from trunkline.config import Settings
from trunkline.errors import InvalidParams, RegistrationError
from trunkline.registry.json_schema import schema_of_type
from trunkline.registry.prompts import make_text_prompt
from trunkline.registry.validators import Fault, ReplacedValidator, Validator, make_validator


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(Struct):
    x: int
    y: int = 0


@dataclass
class Node:
    name: str
    children: "list[Node]" = field(default_factory=list)


class Options(TypedDict, total=False):
    colour: Colour


POINT = {
    "title": "Point",
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
}


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Annotated[int, Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Colour, {"title": "Colour", "type": "string", "enum": ["red", "blue"]}),
        (Point, POINT),
        (list[Point], {"type": "array", "items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": POINT}}),
    ],
)
def test_type_has_self_contained_schema(kind: Any, schema: dict[str, Any]) -> None:
    assert schema_of_type(kind) == schema
    jsonschema_rs.meta.validate(schema)


def test_recursive_type_refers_to_itself() -> None:
    made = schema_of_type(Node)

    assert made["type"] == "object"
    assert made["$defs"]["Node"]["properties"]["children"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Node"},
        "default": [],
    }
    assert jsonschema_rs.is_valid(made, {"name": "a", "children": [{"name": "b"}]})
    assert not jsonschema_rs.is_valid(made, {"name": "a", "children": [{"name": 1}]})


def test_only_needed_definitions_are_included() -> None:
    made = schema_of_type(Options)

    assert list(made["$defs"]) == ["Colour"]
    assert made["properties"] == {"colour": {"$ref": "#/$defs/Colour"}}


@pytest.mark.parametrize("kind", [complex, list[complex], dict[str, complex] | None, Annotated[complex, "where"]])
def test_type_without_json_has_no_schema(kind: Any) -> None:
    with pytest.raises(TypeError, match="complex is not supported, since it has no JSON form"):
        schema_of_type(kind)


# --- compiled schemas ----------------------------------------------------------------------------

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "pattern": "^[a-z]+$"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["query"],
}


def test_valid_value_has_no_faults() -> None:
    validator = Validator(SEARCH, "search")

    assert validator.accepts({"query": "abc", "limit": 1})
    assert validator.faults({"query": "abc", "limit": 1}) == []


@pytest.mark.row("T11")
@pytest.mark.parametrize(
    ("value", "path", "rule"),
    [
        ({"query": 5}, "$.query", "type"),
        ({}, "$", "required"),
        ({"query": "a", "limit": 1001}, "$.limit", "maximum"),
        ({"query": "A1"}, "$.query", "pattern"),
        ({"query": "a", "tags": ["x", 2]}, "$.tags[1]", "type"),
    ],
)
def test_schema_rules_are_enforced_and_explained(value: Any, path: str, rule: str) -> None:
    validator = Validator(SEARCH, "search")

    assert not validator.accepts(value)
    (fault,) = validator.faults(value)
    assert (fault.path, fault.rule) == (path, rule)
    assert fault.message


def test_at_most_twenty_faults_are_listed() -> None:
    validator = Validator({"type": "array", "items": {"type": "integer"}}, "list")

    assert [fault.path for fault in validator.faults(["a", 1, "b"])] == ["$[0]", "$[2]"]
    assert len(validator.faults(["a"] * 50)) == 20


def test_fault_of_a_not_schema_has_the_root_path() -> None:
    (fault,) = Validator({"not": {}}, "nothing").faults(1)

    assert isinstance(fault, Fault)
    assert fault.path == "$"


@pytest.mark.row("X30")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        # Only Draft 4 reads exclusiveMaximum as a switch, only Draft 7 has no prefixItems, and 2020-12 is the default.
        ({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 5, "exclusiveMaximum": True}, 5),
        ({"$schema": "http://json-schema.org/draft-06/schema#", "exclusiveMaximum": 5}, 5),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}, [1]),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "dependentRequired": {"a": ["b"]}}, {"a": 1}),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "items": [{"type": "string"}]}, [1]),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{"type": "string"}]}, [1]),
        ({"prefixItems": [{"type": "string"}]}, [1]),
    ],
)
def test_schema_draft_defaults_to_2020_12(schema: Any, value: Any) -> None:
    assert not Validator(schema, "it").accepts(value)


@pytest.mark.row("X30")
def test_keyword_of_other_draft_is_ignored() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{"type": "string"}]}

    assert Validator(schema, "it").accepts([1])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "properties": 5},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/$defs/missing"},
    ],
)
def test_invalid_schema_is_refused_with_reason(schema: Any) -> None:
    with pytest.raises(RegistrationError, match=r"^the schema of tool 'x' is not valid: [^\n]+$") as caught:
        Validator(schema, "tool 'x'")

    assert caught.value.kind == "tool_schema_invalid"


@pytest.mark.parametrize(
    "where", ["https://example.com/a.json", "http://127.0.0.1:9/a.json", "file:///etc/hosts", "b.json"]
)
@pytest.mark.parametrize("draft", ["draft-04/schema#", "draft-06/schema#", "draft-07/schema#", None])
def test_external_reference_is_never_followed(where: str, draft: str | None) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": where}}}
    if draft is not None:
        schema["$schema"] = f"http://json-schema.org/{draft}"
    with pytest.raises(RegistrationError, match="is not valid"):
        Validator(schema, "it")


def test_internal_reference_is_followed() -> None:
    validator = Validator({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}, "it")

    assert validator.accepts([1])
    assert [fault.path for fault in validator.faults(["a"])] == ["$[0]"]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_deeply_nested_value_raises_recursion_error() -> None:
    unique = Validator({"uniqueItems": True}, "it")

    with pytest.raises(RecursionError, match="the value is nested too deep"):
        unique.accepts([nested(300), nested(301)])
    with pytest.raises(RecursionError):
        unique.faults([nested(300), nested(301)])


def test_deep_value_has_no_listed_reasons() -> None:
    both = Validator({"allOf": [{"type": "object"}, {"uniqueItems": True}]}, "it")

    [fault] = both.faults([nested(300), nested(301)])
    assert fault.message == "the value does not fit the schema, and is nested too deep to list the reasons"


# --- of another library ---------------------------------------------------------------------------


def accept_even(schema: Mapping[str, Any]) -> Callable[[Any], Iterator[tuple[str, str, str]]]:
    """A library that knows one rule, and finds thirty faults."""
    if "even" not in schema:
        raise ValueError("unknown rule")
    return lambda value: (("$.n", "even", f"fault {i}") for i in range(30 * (value["n"] % 2)))


def test_replaced_validator_accepts_values_without_faults() -> None:
    validator = make_validator({"even": True}, "tool 'count'", accept_even)
    assert validator.accepts({"n": 2})
    assert validator.faults({"n": 2}) == []
    assert not validator.accepts({"n": 3})


def test_replaced_validator_lists_twenty_faults() -> None:
    validator = ReplacedValidator(accept_even, {"even": True}, "tool 'count'")
    assert validator.can_explain({"n": 3})
    assert validator.faults({"n": 3}) == [Fault("$.n", "even", f"fault {i}") for i in range(20)]


def test_schema_that_another_library_refuses_is_not_registered() -> None:
    with pytest.raises(RegistrationError, match="the schema of tool 'count' is not valid: unknown rule") as refused:
        make_validator({}, "tool 'count'", accept_even)
    assert refused.value.kind == "tool_schema_invalid"


def test_prompt_is_validated_by_another_library() -> None:
    entry = make_text_prompt(
        "{n}",
        Settings(),
        name="it",
        input_schema={"even": True},
        compile_schema=lambda _: lambda _: [("$", "no", "no")],
    )
    with pytest.raises(InvalidParams, match=r"invalid arguments for prompt 'it': \$: no"):
        entry.arguments({"n": "3"})
