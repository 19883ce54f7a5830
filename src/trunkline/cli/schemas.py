"""Reading JSON Schemas of servers. Nothing here assumes that a schema is valid, small or free of cycles."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from trunkline.registry.complexity import resolve_reference

__all__ = [
    "Node",
    "Schema",
    "as_mapping",
    "as_sequence",
    "describe_path",
    "required_names",
    "resolve",
    "type_names",
    "walk",
]

Schema = Mapping[str, Any]

MAX_NODES: Final = 20_000
"""Schemas inside of one schema that are looked at."""

_MAX_REFERENCES: Final = 20
_ONE: Final = (
    "items",
    "additionalProperties",
    "additionalItems",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_MANY: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")


class Node(NamedTuple):
    """A schema inside of a schema."""

    path: tuple[str, ...]  # of keywords and names, from the root
    schema: Schema

    @property
    def place(self) -> str:
        """The path as text; the names of members alone, where there are no other keywords."""
        return describe_path(self.path)


def describe_path(path: Sequence[str]) -> str:
    """Return a path as text: `user.name` for the members of objects, `[]` for the items of arrays."""
    text = ""
    steps = iter(path)
    for step in steps:
        if step == "properties":
            text += f".{next(steps, '')}"
        elif step == "items":
            text += "[]"
        else:
            text += f"/{step}"
    return text.removeprefix(".")


def as_mapping(value: Any) -> Schema:
    """Return a JSON object as it is, and an empty one for another value."""
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def as_sequence(value: Any) -> Sequence[Any]:
    """Return a JSON array as it is, and an empty one for another value."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def required_names(schema: Schema) -> frozenset[str]:
    """Return the names of the required members of an object."""
    return frozenset(name for name in as_sequence(schema.get("required")) if isinstance(name, str))


def type_names(schema: Schema) -> tuple[str, ...]:
    """Return the values of `type`; none if the schema has none."""
    kind: Any = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(one for one in as_sequence(kind) if isinstance(one, str))


def resolve(schema: Any, root: Schema) -> Schema:
    """Follow references within the document. The result is empty for a reference that leads nowhere, elsewhere or in a
    circle."""
    for _ in range(_MAX_REFERENCES):
        found = as_mapping(schema)
        reference = found.get("$ref")
        if not isinstance(reference, str):
            return found
        if reference != "#" and not reference.startswith("#/"):
            return {}
        try:
            schema = resolve_reference(root, reference)
        except LookupError:
            return {}
    return {}


def walk(root: Any, limit: int = MAX_NODES) -> Iterator[Node]:
    """Yield a schema and those inside of it, without following references; at most `limit`."""
    waiting = [Node((), as_mapping(root))]
    count = 0
    while waiting and count < limit:
        node = waiting.pop()
        count += 1
        yield node
        waiting.extend(reversed([*_inside(node)]))


def _inside(node: Node) -> Iterator[Node]:
    path, schema = node
    for keyword in schema:
        inner: Any = schema[keyword]
        if keyword in _ONE and isinstance(inner, Mapping):
            yield Node((*path, keyword), cast("Schema", inner))
        elif keyword in _MANY and isinstance(inner, list):
            for number, one in enumerate(cast("list[Any]", inner)):
                if isinstance(one, Mapping):
                    yield Node((*path, keyword, str(number)), cast("Schema", one))
        elif keyword in _NAMED and isinstance(inner, Mapping):
            for name, one in cast("Schema", inner).items():
                if isinstance(one, Mapping):
                    yield Node((*path, keyword, name), cast("Schema", one))
