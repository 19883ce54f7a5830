"""HTTP headers that repeat parts of a request, so that intermediaries can route by them.

From 2026-07-28 on, a request over HTTP has its method in `Mcp-Method`, its target in `Mcp-Name`, and the arguments of a
tool that its schema marks with `x-mcp-header` in `Mcp-Param-…`. A client writes these headers, and a server refuses a
request whose headers and body disagree: an intermediary must not route by values that differ from the body.

A header of a table here or of a schema also disagrees if the body lacks its value. Unknown headers are ignored.
"""

import base64
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, cast, get_args

from msgspec import Struct

from trunkline.errors import TrunklineError

__all__ = [
    "ANNOTATION",
    "LARGEST_INTEGER",
    "NAME_MEMBERS",
    "InvalidAnnotation",
    "InvalidValue",
    "MirroredArgument",
    "Primitive",
    "RoutingHeaders",
    "decode_value",
    "encode_value",
    "find_mirrored_arguments",
    "find_mismatch",
    "find_param_mismatch",
    "match_exactly",
    "mirrored_name",
    "param_headers",
    "routing_headers",
]

Primitive = Literal["string", "integer", "boolean"]  # no numbers: implementations format fractions differently

ANNOTATION: Final = "x-mcp-header"
LARGEST_INTEGER: Final = 2**53 - 1  # absolute value: larger integers lose precision as doubles

NAME_MEMBERS: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The member of a method's params that `Mcp-Name` repeats."""

_METHOD: Final = "Mcp-Method"
_NAME: Final = "Mcp-Name"
_PARAM: Final = "Mcp-Param-"
_BLANK: Final = " \t"
_PREFIX, _SUFFIX = "=?base64?", "?="

_PLAIN: Final = re.compile(r"[\x20-\x7e]*")
_ALLOWED: Final = re.compile(r"[\t\x20-\x7e]*")  # RFC 9110, "Field Values", without obsolete characters
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER: Final = re.compile(r"(-?[0-9]{1,16})(?:\.0*)?")

# The keywords of JSON Schema, 2020-12 and earlier, with nested schemas. Only `properties` leads to one argument.
_HOLD_SCHEMAS: Final = (
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"),
    *("unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    "contentSchema",
)
_HOLD_NAMED_SCHEMAS: Final = ("patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")


class InvalidAnnotation(TrunklineError, ValueError):
    """An invalid or misplaced `x-mcp-header`, which makes its whole tool invalid."""


class InvalidValue(TrunklineError, ValueError):
    """A value that cannot be sent in a header, or a header that cannot be decoded."""


class RoutingHeaders(Struct, frozen=True):
    """The headers that repeat a request's revision, method and target, read once for all requests that have them."""

    version: str | None = None
    method: str | None = None
    name: str | None = None
    plain_name: str | None = None  # the name, if it stands for itself

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> "RoutingHeaders":
        """Read them from all headers, by lower-case names."""
        name = headers.get(_NAME.lower())
        plain = name if name is not None and _is_plain(name) else None
        return cls(headers.get("mcp-protocol-version"), headers.get(_METHOD.lower()), name, plain)


class MirroredArgument(Struct, frozen=True):
    """A tool argument that a header repeats."""

    path: tuple[str, ...]  # property names from the root
    header: str  # full name, in its original case
    type: Primitive


# --- values -------------------------------------------------------------------------------------


def encode_value(value: object) -> str | None:
    """Encode a value for a header; return None for null and for types other than string, integer and boolean.

    Raise `InvalidValue` for an integer that loses precision as a double, and for text that is not Unicode.
    """
    text = _text(value)
    if text is None or (_PLAIN.fullmatch(text) and text == text.strip(_BLANK) and not _looks_encoded(text)):
        return text
    try:
        return f"{_PREFIX}{base64.b64encode(text.encode()).decode()}{_SUFFIX}"
    except UnicodeEncodeError:
        raise InvalidValue("half of a surrogate pair is no text") from None


def decode_value(text: str) -> str:
    """Decode the value of a header. Raise `InvalidValue` for illegal characters and for invalid base64."""
    text = text.strip(_BLANK)
    if not _ALLOWED.fullmatch(text):
        raise InvalidValue("it has characters that a header may not have")
    if not _looks_encoded(text) or len(text) < len(_PREFIX) + len(_SUFFIX):
        return text
    inner = text[len(_PREFIX) : -len(_SUFFIX)]
    try:
        value = base64.b64decode(inner)
        if base64.b64encode(value).decode() == inner:  # rejects ignored characters
            return value.decode()
    except ValueError:
        pass
    raise InvalidValue("it is broken base64")


def _looks_encoded(text: str) -> bool:
    return text.startswith(_PREFIX) and text.endswith(_SUFFIX)


def _text(value: object) -> str | None:
    """Return the text of a value. A number without a fraction is an integer."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        return None
    if abs(value) > LARGEST_INTEGER:
        raise InvalidValue("an integer in a header must be within ±(2**53 - 1)")
    return str(value)


# --- method and name ----------------------------------------------------------------------------


def mirrored_name(method: str, params: Mapping[str, Any] | None) -> str | None:
    """Return the value that `Mcp-Name` repeats; None if the request has none."""
    member = NAME_MEMBERS.get(method)
    name = None if member is None or params is None else params.get(member)
    return name if isinstance(name, str) else None


def routing_headers(method: str, params: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the headers of every request, except that of the revision."""
    name = encode_value(mirrored_name(method, params))
    return {_METHOD: method} if name is None else {_METHOD: method, _NAME: name}


def match_exactly(method: str, name: object, headers: RoutingHeaders) -> bool:
    """Return whether the headers equal the request's values literally, without any encoding: the common case."""
    if headers.method != method:
        return False
    return method not in NAME_MEMBERS or (name is not None and headers.plain_name == name)


def _is_plain(name: str) -> bool:
    """Return whether a name stands for itself in a header."""
    return name.isascii() and name.isprintable() and not name.startswith("=?") and name.strip() == name


def find_mismatch(method: str, name: str | None, headers: RoutingHeaders) -> str | None:
    """Return how the headers contradict the method and the mirrored name; None if they agree."""
    if headers.method is None:
        return f"{_METHOD} is missing"
    if headers.method.strip(_BLANK) != method:  # never encoded
        return f"{_METHOD} is not the method of the request"
    if method not in NAME_MEMBERS:
        return None
    return _compare_header(_NAME, headers.name, f"params.{NAME_MEMBERS[method]}", name)


def _compare_header(header: str, received: str | None, what: str, value: object, kind: str = "string") -> str | None:
    """Return how a header, as received, contradicts a value of the body; None if they agree. A value without a header
    form must not have a header; the schema decides whether the body may have it."""
    try:
        expected = _text(value)
        found = None if received is None else decode_value(received)
    except InvalidValue as error:
        return f"{header} cannot be compared with {what}: {error}"
    if found is not None and kind == "integer" and (number := _INTEGER.fullmatch(found)):
        found = str(int(number[1]))
    if found == expected:
        return None
    if found is None:
        return f"{header} is missing, and {what} is there"
    return f"{header} is there, and {what} is not" if expected is None else f"{header} is not the same as {what}"


# --- arguments of tools -------------------------------------------------------------------------


def find_mirrored_arguments(input_schema: Mapping[str, Any]) -> tuple[MirroredArgument, ...]:
    """Return the arguments that a tool's schema mirrors in headers. Raise `InvalidAnnotation`."""
    found: dict[str, MirroredArgument] = {}
    for path, schema in _schemas(input_schema):
        if ANNOTATION not in schema:
            continue
        mirror = _parse_annotation(path, schema)
        if (other := found.setdefault(mirror.header.lower(), mirror)) is not mirror:
            raise InvalidAnnotation(f"{_named(other.path)} and {_named(mirror.path)} want the same {ANNOTATION}")
    return tuple(found.values())


def _parse_annotation(path: tuple[str, ...] | None, schema: Mapping[str, Any]) -> MirroredArgument:
    if not path:
        raise InvalidAnnotation(f"{ANNOTATION} must be at an argument that only `properties` leads to")
    name, kind = schema[ANNOTATION], cast("Any", schema.get("type"))
    if not isinstance(name, str) or not name:
        raise InvalidAnnotation(f"{ANNOTATION} of {_named(path)} must be a string that is not empty")
    if not _TOKEN.fullmatch(name):
        raise InvalidAnnotation(f"{ANNOTATION} of {_named(path)} has illegal characters for a header name: {name!r}")
    if kind not in get_args(Primitive):
        raise InvalidAnnotation(f"{ANNOTATION} of {_named(path)} needs the type {' or '.join(get_args(Primitive))}")
    return MirroredArgument(path, _PARAM + name, kind)


def _named(path: tuple[str, ...]) -> str:
    return repr(".".join(path))


def _schemas(root: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Yield a schema and all nested ones, each with its property path; None if the path has other keywords. Do not
    follow references, and do not look into data."""
    waiting: deque[tuple[tuple[str, ...] | None, object]] = deque([((), root)])
    while waiting:
        path, schema = waiting.popleft()
        if isinstance(schema, Mapping):
            known = cast("Mapping[str, Any]", schema)
            yield path, known
            for name, inner in _members(known.get("properties")):
                waiting.append((None if path is None else (*path, name), inner))
            waiting.extend((None, inner) for inner in _nested_schemas(known))


def _nested_schemas(schema: Mapping[str, Any]) -> Iterator[object]:
    """Yield the nested schemas outside of `properties`."""
    for keyword in _HOLD_SCHEMAS:
        inner = schema.get(keyword)
        yield from cast("list[object]", inner) if isinstance(inner, list) else [inner]
    for keyword in _HOLD_NAMED_SCHEMAS:
        for _, inner in _members(schema.get(keyword)):
            yield inner


def _members(value: object) -> Iterable[tuple[str, object]]:
    return cast("Mapping[str, object]", value).items() if isinstance(value, Mapping) else ()


def param_headers(mirrors: Iterable[MirroredArgument], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers for a tool call. Raise `InvalidValue` for a value that cannot be sent."""
    headers: dict[str, str] = {}
    for mirror in mirrors:
        try:
            value = encode_value(_value_at(arguments, mirror.path))
        except InvalidValue as error:
            raise InvalidValue(f"argument {_named(mirror.path)} cannot go into {mirror.header}: {error}") from None
        if value is not None:
            headers[mirror.header] = value
    return headers


def find_param_mismatch(
    mirrors: Iterable[MirroredArgument], arguments: Mapping[str, Any], headers: Mapping[str, str]
) -> str | None:
    """Return how the headers of a call, by lower-case names, contradict its arguments; None if they agree."""
    differences = (
        _compare_header(
            mirror.header,
            headers.get(mirror.header.lower()),
            f"argument {_named(mirror.path)}",
            _value_at(arguments, mirror.path),
            mirror.type,
        )
        for mirror in mirrors
    )
    return next(filter(None, differences), None)


def _value_at(arguments: Mapping[str, Any], path: tuple[str, ...]) -> object:
    """Return the value at a path; None if there is none."""
    value: object = arguments
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, object]", value).get(name)
    return value
