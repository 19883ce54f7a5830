"""Bounds for the work that a schema can cause, computed beforehand."""

import json
from typing import Any

import pytest

from trunkline.errors import RegistrationError
from trunkline.registry.complexity import Complexity, complexity, depth_of, size_of
from trunkline.registry.validators import PeerValidator, Validator, form_validator


def doubling(levels: int, how: str = "allOf", leaf: Any = None) -> dict[str, Any]:
    """Definitions that each refer to the next one twice."""
    named = {
        f"a{level}": {how: [{"$ref": f"#/$defs/a{level + 1}"}, {"$ref": f"#/$defs/a{level + 1}"}]}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/a0", "$defs": named | {f"a{levels}": leaf or {"type": "object"}}}


def steps(schema: Any) -> int | None:
    known = complexity(schema)
    return None if known is None else known.steps


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({}, Complexity(1, 1, 0)),
        ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(50)}}, Complexity(2, 51, 0)),
        ({"items": {"properties": {"a": {}}}}, Complexity(3, 3, 0)),
        ({"allOf": [{}, {}, True], "not": {}}, Complexity(5, 5, 0)),
        ({"enum": ["a", "b", [1, 2]]}, Complexity(7, 1, 0)),
        ({"patternProperties": {"a": {}, "b": {}}, "items": [{}, {}]}, Complexity(4, 5, 0)),
        ({"dependentSchemas": {"a": {}}, "dependencies": {"b": ["c"]}}, Complexity(3, 3, 0)),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, Complexity(8, 2, 0)),
        ({"prefixItems": [{"allOf": [{}, {}]}, {}], "unevaluatedItems": {}}, Complexity(20, 6, 0)),
        ({"$ref": "#/allOf/1", "allOf": [{}, {"type": "object"}]}, Complexity(4, 4, 0)),
        ({"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "null"}}}, Complexity(2, 2, 0)),
        ({"$id": "https://example.com/x", "properties": {"id": {"type": "string"}}}, Complexity(2, 2, 0)),
        ({"properties": {"children": {"items": {"$ref": "#"}}}}, Complexity(7, 7, 1)),
        (doubling(3), Complexity(30, 30, 0)),
    ],
    ids=str,
)
def test_steps_for_one_value_are_counted(schema: dict[str, Any], found: Complexity) -> None:
    assert complexity(schema) == found


def test_double_back_references_multiply_cost() -> None:
    again = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    found = complexity({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": again}}}})
    assert found is not None
    assert found.loops == 2
    everywhere = {
        f"a{i}": {"items": {"allOf": [{"$ref": f"#/$defs/a{(i + 1) % 20}"}, {"$ref": f"#/$defs/a{(i + 2) % 20}"}]}}
        for i in range(20)
    }
    bound = complexity({"$ref": "#/$defs/a0", "$defs": everywhere})
    assert bound is not None
    assert bound.loops > 1
    assert bound.steps > 20 * 3


def test_bound_is_computed_fast_and_capped() -> None:
    assert complexity(doubling(49)) == Complexity(10**9, 10**9, 0)


@pytest.mark.parametrize(
    "schema",
    [
        doubling(200),  # too deep
        {"enum": list(range(200_000))},
        {"description": "x" * 1_000_000},
        {"$ref": "#/nowhere"},
        {"$ref": "#/allOf/1", "allOf": [{}]},
        {"$ref": "#/allOf/01", "allOf": [{}, {}]},
        {"$ref": "#/allOf/" + "9" * 5000, "allOf": [{}]},
        {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}},
        {"$ref": "#/%24defs/a", "%24defs": {"a": {}}, "$defs": {"a": doubling(40)}},
        {"$ref": "https://example.com/schema"},
        {"$ref": ["#"]},
        {"$dynamicRef": "#a"},
        {"$recursiveRef": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "x:y", "$ref": "#/$defs/a", "$defs": {"a": doubling(40)}}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "allOf": [{"id": "x:y", "$ref": "#/a"}], "a": {}},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_unresolvable_schema_has_no_bound(schema: dict[str, Any]) -> None:
    assert complexity(schema) is None
    with pytest.raises(RegistrationError, match="too complex"):
        PeerValidator(schema, "a peer")


@pytest.mark.parametrize(
    ("value", "size", "depth"),
    [(1, 1, 0), ([], 1, 0), ([1, [2]], 4, 2), ({"a": {"b": (1, 2)}}, 5, 2), ("x" * 80, 11, 0), ({"x" * 80: 1}, 12, 1)],
    ids=str,
)
def test_values_are_measured(value: Any, size: int, depth: int) -> None:
    assert (size_of(value, 1000), depth_of(value, 14)) == (size, depth)


def test_measuring_stops_at_its_limit() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert depth_of(deep, 14) == 14
    assert size_of([0] * 1_000_000, 10) > 10


def test_expensive_peer_schema_is_refused() -> None:
    PeerValidator(doubling(10), "a peer")
    nested: dict[str, Any] = {"properties": {"a": {}}}
    for _ in range(15):
        nested = {"allOf": [nested], "unevaluatedProperties": False}
    for schema in (doubling(30), nested):
        with pytest.raises(RegistrationError, match="too complex"):
            PeerValidator(schema, "a peer")


def test_peer_values_are_checked_if_cheap() -> None:
    validator = PeerValidator({"items": {"enum": [[number] for number in range(10_000)]}}, "a peer")
    assert validator.can_check([[9999]] * 10)
    assert not validator.can_check([[9999]] * 1000)
    assert PeerValidator({"items": {"type": "integer"}}, "a peer").can_check([1] * 100_000)


def test_peer_patterns_are_matched_in_linear_time() -> None:
    validator = PeerValidator({"pattern": "^(a+)+$"}, "a peer")
    assert validator.accepts("a" * 100_000)
    assert not validator.accepts("a" * 100_000 + "b")
    for pattern in (r"^(a|aa)+\1b$", "^(?=a).*$", r"((\w{100}){100}){100}"):
        with pytest.raises(RegistrationError, match="not valid"):
            PeerValidator({"pattern": pattern}, "a peer")


def test_peer_formats_are_not_checked() -> None:
    seven = {"$schema": "http://json-schema.org/draft-07/schema#", "format": "regex"}
    assert PeerValidator(seven, "a peer").accepts("(")
    assert not Validator(seven, "ours").accepts("(")


def test_form_patterns_have_backtrack_limit() -> None:
    form = form_validator({"properties": {"password": {"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z]).*$"}}})
    assert form.accepts({"password": "abc1"})
    assert not form.accepts({"password": "abc"})
    assert not form_validator({"pattern": r"^(a|aa)+\1b$"}).accepts("a" * 60)
    with pytest.raises(RegistrationError, match="too large"):
        form_validator({"enum": list(range(200_000))})


def test_errors_are_explained_only_if_cheap() -> None:
    validator = Validator({"items": {"type": "string"}}, "a list")
    assert len(validator.faults([1] * 100)) == 20
    assert validator.faults(["a"] * 100_000) == []
    (fault,) = validator.faults([1] * 100_000)
    assert (fault.path, fault.rule) == ("$", "schema")
    assert "too large to list the reasons" in fault.message


def test_exponential_errors_are_not_explained() -> None:
    expression = {"anyOf": [{"$ref": "#/$defs/add"}, {"$ref": "#/$defs/subtract"}, {"type": "integer"}]}
    binary = {"type": "object", "properties": {"left": expression, "right": expression}}
    schema = {"$ref": "#/$defs/add", "$defs": {"add": binary, "subtract": binary}}
    validator, value = Validator(schema, "an expression"), json.loads('{"left":' * 40 + '"wrong"' + "}" * 40)
    assert not validator.accepts(value)
    assert [fault.rule for fault in validator.faults(value)] == ["schema"]
    assert [fault.path for fault in validator.faults({"left": "wrong"})] == ["$.left"]


def test_unbounded_own_schemas_are_explained() -> None:
    validator = Validator({"$ref": "#a", "$defs": {"a": {"$anchor": "a", "type": "string"}}}, "ours")
    assert [fault.rule for fault in validator.faults(1)] == ["type"]
