"""Values, rebuilt from JSON by the schema that a server gave: objects with attributes, dates, sets, bytes.

A type is made of the schema, once, and values are read into it. What a schema says beyond that is passed over, and
where no type can be made of it, values stay as they are: nothing gets lost by rebuilding it. So do the values of a
schema that is too large with all of its references followed, since the server has chosen how large that is.
"""

import datetime
import keyword
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, Union, cast

import msgspec

from trunkline.registry.complexity import complexity
from trunkline.wire import codec

__all__ = ["WRAPPED", "rebuilder", "type_of"]

WRAPPED: Final = "result"
"""The member that holds a value which is no object, in revisions whose structured content must be one."""

_FORMATS: Final[Mapping[str, type]] = {
    "date-time": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "uuid": uuid.UUID,
    "decimal": Decimal,
}
_SIMPLE: Final[Mapping[str, Any]] = {"integer": int, "number": float, "boolean": bool, "null": type(None)}
_HASHABLE: Final = (str, int, float, bool, *_FORMATS.values())
_TYPES: Final = 7  # that JSON Schema knows
_LONGEST_TITLE: Final = 100
_MOST_SCHEMAS: Final = 2000  # that a type is made of, with references followed
Schema = Mapping[str, Any]


def rebuilder(schema: Schema) -> Callable[[Any], Any]:
    """A function that rebuilds structured content; what was wrapped only to be an object comes out of it."""
    properties: Any = schema.get("properties")
    wrapped = isinstance(properties, Mapping) and list(cast("Schema", properties)) == [WRAPPED]
    kind = type_of(cast("Schema", properties)[WRAPPED] if wrapped else schema, root=schema)

    def rebuild(value: Any) -> Any:
        inner: Any = cast("Schema", value).get(WRAPPED) if wrapped and isinstance(value, Mapping) else value
        try:
            return msgspec.convert(inner, kind)
        except (msgspec.ValidationError, TypeError, RecursionError):
            return inner

    return rebuild


def type_of(schema: Any, *, root: Schema | None = None) -> Any:
    """A type for values of a schema; `Any` where there is none."""
    whole = root if root is not None else schema
    known = complexity(cast("Schema", whole)) if isinstance(whole, Mapping) else None
    if known is None or known.expanded > _MOST_SCHEMAS:
        return Any
    kind = _Reader(whole).read(schema)
    try:
        codec.decoder(kind)
    except TypeError:  # a union of types that cannot be told apart, for one
        return Any
    return kind


class _Reader:
    """Reads one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: set[str] = set()  # references that are being followed

    def read(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return Any
        schema = cast("Schema", schema)
        if "$ref" in schema:
            return self._referred(schema["$ref"])
        if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
            return _literal(cast("list[Any]", values))
        for options in ("anyOf", "oneOf"):
            if isinstance(schema.get(options), list):
                return self._union([self.read(option) for option in schema[options]])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            named = sorted(_names(cast("list[Any]", kinds)))
            return self._union([self.read({**schema, "type": kind}) for kind in named]) if len(named) <= _TYPES else Any
        return self._one(schema, kinds)

    def _one(self, schema: Schema, kind: Any) -> Any:
        match kind:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                if schema.get("contentEncoding") == "base64":
                    return bytes
                return _FORMATS.get(str(schema.get("format")), str)
            case _:
                return _SIMPLE.get(kind, Any)

    def _referred(self, reference: Any) -> Any:
        """What a reference leads to, within the schema; a type that holds itself stays plain inside of itself."""
        if not isinstance(reference, str) or not reference.startswith("#") or reference in self._open:
            return Any
        found: Any = self._root
        for part in reference.lstrip("#").split("/")[1:]:
            found = (
                cast("Any", found).get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
            )
        self._open.add(reference)
        kind = self.read(found)
        self._open.discard(reference)
        return kind

    def _union(self, options: list[Any]) -> Any:
        return Any if Any in options else Union[tuple(options)]  # noqa: UP007 - of options that are only known now

    def _array(self, schema: Schema) -> Any:
        if isinstance(schema.get("prefixItems"), list):
            return tuple[tuple(self.read(item) for item in schema["prefixItems"])]
        item = self.read(schema.get("items"))
        return set[item] if schema.get("uniqueItems") is True and item in _HASHABLE else list[item]

    def _object(self, schema: Schema) -> Any:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return dict[str, self.read(schema.get("additionalProperties"))]
        required = _names(schema.get("required"))
        fields: list[Any] = []
        attributes = _Attributes()
        for name, described in cast("Schema", properties).items():
            kind = self.read(described)
            if name in required:
                fields.append((attributes.name(name), kind, msgspec.field(name=name)))
            else:
                fields.append((attributes.name(name), kind | msgspec.UnsetType, _absent(name, described)))
        title = re.sub(r"\W", "", str(schema.get("title") or "")[:_LONGEST_TITLE]) or "Result"
        return msgspec.defstruct(title if not title[0].isdigit() else f"_{title}", fields, kw_only=True)


def _absent(name: str, described: Any) -> Any:
    default = cast("Schema", described).get("default") if isinstance(described, Mapping) else None
    return msgspec.field(name=name, default_factory=lambda: default)


def _literal(values: list[Any]) -> Any:
    plain = [value for value in values if isinstance(value, str | int) and not isinstance(value, bool)]
    return Literal[tuple(plain)] if plain and len(plain) == len(values) else Any


def _names(values: Any) -> frozenset[str]:
    names = cast("list[Any]", values) if isinstance(values, list) else []
    return frozenset(name for name in names if isinstance(name, str))


class _Attributes:
    """Names of attributes for the members of one object, each of them once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._tried: dict[str, int] = {}  # how many underscores a name had to be given last

    def name(self, member: str) -> str:
        """An attribute's name for a member."""
        found = re.sub(r"\W", "_", member)
        if not found or found[0].isdigit() or keyword.iskeyword(found):
            found = f"{found}_" if keyword.iskeyword(found) else f"_{found}"
        more = self._tried.get(found, 0)
        while (attribute := found + "_" * more) in self._taken:
            more += 1
        self._tried[found] = more
        self._taken.add(attribute)
        return attribute
