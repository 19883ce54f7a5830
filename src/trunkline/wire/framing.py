"""Framing of byte streams: newline-terminated frames, or frames with a Content-Length header.

A framer accepts bytes as they arrive and returns complete frames. A fault is a value at its position among them, so the
frames before and after it are delivered too. A framer buffers at most one frame of the maximum size: longer frames are
dropped as they arrive.

`detect` chooses the framing from the first bytes of a connection, or recognises a foreign protocol; responses use the
same framing.
"""

from typing import Final, Protocol

from msgspec import Struct

from trunkline.wire.undecoded import EDGE, Edges

__all__ = ["BadFrame", "ForeignProtocol", "Frame", "Framing", "LengthFramer", "LineFramer", "TooLarge", "detect"]

MAX_HEADER: Final = 8 * 1024  # a header block is one or two short lines
_SMALL: Final = 4096  # smaller pieces are joined early, so that a trickle of bytes does not multiply its memory
_LONG: Final = 32 * 1024  # above it, `find` is faster than `split` for few long lines
_BLANK: Final = b" \t\r\n"
_LENGTH_NAME: Final = b"content-length"
_HEADER_ENDS: Final = (b"\r\n\r\n", b"\n\n")
_HEADER_NAMES: Final = (_LENGTH_NAME, b"content-type")  # possible first names of a header block
_LONGEST_NAME: Final = max(map(len, _HEADER_NAMES))
_SHOWN: Final = 40  # bytes of a foreign protocol


class TooLarge(Struct, frozen=True):
    """A frame over the size limit, represented by its first and last bytes."""

    limit: int
    head: bytes = b""
    tail: bytes = b""

    @property
    def why(self) -> str:
        """The error message for the peer."""
        return f"message is larger than the limit of {self.limit} bytes"


class BadFrame(Struct, frozen=True):
    """A header block without a usable length."""

    why: str


Frame = bytes | TooLarge | BadFrame


class ForeignProtocol(Struct, frozen=True):
    """The first bytes of a peer that speaks another protocol."""

    start: bytes

    @property
    def why(self) -> str:
        """A description of the peer."""
        return f"the peer speaks something else: it began with {self.start.decode('ascii', 'replace')!r}"


class Framing(Protocol):
    """Framing protocol: splits a byte stream into frames, and frames outgoing messages."""

    def feed(self, data: bytes) -> list[Frame]: ...

    def wrap(self, frame: bytes) -> bytes: ...


class LineFramer:
    """Splits a byte stream into newline-terminated frames, independent of how the bytes arrive. Skips blank lines.

    A line that is complete within one read is sliced directly. Pieces of an unfinished line are joined at its end, so
    no byte is searched twice.
    """

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._pieces: list[bytes] = []  # pieces of an unfinished line
        self._pending_size = 0  # total size of the pieces
        self._skipped: Edges | None = None  # the ends of a line that is too long

    def accepts_lines(self, data: bytes) -> bool:
        """Return whether no line in some bytes continues an earlier piece or can be too long."""
        return not self._pending_size and len(data) <= self._max_frame

    def feed(self, data: bytes) -> list[Frame]:
        """Accept bytes; return the frames that are complete now, in order. A frame over the limit is a `TooLarge`."""
        size = len(data)
        if data.find(b"\n") == size - 1 and not self._pending_size and 0 < size <= self._max_frame:  # one complete line
            return [] if data.isspace() else [data[:-1]]
        lines: list[bytes] = data.split(b"\n") if size < _LONG else _split_lines(data)
        rest = lines.pop()
        if self._pending_size or size > self._max_frame:
            frames = self._measured(lines)
        else:  # no line can be too long
            frames: list[Frame] = [line for line in lines if line and not line.isspace()]
        if rest:
            self._keep(rest)
        return frames

    def _measured(self, lines: list[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        for line in lines:
            whole = line if self._pending_size == 0 else self._joined(line)
            if isinstance(whole, TooLarge):
                frames.append(whole)
            elif len(whole) > self._max_frame:
                frames.append(_without_return(whole, self._max_frame))
            elif whole and not whole.isspace():
                frames.append(whole)
        return frames

    def _keep(self, piece: bytes) -> None:
        self._pending_size += len(piece)
        if self._skipped is not None:
            self._skipped.add(piece)
        elif self._pending_size > self._max_frame + 1:  # the limit, and a carriage return
            self._skipped = Edges()
            for part in (*self._pieces, piece):
                self._skipped.add(part)
            self._pieces.clear()
        else:
            while self._pieces and len(self._pieces[-1]) <= len(piece) < _SMALL:
                piece = self._pieces.pop() + piece
            self._pieces.append(piece)

    def _joined(self, last: bytes) -> bytes | TooLarge:
        """Return the complete line that ends with `last`, or `TooLarge` for a line that was dropped."""
        skipped, self._skipped, self._pending_size = self._skipped, None, 0
        if skipped is not None:
            skipped.add(last)
            return TooLarge(self._max_frame, skipped.head, skipped.tail)
        line = b"".join((*self._pieces, last))
        self._pieces.clear()
        return line

    def wrap(self, frame: bytes) -> bytes:
        """Frame an outgoing message."""
        return frame + b"\n"


def _split_lines(data: bytes) -> list[bytes]:
    """Split data at its newlines."""
    lines: list[bytes] = []
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        lines.append(data[start:end])
        start = end + 1
    lines.append(data[start:])
    return lines


def _without_return(line: bytes, max_frame: int) -> bytes | TooLarge:
    """Return a line without its carriage return if it fits then; else `TooLarge`."""
    if len(line) == max_frame + 1 and line.endswith(b"\r"):
        return line[:-1]
    return TooLarge(max_frame, line[:EDGE], line[-EDGE:])


class LengthFramer:
    """Splits a byte stream into frames, each after a header block with its length in bytes."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._body_length: int | None = None  # length of the next body
        self._drop_remaining = 0  # bytes left to drop of a body that is too long
        self._dropped = Edges()  # the ends of that body
        self._resyncing = False  # after a bad header block: search for the next valid one

    def feed(self, data: bytes) -> list[Frame]:
        """Accept bytes; return the frames that are complete now. Drop a frame over the limit as it arrives."""
        self._buffer += data
        return list(iter(self._next, None))

    def _next(self) -> Frame | None:
        if self._drop_remaining:
            return self._drop()
        if self._body_length is None and (fault := self._read_header()):
            return fault
        if self._body_length is None or len(self._buffer) < self._body_length:
            return None
        frame = bytes(self._buffer[: self._body_length])
        del self._buffer[: self._body_length]
        self._body_length = None
        return frame

    def _drop(self) -> TooLarge | None:
        gone = min(self._drop_remaining, len(self._buffer))
        self._dropped.add(bytes(self._buffer[:gone]))
        del self._buffer[:gone]
        self._drop_remaining -= gone
        if self._drop_remaining:
            return None
        dropped, self._dropped = self._dropped, Edges()
        return TooLarge(self._max_frame, dropped.head, dropped.tail)

    def _read_header(self) -> TooLarge | BadFrame | None:
        while self._buffer[:1] and self._buffer[0] in _BLANK:  # some peers send a line end between frames
            del self._buffer[:1]
        if self._resyncing and not self._find_header():
            return None
        end, width = self._header_end()
        if end < 0:
            may_go_on = len(self._buffer) < MAX_HEADER + len(_HEADER_ENDS[0])
            return None if may_go_on else self._fault("the header block is too long")
        length = _length_in(bytes(self._buffer[:end]))
        if isinstance(length, str):
            return self._fault(length)
        del self._buffer[: end + width]
        if length > self._max_frame:
            self._drop_remaining = length
            return self._drop()
        self._body_length = length
        return None

    def _header_end(self) -> tuple[int, int]:
        """Return the offset and width of the header block's end; -1 if it is incomplete."""
        found = [(self._buffer.find(mark, 0, MAX_HEADER + len(mark)), len(mark)) for mark in _HEADER_ENDS]
        return min((end for end in found if end[0] >= 0), default=(-1, 0))

    def _fault(self, why: str) -> BadFrame:
        del self._buffer[:1]  # so that the search does not find the same header again
        self._resyncing = True
        return BadFrame(why)

    def _find_header(self) -> bool:
        at = self._buffer.lower().find(_LENGTH_NAME + b":")
        self._resyncing = at < 0
        keep = at if at >= 0 else max(0, len(self._buffer) - len(_LENGTH_NAME))
        del self._buffer[:keep]
        return at >= 0

    def wrap(self, frame: bytes) -> bytes:
        """Frame an outgoing message."""
        return b"Content-Length: %d\r\n\r\n%b" % (len(frame), frame)


def _length_in(block: bytes) -> int | str:
    """Return the Content-Length of a header block, or an error message."""
    for line in block.splitlines():
        name, _, value = line.partition(b":")
        if name.strip().lower() == _LENGTH_NAME:
            value = value.strip()
            if value.isdigit() and len(value) <= 18:  # noqa: PLR2004 - more digits than any size has
                return int(value)
            return f"Content-Length must be a whole number of bytes, not {value[:40].decode('ascii', 'replace')!r}"
    return "the header block has no Content-Length"


def detect(start: bytes, max_frame: int) -> Framing | ForeignProtocol | None:
    """Return the framing that a peer's first bytes indicate; None if more bytes are needed.

    A message begins with a bracket, and a header block with one of two names. Any other beginning, such as a request of
    another protocol, is a `ForeignProtocol`.
    """
    shown = start.lstrip(_BLANK)
    if not shown:
        return None
    if shown[0] in b"{[":
        return LineFramer(max_frame)
    first = shown[:_LONGEST_NAME].lower()
    if first.startswith(_HEADER_NAMES):
        return LengthFramer(max_frame)
    return None if any(name.startswith(first) for name in _HEADER_NAMES) else ForeignProtocol(shown[:_SHOWN])
