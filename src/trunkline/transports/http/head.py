"""Head of an HTTP/1.1 request: parsed by llhttp (`httptools`), and checked where llhttp is laxer than RFC 9112."""

import ipaddress
import re
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import httptools

from trunkline.transports.http.request import HttpHead

__all__ = ["BadHead", "HeadParser", "KnownHead", "split_target"]

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE: Final = re.compile(rb"(%b+) ([\x21-\x7e\x80-\xff]+) HTTP/(\d\.\d)\r\n" % _TOKEN)
_BEGUN_LINE: Final = re.compile(  # what may become a request line
    rb"%b*(?: [\x21-\x7e\x80-\xff]*(?: (?:H(?:T(?:T(?:P(?:/(?:\d(?:\.(?:\d\r?)?)?)?)?)?)?)?)?)?)?" % _TOKEN
)
_AUTHORITY: Final = re.compile(
    rb"(?:\[([0-9A-Fa-f:.]+)\]|(?:[0-9A-Za-z\-._~!$&'()*+;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)  # RFC 3986, section 3.2, without user information; a comma would be a list
_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH"})
_HEAD_END: Final = b"\r\n\r\n"
_CONTENT_LENGTH: Final = re.compile(rb"\r\nContent-Length:[ \t]*([0-9]+)(?=\r\n)", re.IGNORECASE)
_LENGTH_DIGITS: Final = 16  # more than any size limit has
_EMPTY_LINE: Final = (b"", b"\r")  # perhaps the beginning of one
_LONGEST_KNOWN: Final = 4096  # bytes of a head that a connection remembers; twice a head with a long token
_MAX_HEADERS: Final = 256  # each costs more than its bytes
_CACHED: Final = 256  # longer values are not worth a place in the caches


class BadHead(Exception):
    """The head is no valid HTTP/1.1 request head: the status and the reason for the client."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


_INVALID: Final = "invalid HTTP request"
_BAD_LINE: Final = "invalid request line: send METHOD, target and HTTP/1.1 with one space between them"
_BAD_TARGET: Final = "invalid request target: send a path, or an absolute http:// or https:// URL"
_BAD_VERSION: Final = "this HTTP version is not supported: send HTTP/1.1"
_BAD_CODING: Final = "this transfer coding is not supported: send chunked alone, or a Content-Length"
_OLD_CODING: Final = "HTTP/1.0 has no transfer codings: send a Content-Length"
_BAD_METHOD: Final = "this method is not supported"
_NO_HOST: Final = "a request must have one Host header"
_BAD_HOST: Final = "invalid Host header: send a host name or address, and a port if it is not the default"
_LINE_TOO_LONG: Final = "the request target is too long"
_UPGRADE_BODY: Final = "a request with an Upgrade header must not have a body"
_TOO_LONG: Final = "the headers of the request are too long"


class HeadParser:
    """Parses the head of one request from bytes as they arrive.

    Repeated headers are joined by commas (RFC 9110, section 5.3); their names are in `repeated`.
    """

    __slots__ = (
        "_complete",
        "_count",
        "_head",
        "_parsed_to",
        "_parser",
        "_size_limit",
        "chunked",
        "content_length",
        "headers",
        "keep_alive",
        "method",
        "repeated",
        "target",
        "upgrade",
        "version",
        "websocket",
    )

    def __init__(self, size_limit: int) -> None:
        self._size_limit = size_limit
        self._head = b""  # received so far, while the head is incomplete
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parsed_to = 0  # how much of it the parser has seen
        self._complete = False
        self._count = 0
        self.headers: dict[bytes, bytes] = {}
        self.repeated: tuple[bytes, ...] = ()
        self.target = b""
        self.method = b""
        self.version = b""
        self.keep_alive = True
        self.upgrade = False  # the client asks for another protocol on this connection
        self.websocket = False  # that protocol is WebSocket
        self.chunked = False
        self.content_length = 0

    # --- callbacks of httptools -------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        name, value = name.lower(), value.rstrip(b" \t")  # RFC 9110, section 5.5
        self._count += 1
        if self._count > _MAX_HEADERS:
            return
        if name in self.headers:
            self.repeated = (*self.repeated, name)
            self.headers[name] += b", " + value
        else:
            self.headers[name] = value

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._complete = True

    # --- parsing ----------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether a part of the head has arrived."""
        return bool(self._head)

    def feed(self, data: bytes) -> bytes | None:
        """Parse bytes. Return what follows the head once it is complete, None before. Raise `BadHead`."""
        head = self._head + data if self._head else data
        if not self.method:
            if head[:1] <= b"\r":
                head = _skip_empty_lines(head)
            if head in _EMPTY_LINE or not self._read_request_line(head):
                self._head = head
                return None
        end = head.find(_HEAD_END, self._search_start)
        size = len(head) if end < 0 else end + len(_HEAD_END)
        if size > self._size_limit:
            raise BadHead(431, _TOO_LONG)
        try:
            self._parser.feed_data(head[self._parsed_to : size] if self._parsed_to or size < len(head) else head)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            raise BadHead(400, _INVALID) from None
        if self._count > _MAX_HEADERS:
            raise BadHead(431, f"the request has more than {_MAX_HEADERS} headers")
        if self._complete != (end >= 0):  # llhttp has found another end of the head
            raise BadHead(400, _INVALID)
        if end < 0:
            self._head = head
            self._parsed_to = size
            return None
        self._parser = None  # it refers to this object
        self._check_headers()
        self._head = head[:size]
        return head[size:]

    @property
    def _search_start(self) -> int:
        """Where to look for the end of the head: it may have begun in bytes that were parsed before."""
        return max(self._parsed_to - len(_HEAD_END) + 1, 0)

    def to_http_head(self) -> HttpHead:
        """Return the complete head as applications see it."""
        path, query = split_target(self.target)
        return HttpHead(self.method.decode("ascii"), path, self.headers, query=query, repeated=self.repeated)

    def remember(self, head: HttpHead) -> "KnownHead | None":
        """Return this complete head in a form that recognizes it when the client sends it again; None if its validity
        depends on more than the digits of a Content-Length, or if it is long."""
        length = None if self.repeated or len(self._head) > _LONGEST_KNOWN else _CONTENT_LENGTH.search(self._head)
        if length is None or self.chunked or self.upgrade:
            return None
        return KnownHead(self, head, self._head, length.span(1))

    def _read_request_line(self, head: bytes) -> bool:
        """Read the request line; return False while it is incomplete."""
        line = _REQUEST_LINE.match(head)
        if line is None:
            if len(head) > self._size_limit and b"\n" not in head[: self._size_limit]:
                raise BadHead(414, _LINE_TOO_LONG)
            if _BEGUN_LINE.fullmatch(head) is None:
                raise BadHead(400, _BAD_LINE)
            return False
        if line.end() > self._size_limit:
            raise BadHead(414, _LINE_TOO_LONG)
        self.method, self.target, self.version = line.groups()
        if self.version != b"1.1":
            if self.version != b"1.0":
                raise BadHead(505, _BAD_VERSION)
            self.keep_alive = False
        if self.method not in _METHODS:
            raise BadHead(501, _BAD_METHOD)
        return True

    def _check_headers(self) -> None:
        """Check what llhttp leaves unchecked, and find out how the body is framed."""
        headers = self.headers
        if b"connection" in headers:
            self._read_connection_options(headers[b"connection"])
        if b"transfer-encoding" in headers:
            self._check_coding(headers[b"transfer-encoding"].lower())
            self.chunked = True
        elif (length := headers.get(b"content-length")) is not None:
            if not length.isdigit():
                raise BadHead(400, _INVALID)
            self.content_length = int(length)
        if self.upgrade and (self.chunked or self.content_length):
            raise BadHead(400, _UPGRADE_BODY)
        host = headers.get(b"host")
        if host is None:
            if self.version == b"1.1":
                raise BadHead(400, _NO_HOST)
        elif not _is_authority(host):
            raise BadHead(400, _BAD_HOST)
        if not self.target.startswith(b"/") or b"#" in self.target:
            self._resolve_other_form()

    def _read_connection_options(self, value: bytes) -> None:
        options = {option.strip() for option in value.lower().split(b",")}
        if b"close" in options:
            self.keep_alive = False
        elif b"keep-alive" in options:
            self.keep_alive = True
        self.upgrade = b"upgrade" in options and b"upgrade" in self.headers and self.version == b"1.1"
        self.websocket = self.upgrade and self.method == b"GET" and self.headers[b"upgrade"].lower() == b"websocket"

    def _check_coding(self, coding: bytes) -> None:
        if coding != b"chunked":
            *others, last = [each.strip() for each in coding.split(b",")]
            if last == b"chunked" and others and b"chunked" not in others and all(others):
                raise BadHead(501, _BAD_CODING)
            raise BadHead(400, _INVALID)  # RFC 9112, section 6.3: the end of the body is undefined
        if self.version == b"1.0":
            raise BadHead(400, _OLD_CODING)
        if b"content-length" in self.headers:
            raise BadHead(400, _INVALID)

    def _resolve_other_form(self) -> None:
        """Accept `OPTIONS *`, and absolute targets: use the path of such a target, and its authority instead of the
        Host header (RFC 9112, section 3.2.2)."""
        if self.target == b"*" and self.method == b"OPTIONS":
            return
        scheme, colon, rest = self.target.partition(b"://")
        if not colon or scheme.lower() not in {b"http", b"https"} or b"#" in rest:
            raise BadHead(400, _BAD_TARGET)
        size = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
        authority, target = rest[:size], rest[size:]
        if not authority or authority.startswith(b":") or not _is_authority(authority):
            raise BadHead(400, _BAD_TARGET)
        self.target = target if target.startswith(b"/") else b"/" + target
        self.headers[b"host"] = authority


class KnownHead:
    """A valid head that a client may send again: most clients do while a connection is kept, but for the length of the
    body. Recognizing it costs a fraction of parsing it."""

    __slots__ = ("_after", "_before", "_last", "content_length", "head", "parsed")

    def __init__(self, parsed: HeadParser, head: HttpHead, received: bytes, digits: tuple[int, int]) -> None:
        """`digits` says where the digits of the Content-Length are in the received bytes."""
        self.parsed = parsed
        self.head = head
        self.content_length = parsed.content_length
        self._last = received
        self._before = received[: digits[0]]
        self._after = received[digits[1] :]

    def match(self, data: bytes) -> int:
        """Return the size of the head if data begins with this head, whatever its Content-Length, which is then that of
        `head`; otherwise 0."""
        if data.startswith(self._last):
            return len(self._last)
        if not data.startswith(self._before):
            return 0
        start = len(self._before)
        end = data.find(b"\r", start, start + _LENGTH_DIGITS)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return 0
        size = end + len(self._after)
        self._last = data[:size]
        self.content_length = int(digits)
        self.head = self.head.with_content_length(digits)
        return size


def _skip_empty_lines(data: bytes) -> bytes:
    """Skip empty lines before a request line (RFC 9112, section 2.2)."""
    start = 0
    while data.startswith(b"\r\n", start):
        start += 2
    return data[start:]


def _is_authority(value: bytes) -> bool:
    """Return whether a value is a host, with or without a port."""
    return (_match_authority if len(value) <= _CACHED else _match_authority.__wrapped__)(value)


@lru_cache(maxsize=256)
def _match_authority(value: bytes) -> bool:
    match = _AUTHORITY.fullmatch(value)
    if match is None or match[1] is None:
        return match is not None
    try:
        ipaddress.IPv6Address(match[1].decode("ascii"))
    except ValueError:
        return False
    return True


def split_target(target: bytes) -> tuple[str, bytes]:
    """Return the decoded path and the query of a request target."""
    return (_split_target if len(target) <= _CACHED else _split_target.__wrapped__)(target)


@lru_cache(maxsize=256)
def _split_target(target: bytes) -> tuple[str, bytes]:
    path, _, query = target.partition(b"?")
    return unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1"), query
