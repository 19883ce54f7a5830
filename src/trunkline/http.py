"""HTTP requests and responses as handlers see them.

A route (`Server.route`) takes a `Request` and returns a `Response`. `Context.request` is the `Request` that carried an
MCP message.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qsl

from msgspec import Struct

from trunkline.errors import InvalidParams, MisuseError
from trunkline.errors.options import describe_value
from trunkline.registry.unencodable import to_json
from trunkline.wire import codec

__all__ = ["Request", "Response"]

HeaderValues = Mapping[str, str] | Iterable[tuple[str, str]]

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, "Tokens"
_FRAMING: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"})
_BODILESS: Final = frozenset({204, 205, 304})
_FIRST_FINAL_STATUS: Final = 200

_decode_json: Final = codec.json_decoder(object)


class Request(Struct, frozen=True, kw_only=True, eq=False):
    """An HTTP request: one for a route, or the one that carried an MCP message."""

    method: str  # in capitals, such as `GET`
    path: str  # decoded, without a trailing slash; relative to the path that the application is mounted at
    query_string: str = ""  # as it was sent
    headers: Mapping[str, str] = {}  # names are case-insensitive; the values of a repeated header are joined by commas
    body: bytes = b""  # empty in `Context.request`, where it is the MCP message
    path_params: Mapping[str, str] = {}  # values of the `{name}` segments of the route
    client_host: str = ""  # address of the client, or the one that a trusted proxy reports; empty if unknown
    scheme: str = "http"  # `http` or `https`; a trusted proxy may report it
    root_path: str = ""  # path that the application is mounted at
    principal: Any = None  # the verified caller, as in `Context.principal`
    transport: str = "http"  # `http`, `sse` or `websocket`: how the MCP message arrived
    lifespan: Any = None  # the value of the server's `lifespan`

    def __repr__(self) -> str:
        return f"<Request: {self.method} {self.path}>"  # headers and the body may contain secrets

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query, decoded. The last one counts if a name is repeated."""
        return dict(self.query_items)

    @property
    def query_items(self) -> list[tuple[str, str]]:
        """The parameters of the query as pairs, in order, including repeated names."""
        return parse_qsl(self.query_string, keep_blank_values=True)

    def text(self) -> str:
        """Return the body as text. Raises `InvalidParams`, which becomes status 400, if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise InvalidParams(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None

    def json(self) -> Any:
        """Return the body decoded from JSON. Raises `InvalidParams`, which becomes status 400, if it is not JSON."""
        try:
            return _decode_json(self.body)
        except (ValueError, RecursionError) as error:
            raise InvalidParams(f"the body is not valid JSON: {error}") from None


class Response:
    """The response of a route: body, status and headers."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: bytes | str = b"", *, status: int = 200, headers: HeaderValues = ()) -> None:
        """A text is encoded as UTF-8; without a `content-type` header it is `text/plain`, and bytes are
        `application/octet-stream`. To repeat a header such as `set-cookie`, pass `headers` as pairs. Raises
        `MisuseError` for values that HTTP does not allow."""
        self.status = _check_status(status)
        self.headers = [_check_header(name, value) for name, value in _pairs(headers)]
        self.body = body.encode() if isinstance(body, str) else body
        if not isinstance(cast("Any", self.body), bytes):
            raise MisuseError(f"the body of a response is bytes or a text, not {describe_value(body)}")
        if self.body and self.status in _BODILESS:
            raise MisuseError(f"a response with status {self.status} has no body")
        if self.body and not any(name == "content-type" for name, _ in self.headers):
            kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/octet-stream"
            self.headers.append(("content-type", kind))

    def __repr__(self) -> str:
        return f"<Response: {self.status}, {len(self.body)} bytes>"

    @classmethod
    def text(cls, text: str, *, status: int = 200, headers: HeaderValues = ()) -> "Response":
        """Make a response with plain text."""
        return cls(text, status=status, headers=_with_type("text/plain; charset=utf-8", headers))

    @classmethod
    def html(cls, page: str, *, status: int = 200, headers: HeaderValues = ()) -> "Response":
        """Make a response with an HTML page."""
        return cls(page, status=status, headers=_with_type("text/html; charset=utf-8", headers))

    @classmethod
    def json(cls, value: Any, *, status: int = 200, headers: HeaderValues = ()) -> "Response":
        """Make a response with a value as JSON: what a tool may return, including dataclasses and pydantic models."""
        return cls(to_json(value), status=status, headers=_with_type("application/json", headers))


def _pairs(headers: HeaderValues) -> Iterable[tuple[str, str]]:
    return cast("Mapping[str, str]", headers).items() if isinstance(headers, Mapping) else headers


def _with_type(content_type: str, headers: HeaderValues) -> list[tuple[str, str]]:
    """Return headers with a content type, unless they have one."""
    given = list(_pairs(headers))
    return (
        given if any(name.lower() == "content-type" for name, _ in given) else [("content-type", content_type), *given]
    )


def _check_status(status: Any) -> int:
    try:
        known = HTTPStatus(status)
    except ValueError:
        known = None
    if known is None or isinstance(status, bool) or known < _FIRST_FINAL_STATUS:
        raise MisuseError(f"the status of a response is an HTTP status from 200 up, not {describe_value(status)}")
    return int(known)


def _check_header(name: Any, value: Any) -> tuple[str, str]:
    """Return a header with its name in lower case; raise `MisuseError` for one that cannot be sent."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise MisuseError(f"a header is a pair of texts, not {describe_value(name)}: {type(value).__name__}")
    if not _TOKEN.fullmatch(name):
        raise MisuseError(f"{describe_value(name)} is not the name of a header")
    if name.lower() in _FRAMING:
        raise MisuseError(f"the server sets the header {name.lower()} itself")
    if not value.isprintable() or not _is_latin1(value):
        raise MisuseError(f"the value of the header {name.lower()} has characters that HTTP does not allow")
    return name.lower(), value


def _is_latin1(value: str) -> bool:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True
