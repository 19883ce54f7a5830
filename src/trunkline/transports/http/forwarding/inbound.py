"""Requests that other processes have forwarded here, because this process holds their session.

The ingress has authenticated and read them. The endpoints answer them like direct requests; responses go back over the
bus, no faster than the ingress grants credit.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

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
from trunkline.transports.http.request import (
    DetachedTransport,
    Disconnected,
    Headers,
    HttpHead,
    HttpRequest,
    run_detached,
)
from trunkline.transports.listener_limits import RetryLater

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["MISSING_SCOPES_HEADER", "ForwardedRequest", "ForwardingTarget", "InboundDispatcher", "PrincipalSerializer"]

MISSING_SCOPES_HEADER: Final = b"trunkline-lacks"
"""Header between processes that names missing scopes; the ingress replaces it by a `WWW-Authenticate` challenge."""

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
    """A request that the ingress has authenticated and read. Its response is sent as frames."""

    def __init__(
        self,
        frame: RequestFrame,
        codec: PrincipalSerializer,
        auth_expires_at: float | None,
        send_frame: Callable[[HolderFrame], bool],
        wait_sent: Callable[[], Awaitable[None]],
    ) -> None:
        self.response = FrameWriter(frame.number, frame.window, send_frame, wait_sent)
        super().__init__(self.response, HttpHead(frame.method, "", dict(frame.headers)))
        self.auth_expires_at = auth_expires_at
        self.scope_challenge = _missing_scopes_header
        self._frame = frame
        self._codec = codec
        self._received = bytearray(frame.body) if len(frame.body) < frame.body_size else frame.body

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
    def client_host(self) -> str:
        """The client's address without its port."""
        return self._frame.peer.rpartition(":")[0].strip("[]")

    @property
    def received_body(self) -> bytes:
        """The body, as far as it has arrived."""
        return bytes(self._received)

    @property
    def body_complete(self) -> bool:
        """Whether the whole body has arrived."""
        return len(self._received) == self._frame.body_size

    def add_body(self, part: bytes) -> None:
        """Append a chunk to the body."""
        if isinstance(self._received, bytearray):
            self._received += part

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
        if not self.disconnected:
            self.set_disconnected()
            self.response.disconnect()

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes that the ingress has not reported as written to the client."""
        return self._frame.window - self.response.credit

    def reject_not_held(self) -> None:
        """Tell the ingress that the session or stream is not held here."""
        self.response.send_frame(NotHeldFrame(self._frame.number))


def _ignore_refusal(_request: HttpRequest, _status: int, _kind: str) -> None:
    """Report nothing, until an application has taken the request."""


class FrameWriter:
    """Sends the response to one forwarded request to the ingress, no faster than the ingress grants credit."""

    def __init__(
        self,
        number: int,
        window: int,
        send_frame: Callable[[HolderFrame], bool],
        wait_sent: Callable[[], Awaitable[None]],
    ) -> None:
        self.send_frame = send_frame
        self.find_profile: Callable[[HttpRequest], Profile | None] = lambda _: None  # that of the application
        self.report_refused: Callable[[HttpRequest, int, str], None] = _ignore_refusal  # likewise
        self.credit = window
        self._number = number
        self._wait_sent = wait_sent
        self._credit_waiter: asyncio.Future[None] | None = None
        self._begun = False
        self._disconnected = False
        self._over = False  # nothing waits for the response any more
        self._work: deque[Coroutine[Any, Any, None]] = deque()
        self._complete = False
        self._wake: asyncio.Future[None] | None = None

    def profile_of(self, request: HttpRequest) -> "Profile | None":
        """Return the compatibility profile of the client that sent a request, if it has one."""
        return self.find_profile(request)

    def on_refused(self, request: HttpRequest, status: int, kind: str) -> None:
        """Report the refusal of a request to observers."""
        self.report_refused(request, status, kind)

    async def finish(self) -> None:
        """Wait until the response is complete, or the ingress no longer waits for it."""
        while not self._complete:
            if self._work:
                await self._work.popleft()
            elif self._disconnected:
                self._over = True
                return
            else:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake

    def _wake_up(self) -> None:
        for waiter in (self._wake, self._credit_waiter):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def disconnect(self) -> None:
        """Note that the ingress no longer waits for the response."""
        self._disconnected = True
        self._wake_up()

    def add_credit(self, size: int) -> None:
        """Add credit: the ingress has written that many bytes to the client."""
        self.credit += size
        self._wake_up()

    def fail(self) -> None:
        """Respond 500 after an internal error, or end the stream if a response has begun."""
        if self._begun:
            self.send_frame(StreamEndFrame(self._number))
        else:
            message = b"Internal Server Error"
            headers: Headers = [(b"content-type", b"text/plain")]
            self.send_frame(ResponseFrame(self._number, 500, headers, len(message), message))

    # --- the source of the request ------------------------------------------------------------------

    def respond(self, request: HttpRequest, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response: in one frame, or in several as credit allows."""
        if self._begun:
            return
        self._begun = True
        self.send_frame(ResponseFrame(self._number, status, list(headers), len(body), body[:CHUNK_SIZE]))
        if len(body) > CHUNK_SIZE:
            self.run(request, self._send_rest(body))
        else:
            self._complete = True
            self._wake_up()

    async def _send_rest(self, body: bytes) -> None:
        await self._send_chunks(body[CHUNK_SIZE:])
        self._complete = True

    def run(self, request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:  # noqa: ARG002
        """Keep a coroutine for `finish`, which runs it."""
        if self._over:
            run_detached(work)
        else:
            self._work.append(work)
            self._wake_up()

    async def begin(self, request: HttpRequest, status: int, headers: Headers) -> None:  # noqa: ARG002
        """Begin a response whose body follows in chunks."""
        self._begun = True
        self.send_frame(StreamStartFrame(self._number, status, list(headers)))

    async def write(self, request: HttpRequest, data: bytes) -> None:  # noqa: ARG002
        """Write a chunk as credit allows."""
        await self._send_chunks(data)

    def write_nowait(self, request: HttpRequest, data: bytes) -> bool:  # noqa: ARG002
        """Send a chunk at once; return False if the credit does not cover it."""
        if len(data) > min(CHUNK_SIZE, self.credit):
            return False
        self.credit -= len(data)
        return self.send_frame(ChunkFrame(self._number, data))

    async def end(self, request: HttpRequest) -> None:  # noqa: ARG002
        """End a response that was sent in chunks."""
        self.send_frame(StreamEndFrame(self._number))
        self._complete = True
        self._wake_up()

    async def read_body(self, request: HttpRequest, limit: int) -> bytes:  # noqa: ARG002
        """Raise `Disconnected`: the ingress has read the body, see `received_body`."""
        raise Disconnected

    def is_open(self, request: HttpRequest) -> bool:
        """Return whether the peer still waits."""
        return not request.disconnected

    def detach(self, request: HttpRequest) -> DetachedTransport:
        """Raise an error: there is no transport to give up."""
        raise NotImplementedError

    def watch_disconnect(self, request: HttpRequest) -> None:
        """Do nothing: the ingress reports it."""

    def watch_half_close(self, request: HttpRequest, callback: Callable[[], object]) -> None:
        """Do nothing: the ingress does not report it."""

    async def _send_chunks(self, data: bytes) -> None:
        """Send data in chunks as credit and the bus allow."""
        start = 0
        while start < len(data) and not self._disconnected:
            if self.credit <= 0:
                self._credit_waiter = asyncio.get_running_loop().create_future()
                await self._credit_waiter
                continue
            part = data[start : start + min(CHUNK_SIZE, self.credit)]
            start += len(part)
            self.credit -= len(part)
            self.send_frame(ChunkFrame(self._number, part))
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
                request.response.add_credit(frame.size)
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
            retry = (b"retry-after", _TOO_MANY_REQUESTS.retry_after)
            request.refuse(503, _TOO_MANY_REQUESTS.reason, retry, kind=_TOO_MANY_REQUESTS.kind)
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
                    await request.response.finish()
                    return
            request.reject_not_held()
        except Exception:
            request.response.fail()
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
