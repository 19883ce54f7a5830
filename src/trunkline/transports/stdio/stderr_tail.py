"""The end of what somebody says, for when it matters what that was; and every line of it, for who wants to hear."""

from collections import deque
from collections.abc import Callable

__all__ = ["StderrTail"]


class StderrTail:
    """Keeps the last bytes of a stream, however much goes through."""

    def __init__(self, limit: int, on_line: Callable[[str], None] | None = None) -> None:
        """`on_line` hears every line, without its end; one that is longer than the limit comes in pieces."""
        self._limit = limit
        self._on_line = on_line
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._partial_line = b""  # the beginning of one that has not ended

    def feed(self, data: bytes) -> None:
        """Takes more of the stream."""
        kept = data[-self._limit :]
        self._chunks.append(kept)
        self._size += len(kept)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())
        if self._on_line is not None:
            self._emit_lines(data, self._on_line)

    def _emit_lines(self, data: bytes, hear: Callable[[str], None]) -> None:
        *lines, rest = (self._partial_line + data).split(b"\n")
        while len(rest) > self._limit:
            lines.append(rest[: self._limit])
            rest = rest[self._limit :]
        self._partial_line = rest
        for line in lines:
            hear(_decode_line(line))

    def end(self) -> None:
        """The stream has ended; so has its last line."""
        if self._partial_line and self._on_line is not None:
            line, self._partial_line = self._partial_line, b""
            self._on_line(_decode_line(line))

    @property
    def text(self) -> str:
        """The last of it, as far as it is kept; whole lines, if there is one."""
        kept = b"".join(self._chunks)
        if len(kept) > self._limit:
            kept = kept[-self._limit :]
            kept = kept[kept.find(b"\n") + 1 :]
        return kept.decode("utf-8", "replace").strip()


def _decode_line(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
