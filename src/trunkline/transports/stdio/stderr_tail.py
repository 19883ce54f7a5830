"""The last part of a child's standard error, for error messages, and its lines, for `on_stderr`."""

from collections import deque
from collections.abc import Callable

__all__ = ["StderrTail"]


class StderrTail:
    """The last bytes of a stream of any length."""

    def __init__(self, limit: int, on_line: Callable[[str], None] | None = None) -> None:
        """`on_line` is called with every line, without its newline; a line longer than the limit arrives in pieces."""
        self._limit = limit
        self._on_line = on_line
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._partial_line = b""  # the beginning of an incomplete line

    def feed(self, data: bytes) -> None:
        """Append bytes."""
        tail = data[-self._limit :]
        self._chunks.append(tail)
        self._size += len(tail)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())
        if self._on_line is not None:
            self._emit_lines(data, self._on_line)

    def _emit_lines(self, data: bytes, on_line: Callable[[str], None]) -> None:
        *lines, rest = (self._partial_line + data).split(b"\n")
        while len(rest) > self._limit:
            lines.append(rest[: self._limit])
            rest = rest[self._limit :]
        self._partial_line = rest
        for line in lines:
            on_line(_decode_line(line))

    def end(self) -> None:
        """The stream has ended; emit an incomplete last line."""
        if self._partial_line and self._on_line is not None:
            line, self._partial_line = self._partial_line, b""
            self._on_line(_decode_line(line))

    @property
    def text(self) -> str:
        """The last bytes as text, in whole lines if there is one."""
        tail = b"".join(self._chunks)
        if len(tail) > self._limit:
            tail = tail[-self._limit :]
            tail = tail[tail.find(b"\n") + 1 :]
        return tail.decode("utf-8", "replace").strip()


def _decode_line(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
