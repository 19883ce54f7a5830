"""Requests that another process has carried here, since what they are for is held here.

The other process has let them in, and has read them. They are answered like those that come by themselves, and what is
said goes back over the line between processes: at once while there is credit, and no faster than it is given.
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
"""Names scopes that are needed, in place of the header that the front makes of it."""

_CONTENT_LENGTH: Final = b"content-length"
_TOO_MANY_REQUESTS: Final = RetryLater(
    "too many requests are being answered; try again later", "temporarily_unavailable", b"1"
)
_CLOSE_GRACE: Final = 1.0  # seconds that what is left to be said has at the end


class PrincipalSerializer(Protocol):
    """How principals cross from one process to another."""

    def owner_id(self, principal: Any) -> str:
        """A principal in letters: those of another are others."""
        ...

    def encode(self, principal: Any) -> bytes | None:
        """All of a principal; None if what is read would not be the same."""
        ...

    def decode(self, encoded: bytes) -> Any:
        """The principal that was written."""
        ...


class ForwardingTarget(Protocol):
    """Holds what requests are for."""

    async def handle_forwarded(self, request: "ForwardedRequest") -> bool:
        """Answers a request, if what it is for is held here."""
        ...

    def on_renamed(self) -> None:
        """This process may have another name, and nobody reaches it under the one before."""
        ...


class ForwardedRequest(HttpRequest):
    """A request that another process has let in and read, and the way to answer it."""

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
        self._pending_head: tuple[int, Headers] | None = None  # of an answer whose body is still to come
        self._body = bytearray(frame.body) if len(frame.body) < frame.body_size else frame.body
        self._response_started = False  # something was said

    # --- what was asked ----------------------------------------------------------------------------

    @property
    def target_id(self) -> str:
        """The session that it is for, or the token of a stream."""
        return self._frame.target_id

    @property
    def is_sse_post(self) -> bool:
        """Whether it is for a stream of HTTP+SSE."""
        return self._frame.is_sse_post

    @property
    def peer(self) -> str:
        """Where the request comes from."""
        return self._frame.peer

    @property
    def received_body(self) -> bytes:
        """The body."""
        return bytes(self._body)

    @property
    def body_complete(self) -> bool:
        """Whether all of it is here."""
        return len(self._body) == self._frame.body_size

    def add_body(self, part: bytes) -> None:
        """More of the body."""
        if isinstance(self._body, bytearray):
            self._body += part

    def belongs_to(self, owner: Any) -> bool:
        """Whether who sent it is the owner of what it is for. It counts as sent by whom the front has let in, or by the
        owner, if that principal could not be written."""
        if self._codec.owner_id(owner) != self._frame.owner_id:
            return False
        self.principal = self.sender_principal if self.has_principal else owner
        return True

    @property
    def has_principal(self) -> bool:
        """Whether it is known here who sent it, and not only by which letters."""
        return self._frame.principal is not None or self._frame.owner_id == self._codec.owner_id(None)

    @property
    def sender_principal(self) -> Any:
        """Who sent it, if that is known here."""
        written = self._frame.principal
        return None if written is None else self._codec.decode(written)

    # --- what the front says meanwhile -------------------------------------------------------------

    def disconnect(self) -> None:
        """Nobody waits for the answer any more."""
        self._disconnected.set()
        self._wake_sender()

    def add_credit(self, size: int) -> None:
        """So much has been passed on."""
        self._credit += size
        self._wake_sender()

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes that the front has not said to have passed on."""
        return self._frame.window - self._credit

    def _wake_sender(self) -> None:
        if self._credit_waiter is not None and not self._credit_waiter.done():
            self._credit_waiter.set_result(None)

    async def _receive_disconnect(self) -> dict[str, Any]:
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    # --- what is answered --------------------------------------------------------------------------

    def reject_not_held(self) -> None:
        """What it is for is not held here."""
        self._send_frame(NotHeldFrame(self._frame.number))

    async def fail(self) -> None:
        """There is no answer, for something of ours went wrong; or no more of one."""
        if self._response_started:
            self._send_frame(StreamEndFrame(self._frame.number))
        else:
            await self.respond(500, b"Internal Server Error", (b"content-type", b"text/plain"))

    def _send_response(self, status: int, headers: Headers, body: bytes) -> bool:
        """Answers in one frame; False if it is too long for that."""
        if len(body) > CHUNK_SIZE:
            return False
        self._response_started = True
        told = [header for header in headers if header[0] != _CONTENT_LENGTH]
        self._send_frame(ResponseFrame(self._frame.number, status, told, len(body), body))
        return True

    def _send_chunk_nowait(self, data: bytes) -> bool:
        """More of a stream, at once; False if the front has enough to do."""
        if len(data) > min(CHUNK_SIZE, self._credit):
            return False
        self._credit -= len(data)
        return self._send_frame(ChunkFrame(self._frame.number, data))

    async def _asgi_send(self, message: dict[str, Any]) -> None:
        """Takes a message of ASGI."""
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
            told = [header for header in headers if header[0] != _CONTENT_LENGTH]
            self._send_frame(ResponseFrame(self._frame.number, status, told, len(body), body[:CHUNK_SIZE]))
            await self._send_chunks(body[CHUNK_SIZE:])

    async def _send_chunks(self, data: bytes) -> None:
        """Says something, as fast as there is credit for it and the line takes it."""
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
    """All requests that were carried here."""

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
        """Takes what a front says."""
        if isinstance(frame, PendingFrame):
            if unknown := [number for number in frame.numbers if (ingress, number) not in self._requests]:
                self._send_frame(ingress, UnknownFrame(unknown))
            return
        visit = self._requests.get((ingress, frame.number))
        match frame:
            case RequestFrame():
                self._begin(ingress, frame)
            case _ if visit is None:
                pass
            case ChunkFrame():
                visit.add_body(frame.data)
                if visit.body_complete:
                    self._spawn(self._serve((ingress, frame.number), visit))
            case CreditFrame():
                visit.add_credit(frame.size)
            case DisconnectFrame():
                visit.disconnect()
                if not visit.body_complete:
                    del self._requests[ingress, frame.number]

    def _begin(self, ingress: str, request_frame: RequestFrame) -> None:
        until = None if request_frame.expires_in is None else self._clock.now() + request_frame.expires_in
        visit = ForwardedRequest(
            request_frame, self._codec, until, lambda frame: self._send_frame(ingress, frame), self._wait_sent
        )
        if len(self._requests) >= self._max_requests:
            self._spawn(
                visit.refuse(
                    503, _TOO_MANY_REQUESTS.why, (b"retry-after", _TOO_MANY_REQUESTS.wait), kind=_TOO_MANY_REQUESTS.kind
                )
            )
            return
        self._requests[ingress, request_frame.number] = visit
        if visit.body_complete:
            self._spawn(self._serve((ingress, request_frame.number), visit))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: tuple[str, int], request: ForwardedRequest) -> None:
        try:
            for host in list(self.targets):
                if await host.handle_forwarded(request):
                    return
            request.reject_not_held()
        except Exception:
            await request.fail()
            raise
        finally:
            del self._requests[key]

    def on_peer_lost(self, ingress: str | None) -> None:
        """What that front was sent, or has sent, may be lost: nobody there waits for an answer any more."""
        for (name, number), visit in list(self._requests.items()):
            if ingress is None or name == ingress:
                visit.disconnect()
                if not visit.body_complete:
                    del self._requests[name, number]

    async def close(self) -> None:
        """Waits a moment for what is left to be said, and gives up the rest."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_CLOSE_GRACE)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
