"""Python type expressions for JSON Schemas, with a `TypedDict` for each object.

No text of a schema becomes code: names are reduced to ASCII identifiers, values are written by `repr`, and everything
that has no safe form is `Any`. The number of types is limited, so a schema that expands without end does not.
"""

import keyword
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from trunkline.cli.schemas import Schema, as_mapping, as_sequence, required_names, resolve, type_names

__all__ = ["RESERVED", "TypeWriter", "class_name", "identifier", "unique"]

RESERVED: Final = frozenset(
    {
        *("Any", "Literal", "Never", "NotRequired", "TYPE_CHECKING", "TypedDict", "UNSET", "UnsetType", "annotations"),
        *("Client", "ToolFunctions", "ToolResult", "builtins", "self"),
    }
)
"""Names that the module uses itself."""

_BUILTINS: Final = frozenset({"str", "int", "float", "bool", "list", "dict"})
_SCALARS: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_MAX_DEPTH: Final = 12
_MAX_TYPES: Final = 5_000  # of one module
_MAX_LITERALS: Final = 200
_MAX_NAME: Final = 60
_MAX_INTEGER: Final = 1 << 63
_ANY: Final = "Any"


def identifier(text: str, fallback: str) -> str:
    """Return an identifier like a text, without a leading underscore."""
    name = "_".join(_split(text))[:_MAX_NAME] or fallback
    if name[0].isdigit():
        name = f"{fallback}_{name}"
    return f"{name}_" if keyword.iskeyword(name) or keyword.issoftkeyword(name) else name


def class_name(*texts: str) -> str:
    """Return the name of a class in CamelCase."""
    words = [word for text in texts for part in _split(text) for word in part.split("_") if word]
    name = "".join(f"{word[0].upper()}{word[1:]}" for word in words)[:_MAX_NAME]
    return name if name and not name[0].isdigit() and not keyword.iskeyword(name) else f"Type{name}"


def _split(text: str) -> list[str]:
    return _WORD.findall(text)


def unique(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: itself, or with a number."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name.rstrip('_')}_{number}"
    return found


class TypeWriter:
    """Writes the types of one module. `taken` are names of its top level and of the class with the methods."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.classes: list[str] = []  # source texts
        self._taken = {*taken, *RESERVED}
        self._shadowed = self._taken & _BUILTINS
        self._references: dict[tuple[int, str], str] = {}
        self._roots: list[Schema] = []  # held, so that their ids stay theirs
        self._count = 0

    def write(self, schema: Any, root: Schema, *path: str) -> str:
        """Return the type of the values of a schema. `path` names the classes for objects in it."""
        self._roots.append(root)
        return self._write(schema, root, path, 0)

    def _write(self, schema: Any, root: Schema, path: tuple[str, ...], depth: int) -> str:
        self._count += 1
        found = as_mapping(schema)
        if not found or depth > _MAX_DEPTH or self._count > _MAX_TYPES:
            return _ANY
        if isinstance(reference := found.get("$ref"), str):
            return self._write_reference(reference, root, path, depth)
        if "const" in found or isinstance(found.get("enum"), list):
            return self._write_literals([found["const"]] if "const" in found else as_sequence(found["enum"]))
        for keyword_ in ("anyOf", "oneOf"):
            if branches := as_sequence(found.get(keyword_)):
                return _union(
                    self._write(one, root, (*path, str(at + 1)), depth + 1) for at, one in enumerate(branches)
                )
        if len(parts := as_sequence(found.get("allOf"))) == 1 and not found.get("properties"):
            return self._write(parts[0], root, path, depth + 1)
        kinds = type_names(found) or (("object",) if "properties" in found else ())
        return _union(self._write_kind(kind, found, root, path, depth) for kind in kinds) if kinds else _ANY

    def _write_kind(self, kind: str, schema: Schema, root: Schema, path: tuple[str, ...], depth: int) -> str:
        if kind == "array":
            return f"{self._builtin('list')}[{self._write(schema.get('items'), root, (*path, 'item'), depth + 1)}]"
        if kind != "object":
            return self._builtin(_SCALARS[kind]) if kind in _SCALARS else _ANY
        if as_mapping(schema.get("properties")):
            return self._write_object(schema, root, path, depth)
        more = self._write(schema.get("additionalProperties"), root, (*path, "value"), depth + 1)
        return f"{self._builtin('dict')}[{self._builtin('str')}, {more}]"

    def _write_reference(self, reference: str, root: Schema, path: tuple[str, ...], depth: int) -> str:
        key = (id(root), reference)
        if key in self._references:
            return self._references[key]
        target = resolve({"$ref": reference}, root)
        self._references[key] = _ANY  # for a type that contains itself without an object between
        if as_mapping(target.get("properties")) and type_names(target) in {("object",), ()}:
            name = self._new_class(reference.rpartition("/")[2] or path[0])
            self._references[key] = name
            self._define(name, target, root, (name,), depth)
            return name
        written = self._write(target, root, path, depth + 1)
        self._references[key] = written
        return written

    def _write_object(self, schema: Schema, root: Schema, path: tuple[str, ...], depth: int) -> str:
        name = self._new_class(*path)
        self._define(name, schema, root, (name,), depth)
        return name

    def _new_class(self, *path: str) -> str:
        name = unique(class_name(*path), self._taken)
        self._taken.add(name)
        return name

    def _define(self, name: str, schema: Schema, root: Schema, path: tuple[str, ...], depth: int) -> None:
        """Add a `TypedDict`: as a class, or as a call if a member has no usable name."""
        properties = as_mapping(schema.get("properties"))
        required = required_names(schema)
        types: dict[str, str] = {}
        for member, inner in properties.items():
            written = self._write(inner, root, (*path, member), depth + 1)
            types[member] = written if member in required else f"NotRequired[{written}]"
        if all(map(self._is_usable, types)):
            lines = [f"    {member}: {written}" for member, written in types.items()]
            self.classes.append("\n".join([f"class {name}(TypedDict):", *lines]))
        else:
            lines = [f"        {_text(member)}: {written!r}," for member, written in types.items()]
            self.classes.append("\n".join([f"{name} = TypedDict(", f"    {name!r},", "    {", *lines, "    },", ")"]))

    def _is_usable(self, member: str) -> bool:
        """Return whether a member may be written as a name in a class, where it shadows names of the module."""
        return (
            member.isascii()
            and member.isidentifier()
            and not keyword.iskeyword(member)
            and not member.startswith("__")
            and member not in self._taken
            and member not in _BUILTINS
        )

    def _write_literals(self, values: Iterable[Any]) -> str:
        listed = list(values)
        if not listed or len(listed) > _MAX_LITERALS:
            return _union(self._type_of(value) for value in listed) if listed else _ANY
        literals = [
            repr(value) if not isinstance(value, str) else _text(value) for value in listed if _is_literal(value)
        ]
        others = [self._type_of(value) for value in listed if not _is_literal(value)]
        named = [f"Literal[{', '.join(dict.fromkeys(literals))}]"] if literals else []
        return _union([*named, *others])

    def _type_of(self, value: Any) -> str:
        match value:
            case None:
                return "None"
            case bool() | int() | float() | str():
                return self._builtin(type(value).__name__)
            case list():
                return f"{self._builtin('list')}[Any]"
            case Mapping():
                return f"{self._builtin('dict')}[{self._builtin('str')}, Any]"
            case _:
                return _ANY

    def _builtin(self, name: str) -> str:
        """Return the name of a builtin type; qualified, if a tool has the same name."""
        return f"builtins.{name}" if name in self._shadowed else name


def _is_literal(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _MAX_INTEGER
    return value is None or isinstance(value, bool | str)


def _text(text: str) -> str:
    """Return a text as a Python literal of ASCII characters."""
    return ascii(text)


def _union(types: Iterable[str]) -> str:
    found = list(dict.fromkeys(types))
    return _ANY if _ANY in found or not found else " | ".join(found)
