"""Routes: HTTP paths that a server answers beside MCP.

A path consists of literal segments and `{name}` segments, which match one segment each. A literal segment takes
precedence over a `{name}`, from left to right. Routes of one path may differ in their methods.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.errors.options import describe_value
from trunkline.registry.access import Access
from trunkline.registry.handlers import StartMode

__all__ = ["RouteEntry", "RouteMatch", "RouteTable", "parse_methods", "parse_path"]

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")  # OPTIONS is answered by the server
_SEGMENT: Final = re.compile(r"\{(?P<name>[^{}]*)\}|(?P<literal>[^{}]+)")

Shape = tuple[str | None, ...]
"""Segments of a path; None for a `{name}`."""


class RouteEntry(Struct, frozen=True):
    """A function and the requests that it answers."""

    path: str
    shape: Shape
    names: tuple[str, ...]  # of its `{name}` segments
    methods: tuple[str, ...]
    function: Callable[[Any], Any]
    start: StartMode
    public: bool = False  # answers callers without credentials
    access: Access | None = None
    timeout: float | None = None  # seconds; None: the default


class RouteMatch(Struct, frozen=True):
    """The routes of the path of a request, by method, and the values of the `{name}` segments."""

    entries: Mapping[str, RouteEntry]
    values: tuple[str, ...] = ()

    def find(self, method: str) -> RouteEntry | None:
        """Return the route for a method. GET answers HEAD as well, unless there is a route for HEAD."""
        entry = self.entries.get(method)
        return self.entries.get("GET") if entry is None and method == "HEAD" else entry

    def is_public(self, method: str) -> bool:
        """Return whether a request needs no credentials; for a method without a route, if no route needs any."""
        entry = self.find(method)
        return all(each.public for each in self.entries.values()) if entry is None else entry.public

    @property
    def allowed_methods(self) -> tuple[str, ...]:
        """The methods that can be used at the path."""
        return (*(method for method in _METHODS if self.find(method) is not None), "OPTIONS")


class RouteTable:
    """The routes of a server, by path."""

    def __init__(self) -> None:
        self._by_shape: dict[Shape, dict[str, RouteEntry]] = {}
        self._patterns: list[tuple[Shape, dict[str, RouteEntry]]] = []  # with a `{name}`; most specific first
        self._reserved: dict[str, str] = {}  # purposes of the paths that the server uses itself

    def __len__(self) -> int:
        return len(self._by_shape)

    def __iter__(self) -> Iterator[RouteEntry]:
        """Yield each route once."""
        for entries in self._by_shape.values():
            yield from dict.fromkeys(entries.values())

    def reserve(self, path: str, purpose: str) -> None:
        """Refuse routes at a path that the server uses itself, and below it if it ends with `/*`. Raise
        `RegistrationError` if there is one already."""
        for entry in self:
            if _covers(path, entry.path):
                raise RegistrationError(_collision(entry.path, purpose))
        self._reserved[path] = purpose

    def add(self, entry: RouteEntry) -> None:
        """Add a route. Raise `RegistrationError` if its path is reserved, or has a route for one of its methods."""
        for reserved, purpose in self._reserved.items():
            if _covers(reserved, entry.path):
                raise RegistrationError(_collision(entry.path, purpose))
        entries = self._by_shape.get(entry.shape, {})
        if taken := [method for method in entry.methods if method in entries]:
            other = entries[taken[0]].path
            raise RegistrationError(f"route {entry.path!r}: there is a route for {taken[0]} at {other!r} already")
        if entry.shape not in self._by_shape:
            self._by_shape[entry.shape] = entries
            if None in entry.shape:
                self._patterns.append((entry.shape, entries))
                self._patterns.sort(key=lambda pattern: [segment is None for segment in pattern[0]])
        entries.update(dict.fromkeys(entry.methods, entry))

    def find(self, path: str) -> RouteMatch | None:
        """Return the routes of a path, which is decoded and has no trailing slash; None if there is none."""
        segments = tuple(path[1:].split("/"))
        if (entries := self._by_shape.get(segments)) is not None:
            return RouteMatch(entries)
        for shape, entries in self._patterns:
            if len(shape) == len(segments) and (values := _match(shape, segments)) is not None:
                return RouteMatch(entries, values)
        return None


def _covers(reserved: str, path: str) -> bool:
    base = reserved.removesuffix("/*")
    return path == (base.rstrip("/") or "/") or (base != reserved and path.startswith(f"{base}/"))


def _collision(path: str, purpose: str) -> str:
    return f"route {path!r}: the server uses this path for {purpose}; choose another one"


def _match(shape: Shape, segments: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the values of the `{name}` segments; None if the segments do not have the shape."""
    for expected, segment in zip(shape, segments, strict=True):
        if segment != expected if expected is not None else not segment:
            return None
    return tuple(segment for expected, segment in zip(shape, segments, strict=True) if expected is None)


def parse_path(path: Any) -> tuple[str, Shape, tuple[str, ...]]:
    """Return a path without trailing slash, its shape, and its names. Raise `RegistrationError` for an invalid path."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise RegistrationError(f"the path of a route is a text such as '/version', not {describe_value(path)}")
    if "?" in path or "#" in path or "%" in path or not path.isprintable() or " " in path:
        raise RegistrationError(
            f"route {path!r}: a path is written decoded, without spaces, and has neither a query nor a fragment"
        )
    path = path.rstrip("/") or "/"
    shape: list[str | None] = []
    names: list[str] = []
    for segment in path[1:].split("/"):
        match = _SEGMENT.fullmatch(segment)
        if match is None and path != "/":
            raise RegistrationError(f"route {path!r}: a segment is a text or a {{name}}, not {segment!r}")
        name = None if match is None else match["name"]
        if name is None:
            shape.append(segment)
        elif not name.isidentifier() or name in names:
            raise RegistrationError(f"route {path!r}: {{{name}}} must be an identifier that occurs once")
        else:
            shape.append(None)
            names.append(name)
    return path, tuple(shape), tuple(names)


def parse_methods(path: str, methods: Any) -> tuple[str, ...]:
    """Return methods in capitals. Raise `RegistrationError` for unknown ones."""
    if isinstance(methods, str):
        raise RegistrationError(f"route {path!r}: methods is a list; write methods=[{methods!r}]")
    found = tuple(dict.fromkeys(str(method).upper() for method in methods))
    unknown = [method for method in found if method not in _METHODS]
    if unknown or not found:
        why = f"{unknown[0]!r} is not one of" if unknown else "it needs at least one of"
        raise RegistrationError(f"route {path!r}: {why} the methods {', '.join(_METHODS)}")
    return found
