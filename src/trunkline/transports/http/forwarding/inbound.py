"""Requests that other processes have forwarded here, because this process holds their session.

The ingress has authenticated and read them. The endpoints answer them like direct requests; responses go back over the
bus, no faster than the ingress grants credit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from trunkline.clock import Clock
from trunkline.transports.http.forwarding.frames import (
    CHUNK_SIZE,
    ChunkFrame,
    CreditFrame,
    DisconnectFrame,
    HolderFrame,
    IngressFrame,
    NotHeldFrame,
    PendingFrame,
    RequestFrame,
    ResponseFrame,
    StreamEndFrame,
    StreamStartFrame,
    UnknownFrame,
)
from trunkline.transports.http.request import RESPOND_EXTENSION, WRITE_EXTENSION, Headers, HttpRequest
from trunkline.transports.listener_limits import RetryLater

__all__ = ["MISSING_SCOPES_HEADER", "ForwardedRequest", "ForwardingTarget", "InboundDispatcher", "PrincipalSerializer"]

MISSING_SCOPES_HEADER: Final = b"trunkline-lacks"
"""Header between processes that names missing scopes; the ingress replaces it by a `WWW-Authenticate` challenge."""

_CONTENT_LENGTH: Final = b"content-length"
_TOO_MANY_REQUESTS: Final = RetryLater(
    "too many forwarded requests are in progress; try again later", "temporarily_unavailable", b"1"
)
_CLOSE_GRACE: Final = 1.0  # seconds for the responses in progress


class PrincipalSerializer(Protocol):
    """Transfers principals between processes."""

    def owner_id(self, principal: Any) -> str:
        """Return a text that identifies a principal; different principals have different texts."""
        ...

    def encode(self, principal: Any) -> bytes | None:
        """Return a principal encoded in full; None if decoding would not give an equal one."""
        ...

    def decode(self, encoded: bytes) -> Any:
        """Return the principal from its encoded form."""
        ...


class ForwardingTarget(Protocol):
    """Application that may hold the sessions of forwarded requests."""

    async def handle_forwarded(self, request: "ForwardedRequest") -> bool:
        """Answer a request; return False if its session or stream is not held here."""
        ...

    def on_renamed(self) -> None:
        """React to a possible new process id; other processes no longer reach this one by the former id."""
        ...


class ForwardedRequest(HttpRequest):
    """A request that the ingress has authenticated and read. Its responses become frames."""

    __slots__ = (
        "_body",
        "_codec",
        "_credit",
        "_credit_waiter",
        "_disconnected",
        "_frame",
        "_pending_head",
        "_response_started",
        "_send_frame",
        "_wait_sent",
    )

    def __init__(
        self,
        frame: RequestFrame,
        codec: PrincipalSerializer,
        auth_expires_at: float | None,
        send_frame: Callable[[HolderFrame], bool],
        wait_sent: Callable[[], Awaitable[None]],
    ) -> None:
        extensions = {RESPOND_EXTENSION: self._send_response, WRITE_EXTENSION: self._send_chunk_nowait}
        scope = {"type": "http", "method": frame.method, "headers": frame.headers, "extensions": extensions}
        super().__init__(scope, self._receive_disconnect, self._asgi_send)
        self.auth_expires_at = auth_expires_at
        self.scope_challenge = _missing_scopes_header
        self._frame = frame
        self._codec = codec
        self._send_frame = send_frame
        self._wait_sent = wait_sent
        self._credit = frame.window
        self._credit_waiter: asyncio.Future[None] | None = None
        self._disconnected = asyncio.Event()
        self._pending_head: tuple[int, Headers] | None = None  # of a response whose body follows
        self._body = bytearray(frame.body) if len(frame.body) < frame.body_size else frame.body
        self._response_started = False

    # --- the request ----------------------------------------------------------------------------

    @property
    def target_id(self) -> str:
        """The session id, or the token of an HTTP+SSE stream."""
        return self._frame.target_id

    @property
    def is_sse_post(self) -> bool:
        """Whether the request is a POST for an HTTP+SSE stream."""
        return self._frame.is_sse_post

    @property
    def peer(self) -> str:
        """The client's address, as the ingress knows it."""
        return self._frame.peer

    @property
    def received_body(self) -> bytes:
        """The body, as far as it has arrived."""
        return bytes(self._body)

    @property
    def body_complete(self) -> bool:
        """Whether the whole body has arrived."""
        return len(self._body) == self._frame.body_size

    def add_body(self, part: bytes) -> None:
        """Append a chunk to the body."""
        if isinstance(self._body, bytearray):
            self._body += part

    def belongs_to(self, owner: Any) -> bool:
        """Return whether the sender is the given owner, and set the request's principal if so: the sender as the
        ingress authenticated it, or the owner if that principal could not be encoded."""
        if self._codec.owner_id(owner) != self._frame.owner_id:
            return False
        self.principal = self.sender_principal if self.has_principal else owner
        return True

    @property
    def has_principal(self) -> bool:
        """Whether the frame carries the sender's principal in full, not only its owner id."""
        return self._frame.principal is not None or self._frame.owner_id == self._codec.owner_id(None)

    @property
    def sender_principal(self) -> Any:
        """The sender's principal; meaningful only if `has_principal`."""
        written = self._frame.principal
        return None if written is None else self._codec.decode(written)

    # --- frames of the ingress -------------------------------------------------------------

    def disconnect(self) -> None:
        """Note that the ingress no longer waits for the response."""
        self._disconnected.set()
        self._wake_sender()

    def add_credit(self, size: int) -> None:
        """Add credit: the ingress has written that many bytes to the client."""
        self._credit += size
        self._wake_sender()

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes that the ingress has not reported as written to the client."""
        return self._frame.window - self._credit

    def _wake_sender(self) -> None:
        if self._credit_waiter is not None and not self._credit_waiter.done():
            self._credit_waiter.set_result(None)

    async def _receive_disconnect(self) -> dict[str, Any]:
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    # --- the response --------------------------------------------------------------------------

    def reject_not_held(self) -> None:
        """Tell the ingress that the session or stream is not held here."""
        self._send_frame(NotHeldFrame(self._frame.number))

    async def fail(self) -> None:
        """Respond 500 after an internal error, or end the stream if a response has begun."""
        if self._response_started:
            self._send_frame(StreamEndFrame(self._frame.number))
        else:
            await self.respond(500, b"Internal Server Error", (b"content-type", b"text/plain"))

    def _send_response(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a response in one frame; return False if it is too long."""
        if len(body) > CHUNK_SIZE:
            return False
        self._response_started = True
        sent_headers = [header for header in headers if header[0] != _CONTENT_LENGTH]
        self._send_frame(ResponseFrame(self._frame.number, status, sent_headers, len(body), body))
        return True

    def _send_chunk_nowait(self, data: bytes) -> bool:
        """Send a chunk of a stream at once; return False if the credit does not cover it."""
        if len(data) > min(CHUNK_SIZE, self._credit):
            return False
        self._credit -= len(data)
        return self._send_frame(ChunkFrame(self._frame.number, data))

    async def _asgi_send(self, message: dict[str, Any]) -> None:
        """Translate an ASGI message into frames."""
        if message["type"] == "http.response.start":
            self._response_started = True
            status, headers = message["status"], message["headers"]
            if any(name == _CONTENT_LENGTH for name, _ in headers):
                self._pending_head = (status, headers)
            else:
                self._send_frame(StreamStartFrame(self._frame.number, status, headers))
        elif self._pending_head is not None:
            await self._send_whole_response(*self._pending_head, message["body"])
        else:
            await self._send_chunks(message["body"])
            if not message.get("more_body"):
                self._send_frame(StreamEndFrame(self._frame.number))

    async def _send_whole_response(self, status: int, headers: Headers, body: bytes) -> None:
        if not self._send_response(status, headers, body):
            sent_headers = [header for header in headers if header[0] != _CONTENT_LENGTH]
            self._send_frame(ResponseFrame(self._frame.number, status, sent_headers, len(body), body[:CHUNK_SIZE]))
            await self._send_chunks(body[CHUNK_SIZE:])

    async def _send_chunks(self, data: bytes) -> None:
        """Send data in chunks as credit and the bus allow."""
        start = 0
        while start < len(data) and not self._disconnected.is_set():
            if self._credit <= 0:
                self._credit_waiter = asyncio.get_running_loop().create_future()
                await self._credit_waiter
                continue
            part = data[start : start + min(CHUNK_SIZE, self._credit)]
            start += len(part)
            self._credit -= len(part)
            self._send_frame(ChunkFrame(self._frame.number, part))
            await self._wait_sent()


def _missing_scopes_header(scopes: Any) -> tuple[bytes, bytes]:
    return (MISSING_SCOPES_HEADER, " ".join(scopes).encode())


class InboundDispatcher:
    """All requests that were forwarded here; dispatches frames to them."""

    def __init__(
        self,
        send_frame: Callable[[str, HolderFrame], bool],
        wait_sent: Callable[[], Awaitable[None]],
        codec: PrincipalSerializer,
        clock: Clock,
        max_requests: int,
    ) -> None:
        self.targets: list[ForwardingTarget] = []
        self._send_frame = send_frame
        self._wait_sent = wait_sent
        self._codec = codec
        self._clock = clock
        self._max_requests = max_requests
        self._requests: dict[tuple[str, int], ForwardedRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def on_frame(self, ingress: str, frame: IngressFrame) -> None:
        """Handle a frame of an ingress."""
        if isinstance(frame, PendingFrame):
            if unknown := [number for number in frame.numbers if (ingress, number) not in self._requests]:
                self._send_frame(ingress, UnknownFrame(unknown))
            return
        request = self._requests.get((ingress, frame.number))
        match frame:
            case RequestFrame():
                self._begin(ingress, frame)
            case _ if request is None:
                pass
            case ChunkFrame():
                request.add_body(frame.data)
                if request.body_complete:
                    self._spawn(self._serve((ingress, frame.number), request))
            case CreditFrame():
                request.add_credit(frame.size)
            case DisconnectFrame():
                request.disconnect()
                if not request.body_complete:
                    del self._requests[ingress, frame.number]

    def _begin(self, ingress: str, request_frame: RequestFrame) -> None:
        until = None if request_frame.expires_in is None else self._clock.now() + request_frame.expires_in
        request = ForwardedRequest(
            request_frame, self._codec, until, lambda frame: self._send_frame(ingress, frame), self._wait_sent
        )
        if len(self._requests) >= self._max_requests:
            self._spawn(
                request.refuse(
                    503,
                    _TOO_MANY_REQUESTS.reason,
                    (b"retry-after", _TOO_MANY_REQUESTS.retry_after),
                    kind=_TOO_MANY_REQUESTS.kind,
                )
            )
            return
        self._requests[ingress, request_frame.number] = request
        if request.body_complete:
            self._spawn(self._serve((ingress, request_frame.number), request))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: tuple[str, int], request: ForwardedRequest) -> None:
        try:
            for target in list(self.targets):
                if await target.handle_forwarded(request):
                    return
            request.reject_not_held()
        except Exception:
            await request.fail()
            raise
        finally:
            del self._requests[key]

    def on_peer_lost(self, ingress: str | None) -> None:
        """Disconnect the requests of an ingress whose messages may be lost; of all if it is None."""
        for (name, number), request in list(self._requests.items()):
            if ingress is None or name == ingress:
                request.disconnect()
                if not request.body_complete:
                    del self._requests[name, number]

    async def close(self) -> None:
        """Wait up to a second for the responses in progress, then cancel the rest."""
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=_CLOSE_GRACE)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
