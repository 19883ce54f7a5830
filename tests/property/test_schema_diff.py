"""Differences of JSON Schemas against a validator: no narrowing is missed, and no difference is invented."""

from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.schema_diff import compare_schemas

NAMES = st.sampled_from("abc")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 6), st.sampled_from([0.5, 1.0]), st.sampled_from(["", "x", "xyz"])
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def close(parts: tuple[dict[str, Any], set[str]]) -> dict[str, Any]:
        members, required = parts
        return {
            "type": "object",
            "properties": members,
            "required": sorted(required & members.keys()),
            "additionalProperties": False,
        }

    return st.tuples(st.dictionaries(NAMES, inner, max_size=3), st.sets(NAMES)).map(close)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    lists = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={"minItems": st.integers(0, 2), "maxItems": st.integers(0, 2)},
    )
    unions = st.tuples(st.sampled_from(["anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=3))
    return st.one_of(_objects(inner), lists, unions.map(lambda parts: {parts[0]: parts[1]}))


def _typed(name: str, **limits: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(name)}, optional=limits)


LEAVES = st.one_of(
    st.just({}),
    _typed("null"),
    _typed("boolean"),
    _typed("integer", minimum=st.integers(-1, 3), maximum=st.integers(0, 5)),
    _typed("number", minimum=st.integers(-1, 3), multipleOf=st.sampled_from([1, 2])),
    _typed("string", minLength=st.integers(0, 2), maxLength=st.integers(0, 3), pattern=st.sampled_from(["^x", "y"])),
    st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    SCALARS.map(lambda value: {"const": value}),
    st.lists(st.sampled_from(["string", "integer", "null", "number"]), min_size=1, unique=True).map(
        lambda t: {"type": t}
    ),
    SCALARS.map(lambda value: {"not": {"const": value}}),
)
SCHEMAS = st.recursive(LEAVES, _containers, max_leaves=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


def _effects(old: Any, new: Any) -> set[str]:
    return {change.effect for change in compare_schemas(old, new)}


@given(SCHEMAS)
def test_schema_equals_itself(schema: dict[str, Any]) -> None:
    assert compare_schemas(schema, schema) == []


@given(SCHEMAS, SCHEMAS, st.lists(VALUES, max_size=10))
def test_no_narrowing_is_missed(old: dict[str, Any], new: dict[str, Any], values: list[Any]) -> None:
    before, after = jsonschema_rs.validator_for(old), jsonschema_rs.validator_for(new)
    rejected = [value for value in values if before.is_valid(value) and not after.is_valid(value)]
    if rejected:
        assert _effects(old, new) & {"narrowed", "changed", "removed", "required"}


@given(SCHEMAS, SCHEMAS, st.lists(VALUES, max_size=10))
def test_no_widening_is_missed(old: dict[str, Any], new: dict[str, Any], values: list[Any]) -> None:
    before, after = jsonschema_rs.validator_for(old), jsonschema_rs.validator_for(new)
    accepted = [value for value in values if after.is_valid(value) and not before.is_valid(value)]
    if accepted:
        assert _effects(old, new) & {"widened", "changed", "added", "optional", "removed", "required"}


@given(SCHEMAS, SCHEMAS)
def test_reverse_comparison_has_reverse_effects(old: dict[str, Any], new: dict[str, Any]) -> None:
    forth, back = _effects(old, new), _effects(new, old)
    assert ("narrowed" in forth) == ("widened" in back)
    assert ("changed" in forth) == ("changed" in back)
    assert ("removed" in forth) <= bool(back & {"added", "required"})
