"""Server-sent events (HTML, "Server-sent events"): encoding, and incremental decoding.

A decoder accepts bytes as they arrive and returns complete events. It remembers the last event id and the reconnection
delay of the stream. It buffers at most one event of the maximum size: a larger event is dropped as it arrives, and
reported as `TooLarge`.
"""

from typing import Final

from msgspec import Struct

from trunkline.wire.framing import TooLarge
from trunkline.wire.undecoded import Edges

__all__ = [
    "COMMENT",
    "SseDecoder",
    "SseEvent",
    "encode_event",
    "encode_message",
    "encode_numbered_message",
    "encode_unnumbered_message",
]

COMMENT: Final = b":\n\n"
"""An empty comment, which keeps a connection from timing out."""

_BOM: Final = b"\xef\xbb\xbf"
_MOST_DIGITS: Final = 9  # of a delay in milliseconds: more than eleven days


class SseEvent(Struct, frozen=True):
    """One event, with its data lines joined. An event that only updates the stream position has no data."""

    data: bytes
    kind: str = "message"
    id: str | None = None  # the stream position after the event


def encode_event(data: bytes, *, kind: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:  # noqa: A002
    """Encode an event. `data` and the other fields must not contain line ends; our JSON never does."""
    head = b"" if kind is None else b"event: %b\n" % kind.encode()
    if id is not None:
        head += b"id: %b\n" % id.encode()
    if retry is not None:
        head += b"retry: %d\n" % retry
    return b"%bdata: %b\n\n" % (head, data)


def encode_message(data: bytes) -> bytes:
    """Encode an event of kind `message` without an id, as `encode_event` does."""
    return b"event: message\ndata: %b\n\n" % data


def encode_numbered_message(data: bytes, stream: int, number: int) -> bytes:
    """Encode an event of kind `message` whose id consists of two numbers, as `encode_event` does."""
    return b"event: message\nid: %d-%d\ndata: %b\n\n" % (stream, number, data)


def encode_unnumbered_message(data: bytes, stream: int, number: int) -> bytes:  # noqa: ARG001 - the same parameters
    """Encode an event as `encode_numbered_message` does, without an id."""
    return encode_message(data)


class SseDecoder:
    """Decodes a byte stream to events."""

    def __init__(self, max_event: int) -> None:
        self.last_id: str | None = None  # the position after the last complete event
        self.retry: int | None = None  # milliseconds before reconnecting, if the stream sent a delay
        self._max_event = max_event
        self._buffer = bytearray()
        self._scanned = 0  # no line end before this offset, so no byte is searched twice
        self._begun = False
        self._ended_with_cr = False  # the last byte was a carriage return
        self._data: list[bytes] = []
        self._size = 0  # size of the event so far
        self._kind = ""
        self._id: str | None = None  # the position after the current event
        self._too_large: Edges | None = None  # the ends of an event that is too large

    def feed(self, data: bytes) -> list[SseEvent | TooLarge]:
        """Accept bytes; return the events that are complete now, in order."""
        if self._ended_with_cr and data:
            self._ended_with_cr = False
            data = data.removeprefix(b"\n")
        self._buffer += data
        if not self._begun:
            if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
                return []
            self._begun = True
            if self._buffer.startswith(_BOM):
                del self._buffer[: len(_BOM)]
        events: list[SseEvent | TooLarge] = []
        while (line := self._line()) is not None:
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        if self._size + len(self._buffer) > self._max_event + MARGIN:
            self._drop()
        return events

    def _line(self) -> bytes | None:
        """Return the next complete line without its end. A carriage return at the end of the buffer may be half of a
        CRLF: the next byte tells."""
        buffer = self._buffer
        newline = buffer.find(b"\n", self._scanned)
        end = buffer.find(b"\r", self._scanned, len(buffer) if newline < 0 else newline)
        if end < 0:
            end = newline
        elif end + 1 == len(buffer):
            self._ended_with_cr = True
        if end < 0:
            self._scanned = len(buffer)
            return None
        line = bytes(buffer[:end])
        width = 2 if buffer.startswith(b"\r\n", end) else 1
        del buffer[: end + width]
        self._scanned = 0
        return line

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1
            if self._too_large is not None:
                self._too_large.add(value)
            elif self._size > self._max_event + 1:
                self._too_large = _edges_of(*self._data, value)
                self._data.clear()
            else:
                self._data.append(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MOST_DIGITS:
            self.retry = int(value)

    def _drop(self) -> None:
        """Drop an event that is too large, and remember its ends."""
        name, _, value = bytes(self._buffer).partition(b":")
        parts = (value.removeprefix(b" "),) if name == b"data" else ()
        if self._too_large is None:
            self._too_large = _edges_of(*self._data, *parts)
        else:
            self._too_large.add(b"".join(parts))
        self._data.clear()
        self._buffer.clear()
        self._buffer += b"data:"  # so that the rest of the line is dropped too
        self._scanned = len(self._buffer)

    def _dispatch(self) -> SseEvent | TooLarge | None:
        lines, kind, too_large = self._data, self._kind, self._too_large
        self._data, self._size, self._kind, self._too_large = [], 0, "", None
        self.last_id = self._id
        if too_large is not None:
            return TooLarge(self._max_event, too_large.head, too_large.tail)
        if not lines:
            return None
        return SseEvent(b"\n".join(lines), kind or "message", self.last_id)


def _edges_of(*parts: bytes) -> Edges:
    edges = Edges()
    for part in parts:
        edges.add(part)
    return edges


MARGIN: Final = 1024  # for field names and event ids
