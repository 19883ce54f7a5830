"""A byte stream to frames: newline-ended lines, or a Content-Length header before each.

A framer is fed bytes as they come and gives whole frames one at a time, so that what came before a fault
is still delivered, and what comes after it too. It never holds more than one frame of the largest size
allowed: what is longer is dropped as it arrives, and a value is given in its place.

`detect` looks at the first bytes of a connection and settles for one of the two; answers are framed in kind.
"""

from typing import Final, Protocol

from msgspec import Struct

__all__ = ["BadFrame", "Frame", "Framing", "LengthFramer", "LineFramer", "TooLarge", "detect"]

MAX_HEADER: Final = 8 * 1024  # a header block is one or two short lines; more is no header block
_BLANK: Final = b" \t\r\n"
_LENGTH_NAME: Final = b"content-length"


class TooLarge(Struct, frozen=True):
    """Stands where a frame over the limit stood."""

    limit: int

    @property
    def why(self) -> str:
        """A sentence for the peer."""
        return f"message is larger than the limit of {self.limit} bytes"


class BadFrame(Struct, frozen=True):
    """Stands where a header block stood that gave no usable length."""

    why: str


Frame = bytes | TooLarge | BadFrame


class Framing(Protocol):
    """Cuts a stream into frames, and puts frames into a stream."""

    def feed(self, data: bytes) -> None: ...
    def next_frame(self) -> Frame | None: ...
    def wrap(self, frame: bytes) -> bytes: ...


class LineFramer:
    """Cuts a byte stream into newline-ended frames, however the bytes arrive. Blank lines are passed over.

    A line that lies whole in what was fed is cut out of it directly. Pieces of an unfinished line are kept
    as they came and joined once, so no byte is searched or moved twice.
    """

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._data = b""  # what was fed last
        self._at = 0  # where the next frame begins in it
        self._pieces: list[bytes] = []  # of a line that has not ended yet
        self._kept = 0  # their size
        self._skipping = False  # inside a line that is too long already

    def feed(self, data: bytes) -> None:
        """Takes what has arrived."""
        self._data = data if self._at >= len(self._data) else self._data[self._at :] + data
        self._at = 0

    def next_frame(self) -> Frame | None:
        """The next frame, or None until more is fed. One over the limit is dropped and reported in its place."""
        while (end := self._data.find(b"\n", self._at)) >= 0:
            line = self._data[self._at : end]
            self._at = end + 1
            if self._pieces or self._skipping:
                line = self._join(line)
                if line is None:
                    return TooLarge(self._max_frame)
            if line.endswith(b"\r"):
                line = line[:-1]
            if len(line) > self._max_frame:
                return TooLarge(self._max_frame)
            if line and not line.isspace():
                return line
        if self._at < len(self._data):
            self._keep(self._data[self._at :])
            self._at = len(self._data)
        return None

    def _keep(self, piece: bytes) -> None:
        if not self._skipping:
            self._pieces.append(piece)
            self._kept += len(piece)
            if self._kept > self._max_frame + 1:  # one more than allowed, and a carriage return
                self._skipping = True
                self._pieces.clear()

    def _join(self, last: bytes) -> bytes | None:
        skipped = self._skipping
        line = None if skipped else b"".join((*self._pieces, last))
        self._pieces.clear()
        self._kept = 0
        self._skipping = False
        return line

    def wrap(self, frame: bytes) -> bytes:
        """A frame as it goes out."""
        return frame + b"\n"


class LengthFramer:
    """Cuts a byte stream into frames that each follow a header block with their length in bytes."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._wanted: int | None = None  # length of the body that comes next
        self._dropping = 0  # bytes left of a body that is too long
        self._lost = False  # after a bad header block: look for the next good one

    def feed(self, data: bytes) -> None:
        """Takes what has arrived."""
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next frame, or None until more is fed. A huge one is refused before any of it is kept."""
        if self._dropping and not self._drop():
            return None
        if self._wanted is None and (fault := self._read_header()):
            return fault
        if self._wanted is None or len(self._buffer) < self._wanted:
            return None
        frame = bytes(self._buffer[: self._wanted])
        del self._buffer[: self._wanted]
        self._wanted = None
        return frame

    def _drop(self) -> bool:
        gone = min(self._dropping, len(self._buffer))
        del self._buffer[:gone]
        self._dropping -= gone
        return not self._dropping

    def _read_header(self) -> TooLarge | BadFrame | None:
        while self._buffer[:1] and self._buffer[0] in _BLANK:  # between frames, some peers send a line end
            del self._buffer[:1]
        if self._lost and not self._find_header():
            return None
        end, width = self._header_end()
        if end < 0:
            return self._fault("the header block is too long") if len(self._buffer) > MAX_HEADER else None
        length = _length_in(bytes(self._buffer[:end]))
        if isinstance(length, str):
            return self._fault(length)
        del self._buffer[: end + width]
        if length > self._max_frame:
            self._dropping = length
            return TooLarge(self._max_frame)
        self._wanted = length
        return None

    def _header_end(self) -> tuple[int, int]:
        ends = [(at, len(mark)) for mark in (b"\r\n\r\n", b"\n\n") if (at := self._buffer.find(mark)) >= 0]
        return min(ends, default=(-1, 0))

    def _fault(self, why: str) -> BadFrame:
        del self._buffer[:1]  # so that the same header is not found again
        self._lost = True
        return BadFrame(why)

    def _find_header(self) -> bool:
        at = self._buffer.lower().find(_LENGTH_NAME + b":")
        self._lost = at < 0
        keep = at if at >= 0 else max(0, len(self._buffer) - len(_LENGTH_NAME))
        del self._buffer[:keep]
        return at >= 0

    def wrap(self, frame: bytes) -> bytes:
        """A frame as it goes out."""
        return b"Content-Length: %d\r\n\r\n%b" % (len(frame), frame)


def _length_in(block: bytes) -> int | str:
    """The length that a header block states, or what is wrong with it."""
    for line in block.splitlines():
        name, _, value = line.partition(b":")
        if name.strip().lower() == _LENGTH_NAME:
            value = value.strip()
            if value.isdigit() and len(value) <= 18:  # noqa: PLR2004 - more digits than any size has
                return int(value)
            return f"Content-Length must be a whole number of bytes, not {value[:40].decode('ascii', 'replace')!r}"
    return "the header block has no Content-Length"


def detect(start: bytes, max_frame: int) -> Framing | None:
    """The framing that a peer's first bytes show; None while they are blank.

    No JSON text begins with a C, so one byte tells a header from a message.
    """
    first = start.lstrip(_BLANK)[:1]
    if not first:
        return None
    return LengthFramer(max_frame) if first in b"cC" else LineFramer(max_frame)
