"""JSON Schema: made from Python types, and compiled into validators where it arrives as JSON Schema.

Types are checked by decoding into them; the schema that is made of them is for the peer to read. A schema that was
written by hand is compiled once. References that would need a network are never followed.
"""

import typing
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import UnionType
from typing import Any, Final, cast, get_args, get_origin

import msgspec
from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.registry import types

__all__ = ["Fault", "Validator", "check_type", "of_type"]

Schema = dict[str, Any]
_REFERENCES = "#/$defs/{name}"
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None), list, dict, Any, object})
_MADE_OF_OTHERS: Final = frozenset({list, dict, typing.Union, UnionType})


class Fault(Struct, frozen=True):
    """One thing that is wrong with a value: where, by which rule, and in words."""

    path: str
    rule: str
    message: str


def of_type(kind: Any) -> Schema:
    """The schema of a type; what it refers to stands under `$defs`, the type itself at the root."""
    book = _Book()
    root = book.describe(types.adapt(kind))
    name = _referred(root)
    schema = dict(book.definitions[name]) if name is not None and set(root) == {"$ref"} else dict(root)
    needed = _reachable(schema, book.definitions)
    if needed:
        schema["$defs"] = {name: book.definitions[name] for name in sorted(needed)}
    return schema


def check_type(kind: Any) -> None:
    """Raises `TypeError` for a type that has no schema. Costs next to nothing for what is made of plain types."""
    if _is_plain(kind):
        return
    try:
        of_type(kind)
    except TypeError as error:
        raise TypeError(str(error).splitlines()[-1]) from None  # what it says before that is for users of msgspec


def _is_plain(kind: Any) -> bool:
    if isinstance(kind, type) and kind in _PLAIN:
        return True
    if get_origin(kind) is typing.Annotated:
        return _is_plain(get_args(kind)[0])
    return get_origin(kind) in _MADE_OF_OTHERS and all(map(_is_plain, get_args(kind)))


class _Book:
    """The definitions of one schema."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._owners: dict[str, Any] = {}

    def describe(self, kind: Any) -> Schema:
        """The schema of a type as msgspec reads it; what it refers to is noted down."""
        (root,), components = msgspec.json.schema_components(
            [kind], schema_hook=self._foreign, ref_template=_REFERENCES
        )
        for name, definition in components.items():
            self._define(name, definition)
        return root

    def _foreign(self, kind: Any) -> Schema:
        if isinstance(kind, types.Choice):
            return {"anyOf": [self.describe(option) for option in kind.options]}
        if isinstance(kind, types.Mirror):
            return self._once(kind.__name__, kind, lambda: self.describe(kind.struct))
        if issubclass(kind, PurePath):
            return {"type": "string", "format": "path"}
        if types.is_model(kind):
            return self._once(kind.__name__, kind, lambda: self._model(kind))
        raise NotImplementedError

    def _once(self, name: str, kind: Any, describe: Callable[[], Any]) -> Schema:
        if name not in self._owners:
            self._owners[name] = kind
            describe()
        if self._owners[name] is not kind:
            raise TypeError(f"two types are named {name}; rename one")
        return {"$ref": _REFERENCES.format(name=name)}

    def _model(self, kind: Any) -> None:
        made = kind.model_json_schema(ref_template="#/$defs/{model}")
        for name, definition in made.pop("$defs", {}).items():
            self._define(name, definition)
        if "$ref" not in made:  # one that holds itself is among the others
            self._define(kind.__name__, made)

    def _define(self, name: str, definition: Schema) -> None:
        if self.definitions.setdefault(name, definition) != definition:
            raise TypeError(f"two types are named {name}; rename one")


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
