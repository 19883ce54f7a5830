"""JSON Schema: made from Python types, and compiled into validators where it arrives as JSON Schema.

Types are checked by decoding into them; the schema that is made of them is for the peer to read. A schema that was
written by hand is compiled once. References that would need a network are never followed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from trunkline.errors import RegistrationError

__all__ = ["Fault", "Validator", "of_type", "of_types"]

Schema = dict[str, Any]
_REFERENCES = "#/$defs/{name}"


class Fault(Struct, frozen=True):
    """One thing that is wrong with a value: where, by which rule, and in words."""

    path: str
    rule: str
    message: str


def of_type(kind: Any) -> Schema:
    """The schema of a type; what it refers to stands under `$defs`, the type itself at the root."""
    return of_types([kind])[0]


def of_types(kinds: Sequence[Any]) -> list[Schema]:
    """The schema of each type."""
    roots, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    return [_rooted(root, components) for root in roots]


def _rooted(root: Schema, components: Mapping[str, Schema]) -> Schema:
    """A schema that stands alone: its root written out, and no more definitions than it needs."""
    name = _referred(root)
    schema = dict(components[name]) if name is not None and set(root) == {"$ref"} else dict(root)
    needed = _reachable(schema, components)
    if needed:
        schema["$defs"] = {name: components[name] for name in sorted(needed)}
    return schema


def _referred(schema: Mapping[str, Any]) -> str | None:
    reference = schema.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def _reachable(schema: Any, components: Mapping[str, Schema]) -> set[str]:
    found: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            node = cast("Mapping[str, Any]", node)
            name = _referred(node)
            if name is not None and name not in found:
                found.add(name)
                waiting.append(components[name])
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))
    return found


class Validator:
    """A compiled JSON Schema."""

    def __init__(self, schema: Mapping[str, Any], what: str) -> None:
        import jsonschema_rs  # only where a schema arrives as JSON Schema, or a refusal needs its reasons

        try:
            self._compiled = jsonschema_rs.validator_for(dict(schema), retriever=_refuse_to_fetch)
        except (jsonschema_rs.ValidationError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise RegistrationError(f"the schema of {what} is not valid: {first}", kind="tool_schema_invalid") from None

    def accepts(self, value: Any) -> bool:
        """Whether a value fits."""
        return self._compiled.is_valid(value)

    def faults(self, value: Any) -> list[Fault]:
        """Everything that is wrong with a value, at most 20 things."""
        found: list[Fault] = []
        for error in self._compiled.iter_errors(value):
            if len(found) == 20:  # noqa: PLR2004 - a reader mends the first few and asks again
                break
            path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.instance_path)
            rule = str(error.schema_path[-1]) if error.schema_path else ""
            found.append(Fault("$" + path, rule, error.message))
        return found


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"references to other documents are not followed: {uri}")
