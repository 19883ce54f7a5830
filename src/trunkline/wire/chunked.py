"""Incremental decoder of the chunked transfer coding (RFC 9112, section 7.1).

The decoder is strict: lines end with CRLF, a size has hexadecimal digits only, and extensions and trailer fields follow
the grammar. It drops extensions and trailer fields, as the RFC allows: no intermediary has checked a trailer field as a
header.
"""

import re
from typing import Final

__all__ = ["BadChunk", "ChunkOverheadTooLong", "ChunkedDecoder"]

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_CHUNK_HEAD: Final = re.compile(
    rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED)
)
_TRAILER_FIELD: Final = re.compile(rb"%b:[\t \x21-\x7e\x80-\xff]*" % _TOKEN)
_CRLF: Final = b"\r\n"
_PLAIN_SIZE: Final = 18  # the length of a line with a size and no extension


class BadChunk(Exception):
    """The bytes are no valid chunked body."""


class ChunkOverheadTooLong(BadChunk):
    """Chunk extensions and trailer fields exceed their limit."""


class ChunkedDecoder:
    """Decodes one body. `complete` is set after its last byte."""

    __slots__ = ("_aside_bytes", "_aside_limit", "_in_trailer", "_line", "_remaining", "complete", "pieces", "size")

    def __init__(self, aside_limit: int) -> None:
        """`aside_limit` is the number of bytes that extensions and trailer fields may have together."""
        self.complete = False
        self.pieces: list[bytes] = []
        self.size = 0  # of all pieces so far, also of those that were taken away
        self._aside_limit = aside_limit
        self._aside_bytes = 0
        self._line = b""  # the beginning of a line whose end has not arrived
        self._remaining = 0  # bytes of the current chunk still to come, with the CRLF behind it
        self._in_trailer = False

    def feed(self, data: bytes) -> bytes:
        """Decode bytes: add the parts of the body to `pieces`, and return what follows the body. Raise `BadChunk`."""
        position = 0
        while not self.complete and position < len(data):
            if self._remaining:
                position = self._read_chunk(data, position)
                continue
            end = data.find(b"\n", position)
            if end < 0:
                self._keep_line(data[position:])
                return b""
            line, self._line = self._line + data[position : end + 1], b""
            self._read_line(line)
            position = end + 1
        return data[position:]

    def _read_chunk(self, data: bytes, position: int) -> int:
        """Read from the current chunk and the CRLF behind it; return the new position."""
        part = data[position : position + self._remaining]
        overlap = len(_CRLF) - (self._remaining - len(part))  # how many bytes of the part belong to the CRLF
        if overlap > 0:
            ending = part[-overlap:] if overlap < len(part) else part
            start = max(len(_CRLF) - self._remaining, 0)
            if ending != _CRLF[start : start + len(ending)]:
                raise BadChunk("a chunk must end with CRLF")
            content = part[: len(part) - len(ending)]
        else:
            content = part
        if content:
            self.pieces.append(content)
            self.size += len(content)
        self._remaining -= len(part)
        return position + len(part)

    def _keep_line(self, part: bytes) -> None:
        """Keep the beginning of a line; refuse it as soon as it is too long or cannot become valid."""
        self._line += part
        if b"\r" in self._line[:-1]:
            raise BadChunk("a line of a chunked body must end with CRLF")
        if len(self._line) > max(self._aside_limit, _PLAIN_SIZE):
            raise ChunkOverheadTooLong("a line is too long")

    def _read_line(self, line: bytes) -> None:
        if not line.endswith(_CRLF):
            raise BadChunk("a line of a chunked body must end with CRLF")
        line = line[:-2]
        if self._in_trailer:
            self._read_trailer(line)
            return
        match = _CHUNK_HEAD.fullmatch(line)
        if match is None:
            raise BadChunk("invalid chunk size or extension")
        size = match[1]
        self._count_aside(len(line) - len(size))
        length = int(size, 16)
        if length:
            self._remaining = length + len(_CRLF)
        else:
            self._in_trailer = True

    def _read_trailer(self, line: bytes) -> None:
        if not line:
            self.complete = True
        elif _TRAILER_FIELD.fullmatch(line) is None:
            raise BadChunk("invalid trailer field")
        else:
            self._count_aside(len(line))

    def _count_aside(self, size: int) -> None:
        self._aside_bytes += size
        if self._aside_bytes > self._aside_limit:
            raise ChunkOverheadTooLong("extensions and trailer fields are too long")
