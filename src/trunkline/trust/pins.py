"""Tool pins: decide whether a tool is still the one that was trusted. Pure.

A pin is the definition of a tool (name, title, description, schemas, annotations) and its digest. The first contact
with a server pins all of its tools: trust on first use. After that a definition that has changed is blocked until a
person approves it, and so is a tool that the server adds: otherwise a changed tool would only need another name. A tool
that vanishes keeps its pin, so that it is compared when it returns.

    server   pin     digest     decision
    new      -       -          PIN       the tool is pinned, and may be used
    known    yes     the same   TRUST
    known    yes     another    BLOCK     it has changed
    known    no      -          BLOCK     it is new; PIN with `new_tools="trust"`

Invariants: a tool passes `examine` only if its digest is the pinned one afterwards. `waiting` has exactly the tools
that the latest examination has blocked. Pins change by first contact, approval and removal only.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from hashlib import sha256
from itertools import islice
from typing import Any, Final, Literal, cast

from msgspec import Struct

from trunkline.errors import MisuseError, StoreError
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.types import Tool
from trunkline.wire import codec

__all__ = [
    "DECISIONS",
    "BlockedTool",
    "Decision",
    "Examination",
    "NewTools",
    "Pin",
    "ServerPins",
    "ToolStatus",
    "approve",
    "compare_definitions",
    "describe_block",
    "digest_definition",
    "examine",
    "make_pin",
    "remove",
]

NewTools = Literal["block", "trust"]
"""What to do about a tool that a known server adds."""

_MAX_BYTES: Final = 256 * 1024  # of a definition; the largest of known servers have 20 KB
_MAX_DEPTH: Final = 100  # of a definition, so that a store with it can be read again
_MAX_CHANGES: Final = 40  # lines of a comparison


class ToolStatus(Enum):
    """How the definition of a tool compares with its pin."""

    FIRST_CONTACT = auto()  # the server has no pins
    UNCHANGED = auto()
    CHANGED = auto()
    NEW = auto()  # the server has pins, but not for this tool


class Decision(Enum):
    """What happens to a tool."""

    PIN = auto()
    TRUST = auto()
    BLOCK = auto()


DECISIONS: Final[Mapping[tuple[ToolStatus, NewTools], Decision]] = {
    (ToolStatus.FIRST_CONTACT, "block"): Decision.PIN,
    (ToolStatus.FIRST_CONTACT, "trust"): Decision.PIN,
    (ToolStatus.UNCHANGED, "block"): Decision.TRUST,
    (ToolStatus.UNCHANGED, "trust"): Decision.TRUST,
    (ToolStatus.CHANGED, "block"): Decision.BLOCK,
    (ToolStatus.CHANGED, "trust"): Decision.BLOCK,
    (ToolStatus.NEW, "block"): Decision.BLOCK,
    (ToolStatus.NEW, "trust"): Decision.PIN,
}


class Pin(Struct, frozen=True, forbid_unknown_fields=True):
    """The definition of a tool, as the members of `tools/list`, and its digest."""

    digest: str
    definition: dict[str, Any]


class ServerPins(Struct, frozen=True, forbid_unknown_fields=True):
    """The pins of a server, and the definitions that wait for approval, by the names of the tools."""

    pins: dict[str, Pin] = {}
    waiting: dict[str, Pin] = {}


class BlockedTool(Struct, frozen=True):
    """A tool that is blocked: the reason, and the changes since it was pinned, as lines of text."""

    reason: str
    changes: tuple[str, ...] = ()


class Examination(Struct, frozen=True):
    """The pins of a server after a comparison with its tools, the tools that are blocked, and the names of pinned tools
    that the server no longer has. A server that has listed no tool yet has no record."""

    record: ServerPins | None
    blocked: dict[str, BlockedTool]
    vanished: tuple[str, ...]


# --- digests -------------------------------------------------------------------------------------


def make_pin(tool: Tool) -> Pin:
    """Return the pin for the definition of a tool. Raises `StoreError` if the definition is too large for one."""
    members = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
    }
    present = {name: value for name, value in members.items() if value is not None}
    if not _fits_depth(present):
        raise StoreError(f"its definition is nested deeper than {_MAX_DEPTH} levels")
    try:
        encoded = codec.to_canonical(present)
    except ValueError as error:  # a lone surrogate
        raise StoreError(f"its definition is no valid JSON: {error}") from None
    if len(encoded) > _MAX_BYTES:
        raise StoreError(f"its definition has {len(encoded)} bytes, and {_MAX_BYTES} are allowed")
    definition = _decode(encoded)  # as the store returns it: large integers become floats
    return Pin(digest_definition(definition), definition)


def digest_definition(definition: Mapping[str, Any]) -> str:
    """Return the digest of a definition that has been pinned."""
    return sha256(codec.to_canonical(definition)).hexdigest()


_decode: Final = codec.json_decoder(dict[str, Any])


def _fits_depth(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for one in level for child in _children(one)]
        if not level:
            return True
    return False


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


# --- decisions -----------------------------------------------------------------------------------


def examine(record: ServerPins | None, tools: Iterable[Tool], new_tools: NewTools = "block") -> Examination:
    """Compare the tools of a server with its pins; None is a server without any. A name that is listed twice is
    blocked, since the calls of both would reach one tool."""
    pins = {} if record is None else dict(record.pins)
    waiting: dict[str, Pin] = {}
    blocked: dict[str, BlockedTool] = {}
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            blocked[tool.name] = BlockedTool("it is listed twice")
            continue
        seen.add(tool.name)
        try:
            found = make_pin(tool)
        except StoreError as error:
            blocked[tool.name] = BlockedTool(str(error))
            continue
        before = pins.get(tool.name)
        status = _compare(record, before, found)
        match DECISIONS[status, new_tools]:
            case Decision.PIN:
                pins[tool.name] = found
            case Decision.TRUST:
                pass
            case Decision.BLOCK:
                waiting[tool.name] = found
                blocked[tool.name] = describe_block(before, found)
    vanished = tuple(name for name in pins if name not in seen)
    unknown = record is None and not pins
    return Examination(None if unknown else ServerPins(pins, waiting), blocked, vanished)


def _compare(record: ServerPins | None, before: Pin | None, found: Pin) -> ToolStatus:
    if record is None:
        return ToolStatus.FIRST_CONTACT
    if before is None:
        return ToolStatus.NEW
    return ToolStatus.UNCHANGED if before.digest == found.digest else ToolStatus.CHANGED


def describe_block(before: Pin | None, found: Pin) -> BlockedTool:
    """Return the reason why a definition waits for approval."""
    reason = (
        "the server has added it since its first contact" if before is None else "it has changed since it was pinned"
    )
    return BlockedTool(reason, compare_definitions({} if before is None else before.definition, found.definition))


# --- decisions of a person -----------------------------------------------------------------------


def approve(record: ServerPins, tool: str, digest: str | None = None) -> ServerPins:
    """Pin the definition that waits for approval. `digest`, or its beginning, is the one that the person has seen:
    raises `StoreError` if another definition waits by now. Raises `MisuseError` if none waits."""
    if tool not in record.waiting:
        raise MisuseError(f"no definition of tool {tool!r} waits for approval")
    found = record.waiting[tool]
    if digest is not None and not found.digest.startswith(digest):
        raise StoreError(
            f"tool {tool!r} has changed again: {found.digest[:12]} waits for approval, not {digest}; compare it again"
        )
    waiting = {name: pin for name, pin in record.waiting.items() if name != tool}
    return ServerPins({**record.pins, tool: found}, waiting)


def remove(record: ServerPins, tool: str) -> ServerPins:
    """Remove the pin of a tool, which is then new to a known server. Raises `MisuseError` if it has none."""
    if tool not in record.pins:
        raise MisuseError(with_suggestion(f"tool {tool!r} is not pinned", tool, record.pins))
    return ServerPins({name: pin for name, pin in record.pins.items() if name != tool}, record.waiting)


# --- comparison ----------------------------------------------------------------------------------


def compare_definitions(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences of two definitions as lines for people: the path of each member that differs, with `-`
    before the old value and `+` before the new one."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    lines: list[str] = []
    for path in dict.fromkeys((*before, *after)):
        if before.get(path) != after.get(path):
            lines.append(f"{path}:")
            lines += _compare_texts(before.get(path), after.get(path))
    if len(lines) > _MAX_CHANGES:
        lines[_MAX_CHANGES:] = [f"… and {len(lines) - _MAX_CHANGES} more lines"]
    return tuple(lines)


def _compare_texts(old: str | None, new: str | None) -> Iterator[str]:
    """Yield the lines that differ; those before and after them stay out."""
    before, after = ([] if text is None else text.split("\n") for text in (old, new))
    for line in islice(difflib.unified_diff(before, after, n=0, lineterm=""), 2, None):  # after the names of files
        if not line.startswith("@"):
            yield f"  {line[0]} {line[1:]}"


def _leaves(definition: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each value that is not an object or a list with members."""
    rest: list[tuple[str, Any]] = [(name, definition[name]) for name in reversed([*definition])]
    while rest:
        path, value = rest.pop()
        if isinstance(value, dict) and value:
            members = cast("dict[str, Any]", value)
            rest += [(f"{path}.{name}", members[name]) for name in reversed([*members])]
        elif isinstance(value, list) and value:
            items = cast("list[Any]", value)
            rest += [(f"{path}[{at}]", items[at]) for at in reversed(range(len(items)))]
        else:
            yield path, value if isinstance(value, str) else codec.to_json(value).decode()
