"""What of a request is said a second time in HTTP headers, so that whoever stands between can route by it.

From 2026-07-28 on a request over HTTP has its method in `Mcp-Method`, what it is about in `Mcp-Name`, and those
arguments of a tool in `Mcp-Param-…` that the tool's schema marks with `x-mcp-header`. A client writes them, and a
server refuses a request whose headers and body disagree: who routed by the one must not be told the other.

A header that a table here or a schema knows, but whose value the body does not have, disagrees as well. Headers that
nobody knows are nobody's business.
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

Primitive = Literal["string", "integer", "boolean"]  # no numbers: nobody writes a fraction like the next one

ANNOTATION: Final = "x-mcp-header"
LARGEST_INTEGER: Final = 2**53 - 1  # in size: beyond it, those who know only doubles see another one

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
_ALLOWED: Final = re.compile(r"[\t\x20-\x7e]*")  # RFC 9110, "Field Values", without what is obsolete
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER: Final = re.compile(r"(-?[0-9]{1,16})(?:\.0*)?")

# The keywords of JSON Schema, of 2020-12 and before, that hold further schemas. Only `properties` leads to one place.
_HOLD_SCHEMAS: Final = (
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"),
    *("unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    "contentSchema",
)
_HOLD_NAMED_SCHEMAS: Final = ("patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")


class InvalidAnnotation(TrunklineError, ValueError):
    """An `x-mcp-header` that may not stand where it does, or at all; and with it, its whole tool."""


class InvalidValue(TrunklineError, ValueError):
    """A value that cannot be put into a header, or a header that no value leads to."""


class MirroredArgument(Struct, frozen=True):
    """An argument of a tool that is repeated in a header."""

    path: tuple[str, ...]  # the names of the properties that lead to it
    header: str  # its whole name, in the case in which it is sent
    type: Primitive


# --- values -------------------------------------------------------------------------------------


def encode_value(value: object) -> str | None:
    """A value as a header; None for null, and for all that is no string, integer or boolean.

    Raises `InvalidValue` for an integer that some would read as another, and for text that is no Unicode.
    """
    text = _text(value)
    if text is None or (_PLAIN.fullmatch(text) and text == text.strip(_BLANK) and not _looks_encoded(text)):
        return text
    try:
        return f"{_PREFIX}{base64.b64encode(text.encode()).decode()}{_SUFFIX}"
    except UnicodeEncodeError:
        raise InvalidValue("half of a surrogate pair is no text") from None


def decode_value(text: str) -> str:
    """The value of a header. Raises `InvalidValue` for characters that no header has, and for broken base64."""
    text = text.strip(_BLANK)
    if not _ALLOWED.fullmatch(text):
        raise InvalidValue("it has characters that a header may not have")
    if not _looks_encoded(text) or len(text) < len(_PREFIX) + len(_SUFFIX):
        return text
    inner = text[len(_PREFIX) : -len(_SUFFIX)]
    try:
        value = base64.b64decode(inner)
        if base64.b64encode(value).decode() == inner:  # else something was overlooked
            return value.decode()
    except ValueError:
        pass
    raise InvalidValue("it is broken base64")


def _looks_encoded(text: str) -> bool:
    return text.startswith(_PREFIX) and text.endswith(_SUFFIX)


def _text(value: object) -> str | None:
    """A value in letters. A number without a fraction is an integer, however it was written."""
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
    """What `Mcp-Name` repeats of a request; None if there is nothing of that kind in it."""
    member = NAME_MEMBERS.get(method)
    name = None if member is None or params is None else params.get(member)
    return name if isinstance(name, str) else None


def routing_headers(method: str, params: Mapping[str, Any] | None) -> dict[str, str]:
    """The headers that a client sends with every request, besides that of the revision."""
    name = encode_value(mirrored_name(method, params))
    return {_METHOD: method} if name is None else {_METHOD: method, _NAME: name}


def match_exactly(method: str, name: str | None, headers: Mapping[str, str]) -> bool:
    """Whether the headers repeat a request to the letter, and nothing in it would have to be encoded; most do."""
    if headers.get("mcp-method") != method:
        return False
    if method not in NAME_MEMBERS:
        return True
    if name is None or headers.get("mcp-name") != name or name.startswith("=?"):
        return False
    return name.isascii() and name.isprintable() and name.strip() == name


def find_mismatch(method: str, name: str | None, headers: Mapping[str, str]) -> str | None:
    """How the headers of a request, by names in lower case, contradict its method and what `mirrored` gives of it;
    None if they do not."""
    given = headers.get(_METHOD.lower())
    if given is None:
        return f"{_METHOD} is missing"
    if given.strip(_BLANK) != method:  # never encoded
        return f"{_METHOD} is not the method of the request"
    if method not in NAME_MEMBERS:
        return None
    return _compare_header(_NAME, f"params.{NAME_MEMBERS[method]}", name, headers)


def _compare_header(
    header: str, what: str, value: object, headers: Mapping[str, str], kind: str = "string"
) -> str | None:
    """How a header contradicts a value of the body. What has no form as a header must not have one; whether the body
    may have it is for its schema to say."""
    given = headers.get(header.lower())
    try:
        expected = _text(value)
        found = None if given is None else decode_value(given)
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
    """The arguments that a tool's schema wants in headers. Raises `InvalidAnnotation`."""
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
        raise InvalidAnnotation(f"{ANNOTATION} stands where more than `properties` leads to, or nothing")
    name, kind = schema[ANNOTATION], cast("Any", schema.get("type"))
    if not isinstance(name, str) or not name:
        raise InvalidAnnotation(f"{ANNOTATION} of {_named(path)} must be a text that is not empty")
    if not _TOKEN.fullmatch(name):
        raise InvalidAnnotation(f"{ANNOTATION} of {_named(path)} has characters that no header's name has: {name!r}")
    if kind not in get_args(Primitive):
        raise InvalidAnnotation(f"{ANNOTATION} of {_named(path)} needs the type {' or '.join(get_args(Primitive))}")
    return MirroredArgument(path, _PARAM + name, kind)


def _named(path: tuple[str, ...]) -> str:
    return repr(".".join(path))


def _schemas(root: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """A schema and all within it, each with the properties that lead there; None where anything else is on the way.
    References are not followed, and what is data is not looked into."""
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
    """The schemas that stand in a schema elsewhere than in `properties`."""
    for keyword in _HOLD_SCHEMAS:
        inner = schema.get(keyword)
        yield from cast("list[object]", inner) if isinstance(inner, list) else [inner]
    for keyword in _HOLD_NAMED_SCHEMAS:
        for _, inner in _members(schema.get(keyword)):
            yield inner


def _members(value: object) -> Iterable[tuple[str, object]]:
    return cast("Mapping[str, object]", value).items() if isinstance(value, Mapping) else ()


def param_headers(mirrors: Iterable[MirroredArgument], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers that a client sends with a call of a tool. Raises `InvalidValue` for a value that none can carry."""
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
    """How the headers of a call, by names in lower case, contradict its arguments; None if they do not."""
    differences = (
        _compare_header(mirror.header, f"argument {_named(mirror.path)}", value, headers, mirror.type)
        for mirror in mirrors
        for value in [_value_at(arguments, mirror.path)]
    )
    return next(filter(None, differences), None)


def _value_at(arguments: Mapping[str, Any], path: tuple[str, ...]) -> object:
    """The value at the end of a path; None if there is none."""
    value: object = arguments
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, object]", value).get(name)
    return value
