"""Upper bounds for the validation cost of a JSON Schema, computed in linear time before any validation.

A schema of 2 kB can require billions of steps: definitions that refer to others twice double with each level, and so do
nested `unevaluatedProperties`. Neither a timeout nor a thread helps, since validation holds the interpreter's lock
until it is done. So the steps are counted first.

The bound is for one value inside of an instance: schemas for the value itself (`allOf`, `$ref`) add up; of the schemas
for its members (`properties`, `items`), which apply to different members, the largest counts. A reference costs as much
as its target. A reference back to an enclosing schema counts as one step, since validation remembers which values such
a schema was applied to; if several references lead back from one place, each definition can be applied to each value.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct

__all__ = ["Complexity", "complexity", "depth_of", "resolve_reference", "size_of"]

_MOST_PARTS: Final = 100_000  # size of a schema, as counted by `size_of`
_DEEPEST: Final = 150  # nested schemas, with references followed
_ENOUGH: Final = 10**9  # counting stops here
_CHARACTERS: Final = 8  # characters of a string that count as one value
_UNEVALUATED: Final = 4  # inner schemas are applied again to find evaluated members; measured: 2.5 times

# Keywords with schemas for the value itself, for members of which each has only one, and for any members.
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

    steps: int  # to validate one value inside of an instance
    expanded: int  # schemas, if each reference were replaced by its target
    loops: int  # references back from one place: the factor by which explaining a failure grows with each level


def complexity(schema: Schema) -> Complexity | None:
    """Return the bounds for a schema; None if it is too large, too deep, or has references that cannot be resolved
    statically."""
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
    """Count the values inside of a value, including itself; long strings count as several. The result is above `limit`
    if there are more."""
    size, waiting = 0, [value]
    while waiting and size <= limit:
        one = waiting.pop()
        size += 1
        if isinstance(one, str):
            size += len(one) // _CHARACTERS
        elif type(one) is dict or isinstance(one, Mapping):  # the type of decoded objects, without the cost of an ABC
            members = cast("Mapping[str, Any]", one)
            waiting += members.values()
            size += sum(map(len, members)) // _CHARACTERS
        elif isinstance(one, (list, tuple)):
            waiting += cast("list[Any]", one)
    return size


def depth_of(value: Any, limit: int) -> int:
    """Return the nesting depth of objects and lists, at most `limit`."""
    depth, level = 0, [value]
    while depth < limit and (level := [inner for one in level for inner in _inside(one)]):
        depth += 1
    return depth


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


class _Unbounded(Exception):
    """The cost cannot be bounded."""


class _Cost(NamedTuple):
    """Steps for one value, schemas with references replaced, and references that lead back."""

    steps: int
    expanded: int
    loops: int


class _CostCounter:
    """Computes the cost of one schema; visits each definition once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._open: set[str] = set()  # references on the current path
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
        """Reject keywords that change the meaning of references, and schemas that are nested too deep."""
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
    """Return the target of a reference within a document (`#/$defs/a`). Raise `LookupError` if it does not exist."""
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
    """Yield the schemas in some keywords: one, a list, or by name."""
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
