"""Python values rebuilt from JSON by a server's schema: objects with attributes, dates, sets, bytes.

Rebuilding is a convenience and never fails. A value that does not fit its schema stays JSON, and so does one whose
schema has no type; the values around it are rebuilt all the same.

A schema is compiled once, to one node for each schema inside of it. All references to a definition share its node, so a
recursive definition has one class, and its values are rebuilt at any depth.

The server chooses the schema and the value, so both are bounded: the number of nodes, and the steps to choose among the
options of unions. Beyond these bounds values stay JSON.
"""

import datetime
import keyword
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final, cast

import msgspec

from trunkline.registry.complexity import complexity, resolve_reference, size_of

__all__ = ["WRAPPED", "rebuilder"]

WRAPPED: Final = "result"
"""The member that wraps a value in revisions whose structured content must be an object."""

_FORMATS: Final[Mapping[str, type]] = {
    "date-time": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "uuid": uuid.UUID,
    "decimal": Decimal,
}
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})
_TYPES: Final = _SCALARS | {"object", "array", "null"}
_OPTIONS: Final = ("anyOf", "oneOf", "allOf")
# Keywords beside a union that apply to all of its options.
_INHERITED: Final = ("type", "format", "contentEncoding", "title", "required", "additionalProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
_MAX_NODES: Final = 2000
_MAX_STEPS: Final = 1_000_000  # of choosing among options, 100 to 300 ns each
_MAX_EXACT_FLOAT: Final = 2**53  # integers up to here are exact as floats
_MAX_TITLE: Final = 100

Schema = Mapping[str, Any]
Rebuild = Callable[[Any], Any]


def rebuilder(schema: Schema) -> Rebuild:
    """Return a function that rebuilds structured content, and unwraps a value that was wrapped in an object."""
    properties: Any = schema.get("properties")
    wrapped = isinstance(properties, Mapping) and list(cast("Schema", properties)) == [WRAPPED]
    rebuild, most = _compile_schema(cast("Schema", properties)[WRAPPED] if wrapped else schema, schema)

    def unwrap_and_rebuild(value: Any) -> Any:
        inner: Any = value
        if wrapped and (type(value) is dict or isinstance(value, Mapping)):
            inner = inner.get(WRAPPED)
        if rebuild is None or (most is not None and size_of(inner, most) > most):
            return inner
        try:
            return rebuild(inner)
        except RecursionError:
            return inner

    return unwrap_and_rebuild


def _compile_schema(schema: Any, root: Schema) -> tuple[Rebuild | None, int | None]:
    """Return the function that rebuilds values of a schema, None if they stay JSON; and the size of the largest value
    that is rebuilt, None without a limit."""
    try:
        known = complexity(root)
        if known is None:
            return None, None
        compiler = _Compiler(root)
        rebuild = compiler.compile_root(schema).rebuild
    except (_TooLarge, LookupError, RecursionError):
        return None, None
    return rebuild, _MAX_STEPS // known.steps if compiler.has_unions else None


class _TooLarge(Exception):
    """The schema contains too many schemas."""


class _Node:
    """One compiled schema: how to rebuild its values, and how to recognise them."""

    __slots__ = ("closed", "consts", "item", "members", "options", "parse", "ready", "rebuild", "required", "type")

    def __init__(self) -> None:
        self.ready = False  # compiled; until then, only the node itself may be used
        self.rebuild: Rebuild | None = None  # None: values stay JSON
        self.type: str | None = None
        self.consts: list[Any] | None = None
        self.options: list[_Node] | None = None
        self.parse: Rebuild | None = None  # parses a string, or raises ValueError
        self.item: _Node | None = None
        self.members: Mapping[str, _Node] = {}
        self.required: frozenset[str] = frozenset()
        self.closed = False  # no additional members

    @property
    def lazy_rebuild(self) -> Rebuild | None:
        """`rebuild` for use in another node: looked up at the call if this node is not compiled yet."""
        return self.rebuild if self.ready else self._rebuild_lazily

    def _rebuild_lazily(self, value: Any) -> Any:
        return value if self.rebuild is None else self.rebuild(value)

    def fits(self, value: Any) -> bool:
        """Return whether a value probably belongs to this schema, by itself and by its members."""
        if self.options is not None:
            return any(option.fits(value) for option in self.options)
        if not self._resembles(value):
            return False
        if self.parse is not None:
            return _parse_or_keep(self.parse, value) is not value
        if isinstance(value, dict):
            return self._has_members(cast("dict[str, Any]", value))
        items = cast("list[Any]", value) if isinstance(value, list) else None
        return not items or self.item is None or self.item._resembles(items[0])

    def _has_members(self, value: dict[str, Any]) -> bool:
        if not self.required <= value.keys():
            return False
        for name, inner in value.items():
            member = self.members.get(name)
            if self.closed if member is None else not member._resembles(inner):
                return False
        return True

    def _resembles(self, value: Any) -> bool:
        """Return whether a value has the type and is one of the constants. Members are ignored, or the cost would grow
        exponentially with the depth of a recursive union."""
        if self.options is not None:
            return any(option._resembles(value) for option in self.options)
        if self.type is not None and not _has_json_type(self.type, value):
            return False
        return self.consts is None or any(_json_equal(value, const) for const in self.consts)


class _Compiler:
    """Compiler of one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._referred: dict[str, _Node] = {}
        self._nodes = 0
        self.has_unions = False  # values must be compared with several options

    def compile_root(self, schema: Any) -> _Node:
        """Return the node of the root, or of a value that is wrapped in it. A root that repeats one of its definitions,
        as that of a recursive class does, is this definition."""
        if schema is not self._root:
            return self.compile(schema)
        bare = {word: value for word, value in self._root.items() if word not in (*_DEFINITIONS, "$schema")}
        for word in _DEFINITIONS:
            definitions: Any = self._root.get(word)
            for name, definition in cast("Schema", definitions if isinstance(definitions, Mapping) else {}).items():
                if definition == bare:
                    return self._reference(f"#/{word}/{name.replace('~', '~0').replace('/', '~1')}")
        return self._reference("#")

    def compile(self, schema: Any) -> _Node:
        """Return the node of a schema; references share theirs."""
        if isinstance(schema, Mapping) and isinstance(cast("Schema", schema).get("$ref"), str):
            return self._reference(cast("Schema", schema)["$ref"])
        return self._compile_into(_Node(), schema)

    def _reference(self, reference: str) -> _Node:
        followed: set[str] = set()
        found = resolve_reference(self._root, reference)
        while isinstance(found, Mapping) and isinstance(cast("Schema", found).get("$ref"), str):
            if reference in followed:
                raise LookupError(reference)  # references that only refer to each other
            followed.add(reference)
            reference = cast("Schema", found)["$ref"]
            found = resolve_reference(self._root, reference)
        node = self._referred.get(reference)
        if node is None:
            self._referred[reference] = node = _Node()
            self._compile_into(node, found)
        return node

    def _compile_into(self, node: _Node, schema: Any) -> _Node:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise _TooLarge
        if isinstance(schema, Mapping):
            self._fill(node, cast("Schema", schema))
        node.ready = True
        return node

    def _fill(self, node: _Node, schema: Schema) -> None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list):
            node.consts = cast("list[Any]", values)
            return
        kind = schema.get("type")
        has_members = isinstance(schema.get("properties"), Mapping)
        options = None if has_members or "items" in schema or "prefixItems" in schema else _union_options(schema)
        if options is not None:
            self._fill_union(node, options)
        elif isinstance(kind, list):
            named = dict.fromkeys(name for name in cast("list[Any]", kind) if isinstance(name, str) and name in _TYPES)
            self._fill_union(node, [{**schema, "type": name} for name in named])
        elif kind is None and has_members:
            self._fill_typed(node, schema, "object")
        elif isinstance(kind, str) and kind in _TYPES:
            self._fill_typed(node, schema, kind)

    def _fill_typed(self, node: _Node, schema: Schema, kind: str) -> None:
        node.type = kind
        match kind:
            case "object":
                self._fill_object(node, schema)
            case "array":
                self._fill_array(node, schema)
            case "string":
                wanted = bytes if schema.get("contentEncoding") == "base64" else _FORMATS.get(str(schema.get("format")))
                if wanted is not None:
                    node.parse = partial(msgspec.convert, type=wanted)
                    node.rebuild = partial(_parse_or_keep, node.parse)
            case "number":
                node.rebuild = _as_float
            case "integer":
                node.rebuild = _as_int
            case _:
                pass

    def _fill_union(self, node: _Node, options: Iterable[Any]) -> None:
        node.options = nodes = [self.compile(option) for option in options]
        others = [option for option in nodes if option.type != "null"]
        if all(option.lazy_rebuild is None for option in others):
            return
        if len(others) == 1:
            node.rebuild = others[0].lazy_rebuild
        else:
            self.has_unions = True
            node.rebuild = partial(_choose, others)

    def _fill_array(self, node: _Node, schema: Schema) -> None:
        items, places, rest = schema.get("items"), schema.get("prefixItems"), schema.get("items")
        if isinstance(items, list):  # before 2020-12
            places, rest = cast("list[Any]", items), schema.get("additionalItems")
        if isinstance(places, list):
            each = [self.compile(place).lazy_rebuild for place in cast("list[Any]", places)]
            node.rebuild = partial(_rebuild_tuple, each, self.compile(rest).lazy_rebuild)
            return
        node.item = item = self.compile(items)
        is_set = schema.get("uniqueItems") is True and item.type in _SCALARS
        if is_set or item.lazy_rebuild is not None:
            node.rebuild = partial(_rebuild_set if is_set else _rebuild_list, item.lazy_rebuild or _identity)

    def _fill_object(self, node: _Node, schema: Schema) -> None:
        properties: Any = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            value = self.compile(schema.get("additionalProperties")).lazy_rebuild
            node.rebuild = None if value is None else partial(_rebuild_dict, value)
            return
        required: Any = schema.get("required")
        names = cast("list[Any]", required) if isinstance(required, list) else []
        node.required = frozenset(name for name in names if isinstance(name, str))
        node.closed = schema.get("additionalProperties") is False
        node.members = members = {name: self.compile(inner) for name, inner in cast("Schema", properties).items()}
        inner = {name: rebuild for name, member in members.items() if (rebuild := member.lazy_rebuild) is not None}
        attributes = _attribute_names(members)
        made = _make_class(schema, attributes, node.required)
        if made is not None:
            changed = {attributes[name]: rebuild for name, rebuild in inner.items()}
            node.rebuild = partial(_rebuild_instance, made, changed, inner)
        elif inner:
            node.rebuild = partial(_rebuild_members, inner)


def _union_options(schema: Schema) -> list[Any] | None:
    """Return the options of a union, each with the keywords that the schema states for all of them."""
    for word in _OPTIONS:
        options: Any = schema.get(word)
        if isinstance(options, list) and options and (word != "allOf" or len(cast("list[Any]", options)) == 1):
            common = {word: schema[word] for word in _INHERITED if word in schema}
            return [
                {**common, **cast("Schema", one)} if isinstance(one, Mapping) else common
                for one in cast("list[Any]", options)
            ]
    return None


# --- values ------------------------------------------------------------------------------------------------


def _has_json_type(kind: str, value: Any) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return type(value) is int or (type(value) is float and value.is_integer())
        case _:
            return type(value) is int or type(value) is float


def _json_equal(value: Any, const: Any) -> bool:
    """Return whether scalars are equal in JSON, where `true` is not 1. For objects and arrays, compare the
    type only."""
    if isinstance(const, dict | list):
        return type(value) is type(cast("Any", const))
    return value == const and isinstance(value, bool) == isinstance(const, bool)


def _identity(value: Any) -> Any:
    return value


def _parse_or_keep(parse: Rebuild, value: Any) -> Any:
    try:
        return parse(value) if isinstance(value, str) else value
    except (ValueError, ArithmeticError):
        return value


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) <= _MAX_EXACT_FLOAT else value


def _as_int(value: Any) -> Any:
    return int(value) if type(value) is float and abs(value) <= _MAX_EXACT_FLOAT and value.is_integer() else value


def _choose(options: list[_Node], value: Any) -> Any:
    """Rebuild a value by the first option that it fits."""
    for option in options:
        if option.fits(value):
            return value if option.rebuild is None else option.rebuild(value)
    return value


def _rebuild_list(item: Rebuild, value: Any) -> Any:
    return list(map(item, cast("list[Any]", value))) if isinstance(value, list) else value


def _rebuild_set(item: Rebuild, value: Any) -> Any:
    """Return a set, unless it would have fewer items: two strings may denote the same time."""
    items = _rebuild_list(item, value)
    if not isinstance(value, list) or any(isinstance(one, list | dict) for one in items):
        return items
    made: set[Any] = set(items)
    return made if len(made) == len(items) else items


def _rebuild_tuple(places: list[Rebuild | None], rest: Rebuild | None, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    items = cast("list[Any]", value)
    missing = max(0, len(items) - len(places))
    ways = [*places, *[rest] * missing]
    return tuple(item if way is None else way(item) for way, item in zip(ways, items, strict=False))


def _rebuild_dict(member: Rebuild, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: member(inner) for name, inner in cast("dict[str, Any]", value).items()}


def _rebuild_members(members: Mapping[str, Rebuild], value: Any) -> Any:
    """Return an object without a class, its members rebuilt."""
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, Any]", value)
    return {name: members.get(name, _identity)(inner) for name, inner in items.items()}


def _rebuild_instance(made: Any, attributes: Mapping[str, Rebuild], members: Mapping[str, Rebuild], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        instance: Any = msgspec.convert(cast("Any", value), made)
    except msgspec.ValidationError:  # a required member is missing
        return _rebuild_members(members, value)
    for attribute, rebuild in attributes.items():
        setattr(instance, attribute, rebuild(getattr(instance, attribute)))
    return instance


# --- classes -----------------------------------------------------------------------------------------------


def _make_class(schema: Schema, attributes: Mapping[str, str], required: frozenset[str]) -> type | None:
    """Return a class for objects of a schema; None if a class cannot have such members."""
    properties: Schema = schema["properties"]
    fields = [
        (attribute, Any, msgspec.field(name=name) if name in required else _optional_field(name, properties[name]))
        for name, attribute in attributes.items()
    ]
    title: Any = schema.get("title")
    name = re.sub(r"\W", "", title[:_MAX_TITLE] if isinstance(title, str) else "") or "Result"
    try:
        return msgspec.defstruct(f"_{name}" if name[0].isdigit() else name, fields, kw_only=True)
    except (TypeError, ValueError, RuntimeError):  # quotes, backslashes or control characters in a name
        return None


def _optional_field(name: str, described: Any) -> Any:
    default: Any = cast("Schema", described).get("default") if isinstance(described, Mapping) else None
    fresh: Any = list if default == [] else dict if default == {} else lambda: default
    return msgspec.field(name=name, default_factory=fresh)


def _attribute_names(members: Iterable[str]) -> dict[str, str]:
    """Return unique attribute names for the members of an object."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    tried: dict[str, int] = {}  # the number of underscores appended to a name last
    for member in members:
        wanted = _identifier(member)
        more = tried.get(wanted, 0)
        while (attribute := wanted + "_" * more) in taken:
            more += 1
        tried[wanted] = more
        taken.add(attribute)
        found[member] = attribute
    return found


def _identifier(member: str) -> str:
    """Return a valid attribute name. Two leading underscores become one: Python changes or uses such names."""
    normal = unicodedata.normalize("NFKC", member)  # as Python normalizes identifiers
    made = "".join(char if f"_{char}".isidentifier() else "_" for char in normal)
    if made.startswith("__"):
        made = f"_{made.lstrip('_')}"
    if not made.isidentifier():
        made = f"_{made}"
    return f"{made}_" if keyword.iskeyword(made) else made
