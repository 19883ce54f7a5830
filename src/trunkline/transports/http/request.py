"""One HTTP request, as ASGI has it, and what can be answered to it."""

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
"""The extension of ASGI that our own listener has: an answer that is no refusal, given in one call."""
WRITE_EXTENSION: Final = "trunkline.more"
"""Another one: more of a stream, in one call."""

HALF_CLOSED_EXTENSION: Final = "trunkline.half_closed"
"""One more: a callback for when the peer sends no more, though it may still read."""

JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_FIRST_ERROR_STATUS: Final = 400  # the first status of an answer that says no
_NO_EXTENSIONS: Final[dict[str, Any]] = {}
_SSE_HEADERS: Final[Headers] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # proxies that gather would hold back events
]


class BodyTooLarge(Exception):
    """More than may be sent."""


class Disconnected(Exception):
    """The peer went before it had said all."""


class HttpRequest:
    """A request, and the way to answer it."""

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
        if len(self.headers) < len(scope["headers"]) and b"accept" in self.headers:  # RFC 9110, 5.3: may be divided
            self.headers[b"accept"] = b", ".join(value for name, value in scope["headers"] if name == b"accept")
        self.extra_headers: Headers = []  # what goes with every answer
        self.principal: Any = None
        self.auth_expires_at: float | None = None  # when what proves who sent it runs out, by the guard's clock
        self.scope_challenge: Callable[[Sequence[str]], tuple[bytes, bytes]] = (
            insufficient_scope_challenge  # says which scopes are needed
        )
        self._send = send

    async def respond(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        """A whole answer."""
        told = [*headers, *self.extra_headers, (b"content-length", b"%d" % len(body))]
        answer: Any = (self.scope.get("extensions") or _NO_EXTENSIONS).get(RESPOND_EXTENSION)
        if answer is not None and status < _FIRST_ERROR_STATUS and answer(status, told, body):
            return
        await self._send({"type": "http.response.start", "status": status, "headers": told})
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
        """An answer that says no: a JSON-RPC error, without an id where the message was not looked at."""
        data: dict[str, Any] = {"kind": kind}
        if (seconds := dict(headers).get(b"retry-after")) is not None:
            data["retryAfterMs"] = int(seconds) * 1000
        await self.refuse_with_error(status, ProtocolError.rebuilt(reason, code, data), *headers, request_id=request_id)

    async def refuse_with_error(
        self, status: int, error: ProtocolError, *headers: tuple[bytes, bytes], request_id: RequestId | None = None
    ) -> None:
        """The same, for an error that says more."""
        told = {"code": error.code, "message": error.message, "data": error.data}
        known = {} if request_id is None else {"id": request_id}
        await self.respond(
            status, codec.to_json({"jsonrpc": "2.0", **known, "error": told}), JSON_CONTENT_TYPE, *headers
        )

    async def refuse_method(self, allowed: bytes) -> None:
        """Another method than those that are served here."""
        await self.refuse_with_error(
            405, ProtocolError.rebuilt(f"this address takes {allowed.decode()}", -32600), (b"allow", allowed)
        )

    @property
    def peer(self) -> str:
        """Where the request comes from."""
        client = self.scope.get("client")
        return format_host_port(client[0], client[1]) if client else ""

    @property
    def client_host(self) -> str:
        """The address that the request comes from, without its port; of a proxy that is trusted, the one it names."""
        client = self.scope.get("client")
        return client[0] if client else ""

    async def begin_stream(self) -> None:
        """The beginning of a stream of events."""
        await self.begin_response(200, _SSE_HEADERS)

    async def begin_response(self, status: int, headers: Headers) -> None:
        """The beginning of a stream."""
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.extra_headers]})

    @property
    def write_nowait(self) -> Callable[[bytes], bool] | None:
        """Writes more of a stream at once, unless the peer reads too slowly; only our own listener has that."""
        return (self.scope.get("extensions") or _NO_EXTENSIONS).get(WRITE_EXTENSION)

    async def write(self, data: bytes) -> None:
        """More of a stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of a stream that were written and, as far as is known, have not been passed on to the peer. Where it is
        at the other end of the line, nobody knows of any."""
        return 0

    async def end_stream(self) -> None:
        """The end of a stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def wait_disconnected(self) -> None:
        """Waits until the peer has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def when_half_closed(self, callback: Callable[[], object]) -> None:
        """Have a callback called once the peer sends no more: it may have gone, or wait for its answer. What is written
        to it then finds that out. Only our own listener tells."""
        register: Any = (self.scope.get("extensions") or _NO_EXTENSIONS).get(HALF_CLOSED_EXTENSION)
        if register is not None:
            register(callback)

    async def read_body(self, limit: int) -> bytes:
        """All that the request holds. Raises `BodyTooLarge` as soon as it is, and `Disconnected`."""
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
    """The headers of a request, as text."""

    __slots__ = ("_raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        return self._raw[_encode_header_name(name)].decode("latin-1")

    def get(self, name: str, default: Any = None) -> Any:
        """A header; `default` if it is not there."""
        found = self._raw.get(_encode_header_name(name))
        return default if found is None else found.decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


async def cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end. Awaiting the task itself would raise its error here, and the traceback of
    that error would keep this request alive until the collector finds it."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


def insufficient_scope_challenge(scopes: Sequence[str]) -> tuple[bytes, bytes]:
    """The header that says which scopes are needed, and nothing of where they are to be had."""
    return (b"www-authenticate", f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'.encode())


@lru_cache(256)
def _encode_header_name(name: str) -> bytes:
    """The name of a header, as it is kept."""
    return name.lower().encode("latin-1")
