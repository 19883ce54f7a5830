"""Hypothesis strategies for JSON Schemas: values that are valid, and values that are nearly so.

The translation covers what tools use: types, members, items, limits, patterns, formats, enumerations, references and
combinations of schemas. A keyword that it does not know restricts nothing here. So every value is validated against the
whole schema afterwards; the translation only has to make valid values likely.

This module imports Hypothesis, so callers import it on first use.
"""

import base64
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from trunkline.registry.validators import Validator
from trunkline.wire import codec

__all__ = ["invalid_values", "valid_values"]

Strategy = SearchStrategy[Any]

_EXACT: Final = 2**53  # integers up to here are exact in every JSON parser
_COMBINING: Final = ("anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions")
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_WRONG: Final[tuple[Any, ...]] = (None, True, 0, -1, 1.5, "", "x", "\0", [], [None], {}, {"x": 1})

_FORMATS: Final[Mapping[str, Callable[[], Strategy]]] = {
    "date-time": lambda: st.datetimes(timezones=st.just(UTC)).map(lambda value: value.isoformat()),
    "date": lambda: st.dates().map(lambda value: value.isoformat()),
    "time": lambda: st.times().map(lambda value: f"{value.isoformat()}Z"),
    "duration": lambda: st.integers(0, 10**6).map(lambda value: f"PT{value}S"),
    "uuid": lambda: st.uuids().map(str),
    "decimal": lambda: st.decimals(allow_nan=False, allow_infinity=False).map(str),
    "email": lambda: st.sampled_from(["ada@example.org", "a.b+c@example.com"]),
    "uri": lambda: st.sampled_from(["https://example.org/", "urn:isbn:0451450523", "file:///tmp/x"]),
    "hostname": lambda: st.sampled_from(["example.org", "localhost"]),
    "ipv4": lambda: st.ip_addresses(v=4).map(str),
    "ipv6": lambda: st.ip_addresses(v=6).map(str),
}


def valid_values(schema: Mapping[str, Any], members: Mapping[str, Strategy] | None = None) -> Strategy:
    """Return a strategy for values that a schema accepts. `members` has strategies for members of the object."""
    strategy = _Translator(schema).translate(schema, members or {})
    return strategy.filter(_validator(schema).is_valid)


def invalid_values(schema: Mapping[str, Any], members: Mapping[str, Strategy] | None = None) -> Strategy:
    """Return a strategy for objects that a schema refuses because of one change to a valid object: a member is missing,
    unknown, of another type or just beyond a limit."""
    properties: dict[str, Any] = dict(schema.get("properties") or {})
    is_valid = _validator(schema).is_valid

    def changed(valid: dict[str, Any]) -> Strategy:
        changes: list[Strategy] = [st.just({**valid, "unexpected": 1})]
        if valid:
            missing = st.sampled_from(sorted(valid))
            changes.append(missing.map(lambda name: {other: valid[other] for other in valid if other != name}))
        for name, inner in properties.items():
            for wrong in (_WRONG, _beyond_limits(inner)):
                values: Strategy = st.sampled_from(wrong) if wrong else st.nothing()
                changes.append(values.map(lambda value, name=name: {**valid, name: value}))
        return st.one_of(changes)

    return valid_values(schema, members).flatmap(changed).filter(lambda value: not is_valid(value))


def _validator(schema: Mapping[str, Any]) -> Validator:
    return Validator(schema, "a fuzzed tool")


def _beyond_limits(schema: Any) -> list[Any]:
    """Return values just beyond the limits of a schema."""
    if not isinstance(schema, dict):
        return []
    limits = cast("dict[str, Any]", schema)
    steps = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
    beyond: list[Any] = [limits[name] + step for name, step in steps.items() if name in limits]
    if "maxLength" in limits:
        beyond.append("x" * (limits["maxLength"] + 1))
    if limits.get("minLength"):
        beyond.append("x" * (limits["minLength"] - 1))
    return beyond


class _Translator:
    """Translates the parts of one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._references: dict[str, Strategy] = {}

    def translate(self, schema: Any, members: Mapping[str, Strategy] | None = None) -> Strategy:
        """Return a strategy for a schema."""
        if not isinstance(schema, Mapping):
            return st.nothing() if schema is False else self._any_json()
        known = dict(cast("Mapping[str, Any]", schema))
        if "const" in known:
            return st.just(known["const"])
        if "enum" in known:
            return st.sampled_from(list(known["enum"]))
        if any(name in known for name in ("$ref", "allOf", "anyOf", "oneOf")):
            return self._combination(known)
        kinds = known.get("type", _TYPES if "properties" not in known else "object")
        names = [kinds] if isinstance(kinds, str) else list(kinds)
        if "type" not in known and not known.keys() - {"description", "title", "default", "examples"}:
            return self._any_json()
        return st.one_of([self._typed(str(kind), known, members or {}) for kind in names])

    def _combination(self, schema: dict[str, Any]) -> Strategy:
        """Return a strategy for a reference, or for a choice or a sum of schemas, with the keywords beside it."""
        beside = {name: value for name, value in schema.items() if name not in _COMBINING}
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]))
        if "allOf" in schema:
            for part in schema["allOf"]:
                beside = _merge(beside, self._resolve(part))
            return self.translate(beside)
        options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        return st.one_of([self.translate(_merge(beside, option) if beside else option) for option in options])

    def _resolve(self, schema: Any) -> dict[str, Any]:
        """Return a schema, or the one that it refers to."""
        while isinstance(schema, Mapping) and "$ref" in schema:
            schema = self._find(str(cast("Mapping[str, Any]", schema)["$ref"]))
        return dict(cast("Mapping[str, Any]", schema)) if isinstance(schema, Mapping) else {}

    def _find(self, reference: str) -> Any:
        found: Any = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            found = found[name.replace("~1", "/").replace("~0", "~")]
        return found

    def _reference(self, reference: str) -> Strategy:
        if reference not in self._references:
            self._references[reference] = st.deferred(lambda: self.translate(self._find(reference)))
        return self._references[reference]

    def _typed(self, kind: str, schema: dict[str, Any], members: Mapping[str, Strategy]) -> Strategy:
        match kind:
            case "object":
                return self._object(schema, members)
            case "array":
                return self._array(schema)
            case "string":
                return _text(schema)
            case "integer":
                return _integer(schema)
            case "number":
                return st.one_of(_float(schema), _integer(schema))
            case "boolean":
                return st.booleans()
            case _:
                return st.none()

    def _object(self, schema: dict[str, Any], members: Mapping[str, Strategy]) -> Strategy:
        required, extra = set(schema.get("required", ())), schema.get("additionalProperties", True)
        properties: dict[str, Any] = {**dict.fromkeys(sorted(required), extra), **schema.get("properties", {})}
        made = {name: members[name] if name in members else self.translate(inner) for name, inner in properties.items()}
        fixed = st.fixed_dictionaries(
            {name: made[name] for name in made if name in required},
            optional={name: made[name] for name in made if name not in required},
        )
        if extra is False:
            return fixed
        names = st.text(min_size=1, max_size=10).filter(lambda name: name not in properties)
        least = max(0, schema.get("minProperties", 0) - len(required))
        others = st.dictionaries(names, self.translate(extra), min_size=least, max_size=least + 2)
        return st.builds(_add_members, fixed, others)

    def _array(self, schema: dict[str, Any]) -> Strategy:
        first = [self.translate(item) for item in schema.get("prefixItems", ())]
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        items = self.translate(schema.get("items", True))
        size = {"min_size": max(0, least - len(first)), "max_size": None if most is None else max(0, most - len(first))}
        unique = codec.to_json if schema.get("uniqueItems") else None
        rest = st.lists(items, unique_by=unique, **size)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return rest if not first else st.builds(_concatenate, st.tuples(*first), rest)

    def _any_json(self) -> Strategy:
        plain = st.none() | st.booleans() | st.integers(-_EXACT, _EXACT) | st.text(max_size=20)
        names = st.text(max_size=10)
        return st.recursive(plain, lambda one: st.lists(one, max_size=3) | st.dictionaries(names, one, max_size=3))


def _add_members(own: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**more, **own}


def _concatenate(first: tuple[Any, ...], rest: list[Any]) -> list[Any]:
    return [*first, *rest]


def _merge(one: dict[str, Any], other: Any) -> dict[str, Any]:
    """Return the keywords of two schemas that both apply, as far as that is simple."""
    if not isinstance(other, Mapping):
        return one
    added = dict(cast("Mapping[str, Any]", other))
    merged = {**one, **added}
    if "properties" in one and "properties" in added:
        merged["properties"] = {**one["properties"], **added["properties"]}
    if "required" in one and "required" in added:
        merged["required"] = [*one["required"], *added["required"]]
    return merged


def _text(schema: dict[str, Any]) -> Strategy:
    least, most = schema.get("minLength", 0), schema.get("maxLength")

    def fits(text: str) -> bool:
        return len(text) >= least and (most is None or len(text) <= most)

    if "pattern" in schema:
        return st.from_regex(str(schema["pattern"])).filter(fits)
    if schema.get("contentEncoding") == "base64":
        return st.binary().map(lambda value: base64.b64encode(value).decode()).filter(fits)
    if (make := _FORMATS.get(str(schema.get("format")))) is not None:
        return make().filter(fits)
    return st.text(min_size=least, max_size=most)


def _integer(schema: dict[str, Any]) -> Strategy:
    step = schema.get("multipleOf", 1)
    low, high = schema.get("minimum", -_EXACT), schema.get("maximum", _EXACT)
    low = max(low, schema.get("exclusiveMinimum", low - 1) + 1)
    high = min(high, schema.get("exclusiveMaximum", high + 1) - 1)
    first, last = -int(-low // step), int(high // step)
    return st.nothing() if first > last else st.integers(first, last).map(lambda count: _whole(count * step))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _float(schema: dict[str, Any]) -> Strategy:
    if "multipleOf" in schema:
        return _integer(schema)
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return st.floats(
        schema.get("minimum", low),
        schema.get("maximum", high),
        allow_nan=False,
        allow_infinity=False,
        exclude_min=low is not None and "minimum" not in schema,
        exclude_max=high is not None and "maximum" not in schema,
    )
