"""JSON Schemas of Python types, which are published to the peer.

A schema describes a type for one direction: an argument as it is decoded, or a result as it is encoded. A named type is
described once, as a definition; two classes of the same name get two definitions.

This module is slow to import, so callers import it on first use.
"""

import collections.abc
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin
from uuid import UUID

from msgspec import NODEFAULT, UNSET, Raw, UnsetType

from trunkline.registry import pydantic_support
from trunkline.registry.annotations import constrained_type, distribute_limits, read_metadata
from trunkline.registry.class_layout import (
    UNIONS,
    Layout,
    Member,
    ValueDirection,
    alias_value,
    enum_values,
    is_alias,
    is_path,
    json_value,
    read_layout,
    resolve_type,
    type_name,
)
from trunkline.registry.type_adapters import has_json, to_json
from trunkline.wire import codec

__all__ = [
    "Schema",
    "SchemaBuilder",
    "reachable_definitions",
    "referenced_name",
    "schema_of_members",
    "schema_of_type",
]

Schema = dict[str, Any]
"""A JSON Schema."""

_BASE64: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
_SIMPLE: Final[Mapping[Any, Schema]] = {
    Any: {},
    object: {},
    Raw: {},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: _BASE64,
    bytearray: _BASE64,
    memoryview: _BASE64,
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    timedelta: {"type": "string", "format": "duration"},
    UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": "string", "format": "decimal"},
}
_LOOSE: Final = frozenset({datetime, time, timedelta})  # some values violate the format, such as times without a zone
_ARRAYS: Final = frozenset(
    {list, collections.abc.Collection, collections.abc.Sequence, collections.abc.MutableSequence}
)
_SETS: Final = frozenset({set, frozenset, collections.abc.Set, collections.abc.MutableSet})
_OBJECTS: Final = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
_ORDER: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_KEYWORDS: Final[Mapping[str, Mapping[str, str]]] = {  # keywords of limits, by JSON type
    "integer": _ORDER,
    "number": _ORDER,
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
_read: Final = codec.decoder(object)


def schema_of_type(kind: Any, side: ValueDirection = ValueDirection.ARGUMENT) -> Schema:
    """Return the schema of a type: the type at the root, and its definitions under `$defs`."""
    builder = SchemaBuilder(side)
    root = builder.describe(kind)
    name = referenced_name(root)
    schema = dict(builder.definitions[name]) if name is not None and len(root) == 1 else root
    return _with_definitions(schema, builder.definitions)


def schema_of_members(members: Sequence[Member], *, closed: bool) -> Schema:
    """Return the schema of an object with these members. It always has `properties`, which some clients require."""
    builder = SchemaBuilder(ValueDirection.ARGUMENT)
    schema: Schema = {
        "type": "object",
        "properties": {member.json_name: builder.describe_member(member) for member in members},
    }
    if required := [member.json_name for member in members if member.required]:
        schema["required"] = required
    if closed:
        schema["additionalProperties"] = False
    return _with_definitions(schema, builder.definitions)


def _with_definitions(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Add the definitions that a schema needs."""
    if needed := reachable_definitions(schema, definitions):
        schema["$defs"] = {name: definitions[name] for name in sorted(needed)}
    return schema


class SchemaBuilder:
    """Builds the schemas of types, and collects the definitions that they refer to."""

    def __init__(self, side: ValueDirection) -> None:
        self.definitions: dict[str, Schema] = {}
        self._side = side
        self._names: list[tuple[Any, str]] = []  # types may be unhashable

    def describe(self, kind: Any) -> Schema:
        """Return the schema of a type. Raise `TypeError` for a type without a JSON form."""
        kind = resolve_type(kind)
        origin: Any = get_origin(kind)
        if pydantic_support.is_pydantic_type(kind):
            return self._pydantic_type(kind)
        if origin is Annotated:
            return self._annotated(distribute_limits(kind))
        if origin in UNIONS:
            return self._union(get_args(kind))
        if origin is Literal:
            return _values(kind)
        if is_alias(kind):
            return self._define(kind, lambda: self.describe(alias_value(kind)))
        if (made_of := read_layout(kind)) is not None:
            return self._define(kind, lambda: self._class(kind, made_of))
        return self._describe_builtin(kind, origin or kind)

    def _describe_builtin(self, kind: Any, owner: Any) -> Schema:
        if owner in _ARRAYS:
            return self._array(get_args(kind))
        if owner in _SETS:
            _check_hash(*get_args(kind))
            return {**self._array(get_args(kind)), "uniqueItems": True}
        if owner is tuple:
            return self._tuple(get_args(kind))
        if owner in _OBJECTS:
            return self._object(*(get_args(kind) or (Any, Any)))
        if owner in _SIMPLE:
            return self._simple(owner)
        if is_path(owner):
            return {"type": "string", "format": "path"}
        if isinstance(owner, type) and issubclass(owner, Enum):
            return self._define(owner, lambda: {"title": owner.__name__, **_doc(owner), **_values(owner)})
        why = "is not supported, since it has no JSON form; use a JSON type, or a class of such types"
        raise TypeError(f"{type_name(kind)} {why}")

    def _simple(self, kind: Any) -> Schema:
        described = dict(_SIMPLE[kind])
        if self._side is ValueDirection.RESULT and kind in _LOOSE:  # mentions the format without enforcing it
            described["anyOf"] = [{"format": described.pop("format")}, {}]
        if self._side is ValueDirection.ARGUMENT and kind is Decimal:
            return {"anyOf": [{"type": "number"}, described]}
        return described

    # --- made of others ------------------------------------------------------------------------------

    def _array(self, arguments: tuple[Any, ...]) -> Schema:
        items = self.describe(arguments[0]) if arguments else {}
        return {"type": "array", "items": items} if items else {"type": "array"}

    def _tuple(self, arguments: tuple[Any, ...]) -> Schema:
        if not arguments or arguments[1:] == (...,):
            return self._array(arguments)
        size = len(arguments)
        places = [self.describe(place) for place in arguments]
        return {"type": "array", "prefixItems": places, "minItems": size, "maxItems": size}

    def _object(self, key: Any, value: Any) -> Schema:
        _check_hash(key)
        described: Schema = {"type": "object"}
        keys = self.describe(key)
        if "type" in keys:
            keys.pop("anyOf", None)  # not a constraint
        if keys.get("type") == "integer":
            described["propertyNames"] = {"pattern": "^-?[0-9]+$"}
        elif keys.get("type", "string") == "string" and len(keys) > ("type" in keys):
            described["propertyNames"] = {word: setting for word, setting in keys.items() if word != "type"}
        if values := self.describe(value):
            described["additionalProperties"] = values
        return described

    def _union(self, options: tuple[Any, ...]) -> Schema:
        options = tuple(option for option in options if option is not UnsetType)
        if len(options) == 1:
            return self.describe(options[0])
        described: Schema = {"anyOf": [self.describe(option) for option in options]}
        tags = [
            (made_of.tag, self.describe(option)) for option in options if (made_of := read_layout(option)) is not None
        ]
        if len(tags) > 1 and all(tag is not None for tag, _ in tags):
            mapping = {str(tag[1]): reference["$ref"] for tag, reference in tags if tag is not None}
            described["discriminator"] = {"propertyName": cast("Any", tags[0][0])[0], "mapping": mapping}
        return described

    def _annotated(self, kind: Any) -> Schema:
        metadata = read_metadata(kind.__metadata__)
        described = self.describe(get_args(kind)[0])
        owner = constrained_type(kind)
        if metadata.limits.get("tz"):
            described.pop("anyOf", None)
            described["format"] = "date-time" if owner is datetime else "time"
        is_told = self._limit(described, owner, metadata.limits)
        described |= metadata.keywords
        if not is_told and (limits_text := metadata.describe_limits()):
            before = f"{described['description']} " if "description" in described else ""
            described["description"] = f"{before}({limits_text})"
        return described

    def _limit(self, described: Schema, owner: Any, limits: Mapping[str, Any]) -> bool:
        """Add the keywords for limits; return whether the type has such keywords."""
        if owner is Decimal and self._side is ValueDirection.ARGUMENT:
            described = described["anyOf"][0]
        elif "format" in _SIMPLE.get(owner, {}):
            return False
        if owner in {bytes, bytearray}:  # base64 has four characters for every three bytes
            limits = {limit: 4 * ((size + 2) // 3) for limit, size in limits.items()}
        keywords = _KEYWORDS.get(described.get("type", ""), {})
        described |= {keywords[limit]: _json(bound) for limit, bound in limits.items() if limit in keywords}
        return bool(keywords)

    # --- classes -------------------------------------------------------------------------------------

    def _class(self, kind: Any, made_of: Layout) -> Schema:
        members = made_of.members_for(self._side)
        described: Schema = {"title": type_name(kind), **_doc(made_of.origin)}
        properties: dict[str, Schema] = {}
        if made_of.tag is not None:
            properties[made_of.tag[0]] = _enum([made_of.tag[1]])
        properties |= {m.json_name: self.describe_member(m) for m in members}
        optional = [m.json_name for m in members if not m.required]
        if not made_of.array:
            described |= {"type": "object", "properties": properties}
            if required := [name for name in properties if name not in optional]:
                described["required"] = required
            return described | ({"additionalProperties": False} if made_of.closed else {})
        described |= {"type": "array", "prefixItems": list(properties.values())}
        described["minItems"] = max((n for n, name in enumerate(properties, 1) if name not in optional), default=0)
        return described | ({"maxItems": len(properties)} if made_of.closed else {})

    def describe_member(self, member: Member) -> Schema:
        """Return the schema of a member, with its default if that has a JSON form."""
        described = self.describe(member.kind)
        default: Any = member.default
        if any(member.factory is kind for kind in (list, dict, set, frozenset, tuple)):
            default = member.factory()
        if default is not NODEFAULT and default is not UNSET and has_json(default):
            described["default"] = _json(default)
        return described

    # --- names ---------------------------------------------------------------------------------------

    def _define(self, key: Any, describe: Callable[[], Schema], name: str | None = None) -> Schema:
        """Return a reference to a definition, which is created once."""
        found = next((known for owner, known in self._names if owner == key), None)
        if found is None:
            found = self._free_name(re.sub(r"[^\w.-]+", "_", name or type_name(key)))
            self._names.append((key, found))
            self.definitions[found] = {}  # reserve the name
            self.definitions[found] = describe()
        return {"$ref": f"#/$defs/{found}"}

    def _free_name(self, name: str) -> str:
        taken = {known for _, known in self._names}
        return next(n for n in (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))) if n not in taken)

    def _pydantic_type(self, kind: Any) -> Schema:
        made = pydantic_support.schema(kind, "validation" if self._side is ValueDirection.ARGUMENT else "serialization")
        theirs: dict[str, Schema] = made.pop("$defs", {})
        if isinstance(get_origin(kind) or kind, type) and made.get("type") == "object":
            name = type_name(kind)
            name = f"{name}_" if name in theirs else name
            theirs[name], made = made, {"$ref": f"#/$defs/{name}"}
        return self._adopt(made, theirs)

    def _adopt(self, schema: Any, theirs: Mapping[str, Schema]) -> Any:
        """Convert a schema of pydantic: rename its references and adopt its definitions."""
        if isinstance(schema, list):
            return [self._adopt(part, theirs) for part in cast("list[Any]", schema)]
        if not isinstance(schema, dict):
            return schema
        made = {word: self._adopt(member, theirs) for word, member in cast("Schema", schema).items()}
        if (name := referenced_name(made)) is not None:
            key = (name, {other: theirs[other] for other in {name, *reachable_definitions(theirs[name], theirs)}})
            made |= self._define(key, lambda: self._adopt(theirs[name], theirs), name)
        if isinstance(tags := made.get("mapping"), dict) and "propertyName" in made:
            tags = cast("dict[str, str]", tags)
            made["mapping"] = {tag: self._adopt({"$ref": where}, theirs)["$ref"] for tag, where in tags.items()}
        return made


def referenced_name(schema: Mapping[str, Any]) -> str | None:
    """Return the name of the definition that a schema refers to."""
    reference = schema.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def reachable_definitions(schema: Any, definitions: Mapping[str, Schema]) -> set[str]:
    """Return the names of all definitions that a schema needs."""
    found: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            node = cast("Mapping[str, Any]", node)
            name = referenced_name(node)
            if name is not None and name not in found:
                found.add(name)
                waiting.append(definitions[name])
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))
    return found


def _check_hash(*kinds: Any) -> None:
    """Raise `TypeError` for types that cannot be set items or dict keys."""
    for kind in kinds:
        owner = constrained_type(resolve_type(kind))
        if isinstance(owner, type) and owner.__hash__ is None:
            why = "is not hashable, so it cannot be a set item or a dict key; make it frozen, or use a list"
            raise TypeError(f"{type_name(kind)} {why}")


def _json(value: Any) -> Any:
    return _read(to_json(value))


def _doc(owner: Any) -> Schema:
    doc: str = owner.__dict__.get("__doc__") or ""
    is_made_up = doc.startswith(f"{owner.__name__}(") and doc.endswith(")")  # a generated docstring
    return {} if is_made_up or not doc else {"description": inspect.cleandoc(doc)}


def _values(kind: Any) -> Schema:
    values = [json_value(value) for value in enum_values(kind)]
    if odd := [value for value in values if type(value) not in {*_TYPES, type(None)}]:
        raise TypeError(f"{type_name(kind)} has a value without a JSON form: {odd[0]!r}")
    return _enum(values)


def _enum(values: list[Any]) -> Schema:
    types = {_TYPES.get(cast("Any", type(value))) for value in values}
    return {"type": types.pop(), "enum": values} if len(types) == 1 and None not in types else {"enum": values}
