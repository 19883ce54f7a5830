"""Differences between two versions of a JSON Schema: what the new one no longer accepts, and what it accepts besides.

A *narrowed* schema rejects values that the old one accepted; a *widened* one accepts values that the old one rejected.
Whether that breaks a caller depends on the direction: arguments must not be narrowed, results must not be widened. The
comparison is careful: it reports a narrowing that it cannot rule out (`changed`), but never misses one, with a single
exception: a new optional member is `added`, although the old schema may have accepted other values under that name.

A pair of schemas is not compared again inside of its own comparison, so schemas that refer to themselves end. The
number of comparisons is limited; a schema that needs more is reported as changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from trunkline.cli.schemas import Schema, as_mapping, as_sequence, required_names, resolve, type_names
from trunkline.wire import codec

__all__ = ["Effect", "SchemaChange", "compare_schemas"]

Effect = Literal["narrowed", "widened", "changed", "removed", "added", "required", "optional"]
"""`changed` is both narrowed and widened, as far as can be decided. `removed` and `added` are about members of objects,
`required` is a member that became required, `optional` one that no longer is."""


class SchemaChange(NamedTuple):
    """One difference, and where it is: the names of members, with `[]` for the items of an array."""

    path: str
    effect: Effect
    text: str


_MAX_COMPARISONS: Final = 5_000
_MAX_DEPTH: Final = 60
_TYPES: Final = frozenset({"string", "number", "boolean", "null", "object", "array"})
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_ANNOTATIONS: Final = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id", "$anchor", "$defs", "definitions"),
    }
)
_COMPARED: Final = frozenset(
    {
        *("type", "enum", "const", "properties", "required", "additionalProperties", "items"),
        *_LOWER,
        *_UPPER,
    }
)  # keywords with a rule of their own; every other one is compared for equality
_DEPENDENT: Final = frozenset(
    {
        *("if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
        *("prefixItems", "patternProperties", "additionalItems"),
    }
)  # keywords that change the meaning of others
_OFF_BY_DEFAULT: Final = frozenset({"uniqueItems", "nullable"})


def compare_schemas(old: Any, new: Any) -> list[SchemaChange]:
    """Return the differences from one schema to another."""
    comparison = _Comparison(as_mapping(old), as_mapping(new))
    comparison.compare(_normalized(old), _normalized(new), "", 0)
    if comparison.too_large and not _same(old, new):
        comparison.add("", "changed", "the schema is too large to be compared in all details")
    return list(dict.fromkeys(comparison.found))


class _Alternative(NamedTuple):
    """One schema of a union, without unions of its own."""

    schema: Schema
    types: frozenset[str]  # `integer` only without `number`


class _Comparison:
    """The comparison of two documents."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self.found: list[SchemaChange] = []
        self.too_large = False
        self._old = old
        self._new = new
        self._active: set[tuple[int, int]] = set()  # the pairs that enclose the current one
        self._compared: list[tuple[Schema, Schema]] = []  # held, so that their ids stay theirs

    def add(self, path: str, effect: Effect, text: str) -> None:
        self.found.append(SchemaChange(path, effect, text))

    def compare(self, old: Any, new: Any, path: str, depth: int) -> None:
        """Compare two schemas at the same place."""
        if old is False or new is False:
            if old is not new:
                self.add(
                    path,
                    "widened" if old is False else "narrowed",
                    "no value is accepted" if new is False else "values are accepted",
                )
            return
        before, after = resolve(old, self._old), resolve(new, self._new)
        pair = (id(before), id(after))
        if pair in self._active:
            return
        self._compared.append((before, after))
        if len(self._compared) > _MAX_COMPARISONS or depth > _MAX_DEPTH:
            self.too_large = True
            return
        if _is_unresolved(old, before) or _is_unresolved(new, after):
            if not _same(as_mapping(old), as_mapping(new)):
                self.add(path, "changed", "a reference has changed that cannot be resolved")
            return
        self._active.add(pair)
        self._compare_unions(_flatten(before, self._old), _flatten(after, self._new), path, depth)
        self._active.remove(pair)

    # --- unions ----------------------------------------------------------------------------------

    def _compare_unions(self, old: Schema, new: Schema, path: str, depth: int) -> None:
        before, after = _alternatives(old, self._old), _alternatives(new, self._new)
        if len(before) == 1 and len(after) == 1:
            self._compare_alternatives(before[0], after[0], path, depth)
            return
        if _overlaps(old, before) or _overlaps(new, after):
            if not _same(old, new):
                self.add(path, "changed", "alternatives of `oneOf` have changed that may exclude each other")
            return
        left, gained = _without_equals(before, after)
        for one in left[:]:
            alike = [other for other in gained if other.types == one.types]
            if len(alike) == 1 and sum(other.types == one.types for other in left) == 1:
                self._compare_alternatives(one, alike[0], path, depth)
                left.remove(one)
                gained.remove(alike[0])
        for one in left:
            wider = [other for other in after if _covers(other, one)]
            if not wider:
                self.add(path, "narrowed", f"{_describe(one)} is no longer accepted")
        for one in gained:
            if not any(_covers(other, one) for other in before):
                self.add(path, "widened", f"{_describe(one)} is accepted too")

    # --- one schema --------------------------------------------------------------------------------

    def _compare_alternatives(self, old: _Alternative, new: _Alternative, path: str, depth: int) -> None:
        lost, gained = _type_difference(old.types, new.types), _type_difference(new.types, old.types)
        if lost or gained:
            effect: Effect = "changed" if lost and gained else "narrowed" if lost else "widened"
            self.add(path, effect, f"the type was {_name_types(old.types)} and is {_name_types(new.types)}")
        self._compare_values(old.schema, new.schema, path)
        self._compare_limits(old.schema, new.schema, path)
        self._compare_others(old.schema, new.schema, path)
        if "object" in old.types and "object" in new.types:
            self._compare_members(old.schema, new.schema, path, depth)
        if "array" in old.types and "array" in new.types:
            before, after = old.schema.get("items", {}), new.schema.get("items", {})
            if isinstance(before, list) or isinstance(after, list):
                if not _same(before, after):
                    self.add(path, "changed", "the items have changed")
            else:
                self.compare(_normalized(before), _normalized(after), f"{path}[]", depth + 1)

    def _compare_values(self, old: Schema, new: Schema, path: str) -> None:
        before, after = _values(old), _values(new)
        if before is None and after is None:
            return
        if before is None or after is None:
            listed = ", ".join((after or before or {}).values())
            text = (
                f"only these values are accepted: {listed}" if before is None else "any value of the type is accepted"
            )
            self.add(path, "narrowed" if before is None else "widened", text)
            return
        for key in before.keys() - after.keys():
            self.add(path, "narrowed", f"the value {before[key]} is no longer accepted")
        for key in after.keys() - before.keys():
            self.add(path, "widened", f"the value {after[key]} is accepted too")

    def _compare_limits(self, old: Schema, new: Schema, path: str) -> None:
        for keyword in (*_LOWER, *_UPPER):
            before, after = old.get(keyword), new.get(keyword)
            if _same(before, after):
                continue
            sign = 1 if keyword in _LOWER else -1
            effect: Effect
            if isinstance(before, int | float) and isinstance(after, int | float):
                effect = "narrowed" if sign * after > sign * before else "widened"
            else:
                effect = "narrowed" if before is None else "widened" if after is None else "changed"
            shown = (
                "removed"
                if after is None
                else f"{_json(after)}"
                if before is None
                else f"{_json(before)} → {_json(after)}"
            )
            self.add(path, effect, f"`{keyword}`: {shown}")

    def _compare_others(self, old: Schema, new: Schema, path: str) -> None:
        for keyword in dict.fromkeys((*old, *new)):
            if keyword in _COMPARED or keyword in _ANNOTATIONS or keyword.startswith("x-"):
                continue
            before, after = old.get(keyword), new.get(keyword)
            if not _same(before, after) and (before or after or keyword not in _OFF_BY_DEFAULT):
                effect: Effect = "narrowed" if keyword not in old else "widened" if keyword not in new else "changed"
                if keyword in _DEPENDENT:
                    effect = "changed"
                self.add(path, effect, f"`{_short(keyword)}` {_verb(keyword in old, keyword in new)}")

    def _compare_members(self, old: Schema, new: Schema, path: str, depth: int) -> None:
        before, after = as_mapping(old.get("properties")), as_mapping(new.get("properties"))
        was_required, is_required = required_names(old), required_names(new)
        more_before, more_after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        for name in dict.fromkeys((*before, *after, *was_required, *is_required)):
            inner = f"{path}.{_short(name)}" if path else _short(name)
            if name in before and name not in after:
                self.add(inner, "removed", "removed")
                if more_after is not False and more_after is not True:
                    self.compare(before[name], more_after, inner, depth + 1)
            elif name in after and name not in before:
                self.add(
                    inner,
                    "required" if name in is_required else "added",
                    "new and required" if name in is_required else "new and optional",
                )
                continue
            elif name in before:
                self.compare(before[name], after[name], inner, depth + 1)
            if name in is_required and name not in was_required:
                self.add(inner, "required", "required now")
            elif name in was_required and name not in is_required and name in after:
                self.add(inner, "optional", "optional now")
        if not _same(more_before, more_after):
            self._compare_additional(more_before, more_after, path, depth)

    def _compare_additional(self, before: Any, after: Any, path: str, depth: int) -> None:
        inner = f"{path}.*" if path else "*"
        if after is False:
            self.add(inner, "narrowed", "other members are no longer accepted")
        elif before is False:
            self.add(inner, "added", "other members are accepted")
        else:
            self.compare(_normalized(before), _normalized(after), inner, depth + 1)


# --- parts of a schema ---------------------------------------------------------------------------


def _normalized(schema: Any) -> Any:
    return {} if schema is True else schema


def _is_unresolved(schema: Any, resolved: Schema) -> bool:
    return "$ref" in as_mapping(schema) and not resolved


def _flatten(schema: Schema, root: Schema) -> Schema:
    """Merge an `allOf` with a single schema into the schema around it, as generators write references with a title."""
    inner = as_sequence(schema.get("allOf"))
    if len(inner) != 1:
        return schema
    merged = resolve(inner[0], root)
    around = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
    conflicts = [key for key in around if key in merged and key not in _ANNOTATIONS]
    return schema if conflicts or not merged else {**merged, **around}


def _alternatives(schema: Schema, root: Schema) -> list[_Alternative]:
    """Return the schemas of a union, merged with the keywords around them. A union within a union stays one."""
    keyword = next((one for one in ("anyOf", "oneOf") if as_sequence(schema.get(one))), None)
    if keyword is None:
        kinds = type_names(schema)
        return [_alternative(schema)] if len(kinds) < 2 else [_alternative({**schema, "type": one}) for one in kinds]  # noqa: PLR2004 - a list
    if "anyOf" in schema and "oneOf" in schema:
        return [_alternative(schema)]
    around = {key: value for key, value in schema.items() if key != keyword and key not in _ANNOTATIONS}
    found: list[_Alternative] = []
    for one in as_sequence(schema[keyword]):
        inner = resolve(_normalized(one), root)
        if one is False or any(key in inner for key in around) or (not inner and one not in ({}, True)):
            return [_alternative(schema)]
        found.append(_alternative({**inner, **around}))
    return found


def _alternative(schema: Schema) -> _Alternative:
    kinds = frozenset(type_names(schema)) or _TYPES
    values = _values(schema)
    if values is not None and not type_names(schema):
        kinds = frozenset(_type_of_json(key) for key in values) or _TYPES
    return _Alternative(schema, kinds - {"integer"} if "number" in kinds else kinds)


def _without_equals(
    before: Sequence[_Alternative], after: Sequence[_Alternative]
) -> tuple[list[_Alternative], list[_Alternative]]:
    """Return the alternatives without those that both sides have."""
    left, gained = list(before), list(after)
    for one in before:
        equal = next((other for other in gained if _same(_plain(one.schema), _plain(other.schema))), None)
        if equal is not None and "$ref" not in codec.to_json(one.schema).decode():
            left.remove(one)
            gained.remove(equal)
    return left, gained


def _plain(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in _ANNOTATIONS}


def _covers(wide: _Alternative, narrow: _Alternative) -> bool:
    """Return whether an alternative certainly accepts everything that another one does."""
    if _type_difference(narrow.types, wide.types):
        return False
    rules = _plain(wide.schema)
    if not rules.keys() - {"type"}:
        return True
    accepted, listed = _values(wide.schema), _values(narrow.schema)
    if accepted is not None and listed is not None and not rules.keys() - {"type", "enum", "const"}:
        return listed.keys() <= accepted.keys()
    return False


def _overlaps(schema: Schema, alternatives: Sequence[_Alternative]) -> bool:
    """Return whether one value may fit several alternatives of a `oneOf`, which rejects it then."""
    if "oneOf" not in schema or len(alternatives) < 2:  # noqa: PLR2004 - a pair
        return False
    return any(not _are_disjoint(one, other) for at, one in enumerate(alternatives) for other in alternatives[at + 1 :])


def _are_disjoint(one: _Alternative, other: _Alternative) -> bool:
    if not (_expanded(one.types) & _expanded(other.types)):
        return True
    mine, theirs = _values(one.schema), _values(other.schema)
    if mine is not None and theirs is not None:
        return not mine.keys() & theirs.keys()
    if one.types | other.types != frozenset({"object"}):
        return False
    required = required_names(one.schema) & required_names(other.schema)
    for name in required:
        left = _values(as_mapping(as_mapping(one.schema.get("properties")).get(name)))
        right = _values(as_mapping(as_mapping(other.schema.get("properties")).get(name)))
        if left is not None and right is not None and not left.keys() & right.keys():
            return True
    return False


def _expanded(types: Iterable[str]) -> set[str]:
    return {"integer" if one == "number" else one for one in types}


def _type_difference(types: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """Return the types of the first set that the second does not accept."""
    return types - others - ({"integer"} if "number" in others else set[str]())


def _values(schema: Schema) -> dict[str, str] | None:
    """Return the values that a schema lists, each as it is shown; None if it lists none. Equal numbers are one."""
    if "const" in schema:
        listed: Sequence[Any] = [schema["const"]]
        if isinstance(schema.get("enum"), list):
            listed = [one for one in as_sequence(schema["enum"]) if _key(one) == _key(schema["const"])]
    elif isinstance(schema.get("enum"), list):
        listed = as_sequence(schema["enum"])
    else:
        return None
    return {_key(one): _json(one) for one in listed}


def _key(value: Any) -> str:
    return codec.to_json(_canonical(value)).decode()


def _canonical(value: Any) -> Any:
    """Return a JSON value in a form in which equal values are equal: 1.0 is 1, and members are sorted."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {name: _canonical(members[name]) for name in sorted(members)}
    return [_canonical(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def _same(old: Any, new: Any) -> bool:
    try:
        return _key(old) == _key(new)
    except RecursionError:
        return False


def _type_of_json(key: str) -> str:
    first = key[:1]
    known = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    return known.get(first, "number" if "." in key or "e" in key else "integer")


# --- words ---------------------------------------------------------------------------------------


def _name_types(types: frozenset[str]) -> str:
    return "any" if types == _TYPES else " or ".join(sorted(types))


def _describe(one: _Alternative) -> str:
    values = _values(one.schema)
    return _name_types(one.types) if values is None else " or ".join(list(values.values())[:6])


def _verb(was: bool, stays: bool) -> str:
    return "has changed" if was and stays else "was removed" if was else "was added"


def _json(value: Any) -> str:
    return _short(codec.to_json(value).decode())


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"  # noqa: PLR2004 - characters of a line
