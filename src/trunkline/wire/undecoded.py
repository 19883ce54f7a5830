"""Recovery of id and kind from the ends of a message that is too large or cannot be decoded.

Members of the outermost object are read from its beginning, up to the first object or array, and from its end. Some
implementations write the id first, and others write it last.
"""

import re
from typing import Final

from msgspec import Struct

from trunkline.wire.messages import RequestId

__all__ = ["EDGE", "Edges", "Outline", "outline"]

EDGE: Final = 256  # bytes of either end: enough for an id, the version and a method name

_SCALAR: Final = rb'-?\d{1,18}|"[^"\\]{0,200}"|null'
_OPENING: Final = rb"\s*\{"
_NAME: Final = rb'\s*"([^"\\]{1,20})"\s*:\s*'
_VALUE: Final = rb"(" + _SCALAR + rb")\s*,"
_LAST: Final = rb'((?:,\s*"(?:id|jsonrpc|method)"\s*:\s*(?:' + _SCALAR + rb")\s*){1,3})\}\s*$"
_MEMBER: Final = rb',\s*"(id|jsonrpc|method)"\s*:\s*(' + _SCALAR + rb")"


class Outline(Struct, frozen=True):
    """The id of a message, and which members it has."""

    id: RequestId | None = None
    has_method: bool = False
    has_outcome: bool = False


class Edges:
    """The first and last bytes of a message that is too large to buffer."""

    __slots__ = ("head", "tail")

    def __init__(self) -> None:
        self.head = b""
        self.tail = b""

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        if len(self.head) < EDGE:
            self.head += data[: EDGE - len(self.head)]
        self.tail = data[-EDGE:] if len(data) >= EDGE else (self.tail + data)[-EDGE:]


def outline(head: bytes, tail: bytes, *, whole: bool) -> Outline:
    """Read the members at both ends of a message. If the message may be truncated, its last bytes could belong to an
    inner object; they count only if the version is among them."""
    names = _first_members(head)
    last = re.search(_LAST, tail)
    if last is not None:
        found = dict(re.findall(_MEMBER, last[1]))
        if whole or b"jsonrpc" in found:
            names = {**found, **names}
    return Outline(_id_in(names.get(b"id")), b"method" in names, b"result" in names or b"error" in names)


def _first_members(head: bytes) -> dict[bytes, bytes]:
    """Return the members up to the first one without a short scalar value, and the name of that one."""
    names: dict[bytes, bytes] = {}
    opening = re.match(_OPENING, head)
    at = None if opening is None else opening.end()
    while at is not None and (name := re.compile(_NAME).match(head, at)) is not None:
        value = re.compile(_VALUE).match(head, name.end())
        names[name[1]] = b"" if value is None else value[1]
        at = None if value is None else value.end()
    return names


def _id_in(value: bytes | None) -> RequestId | None:
    if not value or value == b"null":
        return None
    if not value.startswith(b'"'):
        return int(value)
    try:
        return value[1:-1].decode()
    except UnicodeDecodeError:
        return None
