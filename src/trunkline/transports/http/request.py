"""One HTTP request as ASGI delivers it, and the methods that respond to it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from trunkline.errors import ProtocolError
from trunkline.transports.addresses import format_host_port
from trunkline.wire import codec
from trunkline.wire.messages import RequestId

__all__ = [
    "HALF_CLOSED_EXTENSION",
    "JSON_CONTENT_TYPE",
    "RESPOND_EXTENSION",
    "WRITE_EXTENSION",
    "BodyTooLarge",
    "Disconnected",
    "HeaderView",
    "Headers",
    "HttpRequest",
    "Receive",
    "Scope",
    "Send",
    "cancel_and_wait",
    "insufficient_scope_challenge",
]

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

RESPOND_EXTENSION: Final = "trunkline.answer"
"""ASGI extension of the built-in listener: writes a whole response that is no error in one call."""
WRITE_EXTENSION: Final = "trunkline.more"
"""ASGI extension of the built-in listener: writes one more chunk of a stream without waiting."""

HALF_CLOSED_EXTENSION: Final = "trunkline.half_closed"
"""ASGI extension of the built-in listener: registers a callback for the peer closing its sending side."""

JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_FIRST_ERROR_STATUS: Final = 400  # the lowest status of an error
_NO_EXTENSIONS: Final[dict[str, Any]] = {}
_SSE_HEADERS: Final[Headers] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # a buffering proxy would hold back events
]


class BodyTooLarge(Exception):
    """The request body exceeds the size limit."""


class Disconnected(Exception):
    """The peer disconnected before the request was complete."""


class HttpRequest:
    """An HTTP request, its authenticated principal, and the way to respond to it."""

    __slots__ = (
        "_send",
        "auth_expires_at",
        "extra_headers",
        "headers",
        "principal",
        "receive",
        "scope",
        "scope_challenge",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(self.headers) < len(scope["headers"]) and b"accept" in self.headers:  # RFC 9110, 5.3: it may be split
            self.headers[b"accept"] = b", ".join(value for name, value in scope["headers"] if name == b"accept")
        self.extra_headers: Headers = []  # added to every response
        self.principal: Any = None
        self.auth_expires_at: float | None = None  # by the guard's clock
        self.scope_challenge: Callable[[Sequence[str]], tuple[bytes, bytes]] = insufficient_scope_challenge
        self._send = send

    async def respond(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        """Send a whole response, in one write where the listener supports it."""
        all_headers = [*headers, *self.extra_headers, (b"content-length", b"%d" % len(body))]
        respond_at_once: Any = (self.scope.get("extensions") or _NO_EXTENSIONS).get(RESPOND_EXTENSION)
        if respond_at_once is not None and status < _FIRST_ERROR_STATUS and respond_at_once(status, all_headers, body):
            return
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(
        self,
        status: int,
        reason: str,
        *headers: tuple[bytes, bytes],
        code: int = -32600,
        kind: str = "invalid_request",
        request_id: RequestId | None = None,
    ) -> None:
        """Send an error response with a JSON-RPC error as its body. The error has no id unless `request_id` is
        given."""
        data: dict[str, Any] = {"kind": kind}
        if (seconds := dict(headers).get(b"retry-after")) is not None:
            data["retryAfterMs"] = int(seconds) * 1000
        await self.refuse_with_error(status, ProtocolError.rebuilt(reason, code, data), *headers, request_id=request_id)

    async def refuse_with_error(
        self, status: int, error: ProtocolError, *headers: tuple[bytes, bytes], request_id: RequestId | None = None
    ) -> None:
        """Send an error response whose body is the given error."""
        error_object = {"code": error.code, "message": error.message, "data": error.data}
        identified = {} if request_id is None else {"id": request_id}
        await self.respond(
            status, codec.to_json({"jsonrpc": "2.0", **identified, "error": error_object}), JSON_CONTENT_TYPE, *headers
        )

    async def refuse_method(self, allowed: bytes) -> None:
        """Respond 405 with the methods that are allowed."""
        await self.refuse_with_error(
            405, ProtocolError.rebuilt(f"method not allowed: use {allowed.decode()}", -32600), (b"allow", allowed)
        )

    @property
    def peer(self) -> str:
        """The client's address and port; empty if unknown."""
        client = self.scope.get("client")
        return format_host_port(client[0], client[1]) if client else ""

    @property
    def client_host(self) -> str:
        """The client's address without its port; behind a trusted proxy, the address that the proxy reports."""
        client = self.scope.get("client")
        return client[0] if client else ""

    async def begin_stream(self) -> None:
        """Start the response with the headers of an event stream."""
        await self.begin_response(200, _SSE_HEADERS)

    async def begin_response(self, status: int, headers: Headers) -> None:
        """Start a response whose body follows in chunks."""
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.extra_headers]})

    @property
    def write_nowait(self) -> Callable[[bytes], bool] | None:
        """A function that writes a chunk at once and returns False if the peer reads too slowly. None unless the
        built-in listener serves the request."""
        return (self.scope.get("extensions") or _NO_EXTENSIONS).get(WRITE_EXTENSION)

    async def write(self, data: bytes) -> None:
        """Write a chunk of a stream, waiting while the peer reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of a stream that were written but not acknowledged by the process that forwards them to the client.
        Always 0 for a direct connection, where TCP acknowledgements are invisible."""
        return 0

    async def end_stream(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def wait_disconnected(self) -> None:
        """Wait until the peer has disconnected."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def when_half_closed(self, callback: Callable[[], object]) -> None:
        """Call a callback once the peer has closed its sending side: it may be gone, or still be reading. Only a later
        write tells which. Does nothing unless the built-in listener serves the request."""
        register: Any = (self.scope.get("extensions") or _NO_EXTENSIONS).get(HALF_CLOSED_EXTENSION)
        if register is not None:
            register(callback)

    async def read_body(self, limit: int) -> bytes:
        """Return the whole body. Raise `BodyTooLarge` as soon as it exceeds the limit, and `Disconnected`."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise BodyTooLarge
            if not message.get("more_body"):
                return b"".join((*pieces, piece)) if pieces else piece
            pieces.append(piece)


class HeaderView(Mapping[str, str]):
    """Read-only mapping of a request's headers as text, with case-insensitive names."""

    __slots__ = ("_raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        return self._raw[_encode_header_name(name)].decode("latin-1")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a header, or `default` if it is absent."""
        found = self._raw.get(_encode_header_name(name))
        return default if found is None else found.decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


async def cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end.

    Awaiting the task itself would raise its error here, and the traceback of that error would keep the request alive
    until the garbage collector runs.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


def insufficient_scope_challenge(scopes: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a `WWW-Authenticate` header that names the required scopes, without a link to resource metadata."""
    return (b"www-authenticate", f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'.encode())


@lru_cache(256)
def _encode_header_name(name: str) -> bytes:
    """Return a header name in the form ASGI uses."""
    return name.lower().encode("latin-1")
