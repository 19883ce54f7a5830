"""Parse HTTP/1.1 responses with httptools. Nothing here performs I/O.

httptools accepts more than a client should rely on, and has no limits. So this parser refuses a response whose length
is ambiguous (RFC 9112, section 6.3), a protocol switch that was not requested, and headers over a limit. Bytes that are
not content count towards that limit, wherever they are: in interim responses, headers, chunk extensions and trailers.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import httptools

from trunkline.errors import TransportError

__all__ = ["MAX_HEAD_SIZE", "Headers", "InvalidResponse", "ResponseParser"]

MAX_HEAD_SIZE: Final = 64 * 1024  # bytes; servers limit their own heads to 8 or 16 KiB
_MAX_HEADERS: Final = 256  # lines
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_FIRST_STATUS: Final = 100
_SWITCHING_PROTOCOLS: Final = 101
_FIRST_FINAL_STATUS: Final = 200
_NO_CONTENT: Final = frozenset({204, 304})


class InvalidResponse(TransportError):
    """Bytes that are not a valid HTTP/1.1 response."""


class Headers(Mapping[str, str]):
    """Response headers; names are case-insensitive. The values of a repeated header are joined by commas."""

    __slots__ = ("_values",)

    def __init__(self, lines: "list[tuple[bytes, bytes]]") -> None:
        values: dict[str, str] = {}
        for raw, line in lines:
            name, value = raw.decode("latin-1").lower(), line.strip(b" \t").decode("utf-8", "surrogateescape")
            values[name] = f"{values[name]}, {value}" if name in values else value
        self._values = values

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a header, or the default."""
        return self._values.get(name.lower(), default)


class ResponseParser:
    """Parses the responses on one connection, one after the other."""

    __slots__ = (
        "_before_content",
        "_bodyless",
        "_final",
        "_head_size",
        "_lines",
        "_parser",
        "_reason",
        "_started",
        "_until_eof",
        "_violation",
        "chunks",
        "complete",
        "headers",
        "reason",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self._parser: Any = cast("Any", httptools).HttpResponseParser(self)
        self.chunks: list[bytes] = []  # content that arrived since the caller emptied the list
        self._final = True  # the headers of the final response are complete
        self.complete = True  # all of the response has arrived
        self.begin("")

    def begin(self, method: str) -> None:
        """Expect the response to a request."""
        self.chunks = []
        self.headers: Headers | None = None  # set when the headers of the final response are complete
        self.status = 0
        self.reason = ""
        self.complete = not method
        self.reusable = False  # whether the connection may be used again once the response is complete
        self._final = False
        self._bodyless = method == "HEAD"
        self._until_eof = False
        self._started = False  # a byte has arrived
        self._before_content = 0  # bytes without content
        self._head_size = 0
        self._lines: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._violation: str | None = None

    @property
    def started(self) -> bool:
        """Whether any byte of the response has arrived."""
        return self._started

    def feed(self, data: "bytes | memoryview") -> None:
        """Parse bytes. Raise `InvalidResponse` if they are not part of a valid response; content before them is in
        `chunks`. Bytes after a complete response make the connection unusable."""
        self._started = True
        if self.complete:
            self.reusable = False
            return
        self._before_content += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._violation = self._violation or "it switches to another protocol"
        except httptools.HttpParserError as error:
            self._violation = self._violation or str(error)
        if self.complete:
            self.reusable = self.reusable and self._violation is None
        elif self._violation is not None:
            raise InvalidResponse(f"the response is not valid HTTP: {self._violation}")
        elif self._before_content > MAX_HEAD_SIZE:
            raise InvalidResponse(
                f"the response is not valid HTTP: more than {MAX_HEAD_SIZE} bytes of headers or framing"
            )

    def receive_eof(self) -> bool:
        """The server has closed its direction. Return whether the response is complete, since its length is that of
        the connection."""
        if self._final and self._until_eof and self._violation is None:
            self.complete = True
        self.reusable = False
        return self.complete

    # --- callbacks of httptools -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A response begins, maybe after an interim response."""
        if self.complete:
            self._violation = "unexpected bytes after the response"

    def on_status(self, reason: bytes) -> None:
        """Part of the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line, or a line of the trailer, which is ignored."""
        self._head_size += len(name) + len(value or b"")
        if self._head_size > MAX_HEAD_SIZE or len(self._lines) >= _MAX_HEADERS:
            self._violation = self._violation or "too many headers"
        elif not self._final:
            self._lines.append((name, value or b""))

    def on_headers_complete(self) -> None:
        """The headers of a final or an interim response are complete."""
        if self.complete or self._violation is not None:
            return
        status: int = self._parser.get_status_code()
        version: str = self._parser.get_http_version()
        if version not in _VERSIONS or status < _FIRST_STATUS:
            self._violation = f"HTTP/{version} {status}"
        elif status == _SWITCHING_PROTOCOLS:
            self._violation = "it switches to another protocol"
        elif status >= _FIRST_FINAL_STATUS:
            headers = Headers(self._lines)
            self._violation = self._check_length(headers, version)
            if self._violation is None:
                self._final, self.status, self.headers = True, status, headers
                self.reason = self._reason.decode("utf-8", "replace")
                self._bodyless = self._bodyless or status in _NO_CONTENT
                self.complete = self._bodyless
        self._lines, self._reason = [], b""

    def _check_length(self, headers: Headers, version: str) -> str | None:
        """Determine how the body ends; return the violation if that is ambiguous."""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        self._until_eof = coding is None and length is None
        if coding is not None and (coding.lower() != "chunked" or version == "1.0"):
            return f"the transfer coding {coding[:40]!r}"
        if coding is not None and length is not None:
            return "both Content-Length and Transfer-Encoding"
        if length is not None and not (length.isascii() and length.isdigit()):
            return f"Content-Length {length[:40]!r}"
        return None

    def on_body(self, data: bytes) -> None:
        """Part of the content."""
        if self.complete or self._violation is not None:
            self._violation = self._violation or "content after a response that has none"
        elif self._final:
            self._before_content = 0
            self.chunks.append(data)

    def on_message_complete(self) -> None:
        """The whole response has been parsed; an interim one is followed by another."""
        if self._final and self._violation is None:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()
