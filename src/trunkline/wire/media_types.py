"""Media types in HTTP headers: Content-Type and Accept (RFC 9110, 8.3.1 and 12.5.1).

Types and parameter names are compared case-insensitively. A table has the values that nearly every peer sends; other
values are parsed, and the results for short ones are cached.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["EVENT_STREAM", "JSON", "accepts", "essence", "is_utf8_json"]

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"

_COMMON: Final = frozenset(  # values of Accept that allow both types
    {
        b"application/json, text/event-stream",
        b"application/json,text/event-stream",
        b"text/event-stream, application/json",
        b"text/event-stream,application/json",
        b"*/*",
    }
)
_CACHED: Final = 256  # bytes of a header worth caching; browsers send half of it
_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii"})  # ASCII is a subset of UTF-8

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # noqa: S105 - RFC 9110, 5.6.2
_QUOTED: Final = r'"(?:[^"\\]|\\.)*+"'
_TYPE: Final = re.compile(rf"[ \t]*+({_TOKEN})/({_TOKEN})[ \t]*+")
_PARAMETER: Final = re.compile(rf";[ \t]*+(?:({_TOKEN})=({_TOKEN}|{_QUOTED})[ \t]*+)?", re.DOTALL)
_ELEMENT: Final = re.compile(rf'(?:[^,"]++|{_QUOTED}|".*+)++', re.DOTALL)  # up to an unquoted comma
_WEIGHT: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


class _MediaType(NamedTuple):
    """A parsed media type or range."""

    type: str  # in lower case, as is the subtype
    subtype: str
    parameters: list[tuple[str, str]]  # names in lower case
    whole: bool  # no unparsed rest


def essence(value: str) -> str:
    """Return the type and subtype of a Content-Type, in lower case and without parameters: `application/json`."""
    return value.partition(";")[0].strip(" \t").lower()


def is_utf8_json(value: bytes) -> bool:
    """Return whether a Content-Type is JSON in UTF-8, the only encoding of RFC 8259. Ignore other parameters."""
    if value == b"application/json":
        return True
    return (_is_utf8_json if len(value) <= _CACHED else _is_utf8_json.__wrapped__)(value)


def accepts(value: bytes, *kinds: str) -> bool:
    """Return whether an Accept header allows all of these media types. An empty header allows none."""
    if value in _COMMON:
        return True
    return (_accepts if len(value) <= _CACHED else _accepts.__wrapped__)(value, kinds)


@lru_cache(maxsize=64)
def _is_utf8_json(value: bytes) -> bool:
    found = _parse(value.decode("latin-1"))
    if found is None or (found.type, found.subtype) != ("application", "json"):
        return False
    return all(text.lower() in _UTF8 for name, text in found.parameters if name == "charset")


@lru_cache(maxsize=64)
def _accepts(value: bytes, kinds: tuple[str, ...]) -> bool:
    ranges = list(_ranges(value.decode("latin-1")))
    return all(_weight(ranges, *kind.split("/")) > 0 for kind in kinds)


def _weight(ranges: list[tuple[_MediaType, float]], type_: str, subtype: str) -> float:
    """Return the weight of a media type: that of the most specific range that matches it, or 0."""
    best = (0, 0.0)
    for found, weight in ranges:
        if (found.type, found.subtype) == (type_, subtype):
            best = max(best, (3 + len(found.parameters), weight))
        elif (found.type, found.subtype) == (type_, "*"):
            best = max(best, (2, weight))
        elif (found.type, found.subtype) == ("*", "*"):
            best = max(best, (1, weight))
    return best[1]


def _ranges(value: str) -> Iterator[tuple[_MediaType, float]]:
    """Yield the media ranges of an Accept header with their weights. Skip malformed ranges, and ranges with parameters
    that no response has: all responses are UTF-8 without further parameters."""
    for element in _ELEMENT.findall(value):
        found = _parse(element)
        if found is None or not found.whole:
            continue
        names = [name for name, _ in found.parameters]
        end = names.index("q") if "q" in names else len(names)  # Accept extensions may follow it
        weight = found.parameters[end][1] if end < len(names) else "1"
        parameters = found.parameters[:end]
        if _WEIGHT.fullmatch(weight) and all(name == "charset" and text.lower() in _UTF8 for name, text in parameters):
            yield found._replace(parameters=parameters), float(weight)


def _parse(value: str) -> _MediaType | None:
    found = _TYPE.match(value)
    if found is None:
        return None
    parameters: list[tuple[str, str]] = []
    end = found.end()
    while (parameter := _PARAMETER.match(value, end)) is not None:
        end = parameter.end()
        if parameter[1] is not None:
            parameters.append((parameter[1].lower(), _unquoted(parameter[2])))
    return _MediaType(found[1].lower(), found[2].lower(), parameters, end == len(value))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if text.startswith('"') else text
