"""Upper bounds for the work that a JSON Schema can cause, found in linear time before any of it is done.

A schema of 2 kB can ask for billions of steps: definitions that refer to others twice double with each level, and so do
`unevaluatedProperties` inside of each other. Neither a timeout nor a thread helps against that, since validation holds
the interpreter's lock until it is done. So the steps are counted first.

The bound is for one value inside of an instance: of the schemas that are about the value itself (`allOf`, `$ref`), all
count; of those that are about its members (`properties`, `items`), which are for different members, the largest. A
reference counts as much as what it refers to. A reference back to a schema that it stands in counts as one step, since
validation remembers which values such a schema was applied to; if several lead back from one place, each definition can
be applied to each value.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct

__all__ = ["Complexity", "complexity", "depth_of", "resolve_reference", "size_of"]

_MOST_PARTS: Final = 100_000  # of a schema, as `size_of` counts
_DEEPEST: Final = 150  # schemas inside of each other, with references followed
_ENOUGH: Final = 10**9  # no more is counted
_CHARACTERS: Final = 8  # of a text that count as much as one value
_UNEVALUATED: Final = 4  # what is inside is applied again to find out what was evaluated; measured: 2.5 times

# Keywords that hold schemas for the value itself, for members of which each has only one, and for any members.
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_IN_PLACE_NAMED: Final = ("dependentSchemas", "dependencies")
_MEMBER: Final = ("items", "prefixItems", "additionalItems", "additionalProperties")
_MEMBER_NAMED: Final = ("properties",)
_MEMBERS: Final = ("contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema")
_MEMBERS_NAMED: Final = ("patternProperties",)
_LISTS: Final = ("enum", "const", "required", "dependentRequired")  # compared one by one
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,5}")
_ELSEWHERE: Final = ("$dynamicRef", "$recursiveRef")

Schema = Mapping[str, Any]


class Complexity(Struct, frozen=True):
    """Bounds for a schema."""

    steps: int  # to validate one value inside of an instance, whatever it is
    expanded: int  # schemas, if each reference were replaced by what it refers to
    loops: int  # references back from one place: the factor by which explaining a failure grows with each level


def complexity(schema: Schema) -> Complexity | None:
    """The bounds for a schema; None if it is too large, too deep, or refers to what cannot be found by reading it."""
    if size_of(schema, _MOST_PARTS) > _MOST_PARTS:
        return None
    reader = _CostCounter(schema)
    try:
        cost = reader.cost_of(schema, 0)
    except _Unbounded:
        return None
    definitions = len(reader.known) if reader.loops > 1 else 1
    return Complexity(min(cost.steps * definitions, _ENOUGH), cost.expanded, reader.loops)


def size_of(value: Any, limit: int) -> int:
    """The number of values inside of a value, itself included, with long texts counting as several; anything above
    `limit` if there are more than that."""
    size, waiting = 0, [value]
    while waiting and size <= limit:
        one = waiting.pop()
        size += 1
        if isinstance(one, str):
            size += len(one) // _CHARACTERS
        elif isinstance(one, Mapping):
            members = cast("Mapping[str, Any]", one)
            waiting += members.values()
            size += sum(map(len, members)) // _CHARACTERS
        elif isinstance(one, list | tuple):
            waiting += cast("list[Any]", one)
    return size


def depth_of(value: Any, limit: int) -> int:
    """How many objects and lists stand inside of each other, at most `limit`."""
    depth, level = 0, [value]
    while depth < limit and (level := [inner for one in level for inner in _inside(one)]):
        depth += 1
    return depth


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


class _Unbounded(Exception):
    """The work cannot be bounded."""


class _Cost(NamedTuple):
    """Steps for one value, schemas with references replaced, and references that lead back."""

    steps: int
    expanded: int
    loops: int


class _CostCounter:
    """Reads one schema, each definition once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._open: set[str] = set()  # references that are being followed
        self.known: dict[str, _Cost] = {}
        self.loops = 0

    def cost_of(self, schema: Any, depth: int) -> _Cost:
        if not isinstance(schema, Mapping):
            return _Cost(1, 1, 0)
        schema = cast("Schema", schema)
        self._check(schema, depth)
        own = 1 + sum(size_of(schema[name], _ENOUGH) for name in _LISTS if name in schema)
        same = [self.cost_of(one, depth + 1) for one in _nested_schemas(schema, _IN_PLACE, _IN_PLACE_NAMED)]
        if "$ref" in schema:
            same.append(self._cost_of_reference(schema["$ref"], depth))
        each = [self.cost_of(one, depth + 1) for one in _nested_schemas(schema, _MEMBER, _MEMBER_NAMED)]
        any_of_them = [self.cost_of(one, depth + 1) for one in _nested_schemas(schema, _MEMBERS, _MEMBERS_NAMED)]
        added = [*same, *any_of_them]
        steps = own + sum(cost.steps for cost in added) + max((cost.steps for cost in each), default=0)
        loops = sum(cost.loops for cost in added) + max((cost.loops for cost in each), default=0)
        expanded = 1 + sum(cost.expanded for cost in (*added, *each))
        if "unevaluatedItems" in schema or "unevaluatedProperties" in schema:
            steps *= _UNEVALUATED
        self.loops = max(self.loops, loops := min(loops, _ENOUGH))
        return _Cost(min(steps, _ENOUGH), min(expanded, _ENOUGH), loops)

    def _check(self, schema: Schema, depth: int) -> None:
        """Refuse what makes references mean something else than they seem to, and what is too deep."""
        named = ("$id" in schema or isinstance(schema.get("id"), str)) and depth > 0
        if named or depth > _DEEPEST or any(name in schema for name in _ELSEWHERE):
            raise _Unbounded

    def _cost_of_reference(self, reference: Any, depth: int) -> _Cost:
        # Anchors, escapes and other documents are not resolved here.
        if not isinstance(reference, str) or "%" in reference or (reference != "#" and reference[:2] != "#/"):
            raise _Unbounded
        if reference in self._open:
            return _Cost(1, 1, 1)
        if reference not in self.known:
            self._open.add(reference)
            try:
                found = resolve_reference(self._root, reference)
            except LookupError:
                raise _Unbounded from None
            self.known[reference] = self.cost_of(found, depth + 1)
            self._open.discard(reference)
        return self.known[reference]


def resolve_reference(root: Schema, reference: str) -> Any:
    """The schema that a reference within a document (`#/$defs/a`) refers to. Raises `LookupError` if there is none."""
    found: Any = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = cast("Schema", found)[name]
        elif isinstance(found, list) and _INDEX.fullmatch(name) and int(name) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(name)]
        else:
            raise LookupError(f"there is no schema at {reference}")
    return found


def _nested_schemas(schema: Schema, keywords: Iterable[str], named: Iterable[str]) -> Iterable[Any]:
    """The schemas that some keywords hold: one or a list, or by name."""
    for keyword in keywords:
        inner: Any = schema.get(keyword)
        if isinstance(inner, list):
            yield from cast("list[Any]", inner)
        elif isinstance(inner, Mapping):
            yield inner
    for keyword in named:
        inner = schema.get(keyword)
        if isinstance(inner, Mapping):
            yield from cast("Schema", inner).values()
