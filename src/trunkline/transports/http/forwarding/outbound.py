"""Forwarding requests to the process that holds their session, and relaying the responses.

The process that receives a request authenticates and reads it; if another process holds its session, that one answers.
The response is relayed as it arrives, at the client's pace: at most one window of bytes is in transit. If the holder is
lost on the way, it is unknown whether it handled the request.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from itertools import count
from typing import Any, Final, Protocol

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import StoreError
from trunkline.protocol.meta import TRACE_KEYS
from trunkline.transports.http.forwarding.frames import (
    CHUNK_SIZE,
    HOLDER_KIND,
    INGRESS_KIND,
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
    decode_holder_frame,
    decode_ingress_frame,
    encode_frame,
)
from trunkline.transports.http.forwarding.inbound import MISSING_SCOPES_HEADER, InboundDispatcher, PrincipalSerializer
from trunkline.transports.http.request import Headers, HttpRequest

__all__ = ["ClusterLink", "ForwardOutcome", "Forwarder", "Relay"]

_FORWARDED_HEADERS: Final = frozenset(
    {b"accept", b"content-type", b"last-event-id", *(name.encode() for name in TRACE_KEYS)}
)
_CHECK_INTERVAL: Final = 1.0  # seconds between checks of the holders


class ClusterLink(Protocol):
    """Messaging between the processes of a cluster. Messages from one process to another arrive once and in order, or
    both sides get an `on_lost` callback."""

    @property
    def name(self) -> str:
        """Id of this process. It changes when the process rejoins after an eviction."""
        ...

    @property
    def peers(self) -> Collection[str]:
        """Ids of the other processes."""
        ...

    def on(self, kind: bytes, handler: Callable[[str, bytes], Any]) -> None:
        """Register the handler of one kind of message; it receives the sender and the body."""
        ...

    def on_lost(self, callback: Callable[[str | None], None]) -> None:
        """Register a callback for a peer whose messages may be lost, or that is dead; None stands for every peer."""
        ...

    def on_evicted(self, callback: Callable[[], None]) -> None:
        """Register a callback for the eviction of this process: peers no longer reach it by its id."""
        ...

    def on_missed(self, callback: Callable[[], None]) -> None:
        """Register a callback for the end of a time without contact, after which the process may have a new id."""
        ...

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Send a message to one process. Return False if nothing was sent, because that process is certainly dead or
        the bus is unavailable."""
        ...

    async def drain(self) -> None:
        """Wait while much of the sent data has not left yet."""
        ...

    async def evict_if_dead(self, name: str) -> bool:
        """Return whether a process is dead, evicting it if its lease has run out. Raise `StoreError` if the store
        fails."""
        ...

    async def wait_until_reachable(self, name: str) -> bool:
        """Wait until a suspected process is reachable or dead; return whether it is reachable. Raise `StoreError` if
        the store fails."""
        ...


class ForwardOutcome(Enum):
    """Outcome of forwarding a request."""

    ANSWERED = auto()
    NOT_HELD = auto()  # that process is dead or does not hold the session: nothing was done
    LOST = auto()  # the holder was lost: it is unknown whether it did anything, and the client got no response


class Relay:
    """Forwarding of one process, in both directions."""

    def __init__(self, cluster: ClusterLink, codec: PrincipalSerializer, settings: Settings, clock: Clock) -> None:
        self.cluster = cluster
        self.codec = codec
        self.clock = clock
        self.window = settings.unsent_high
        self.inbound = InboundDispatcher(self._send_to_ingress, cluster.drain, codec, clock, settings.max_connections)
        self._numbers = count(1)
        self._pending: dict[int, PendingForward] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._check_task: asyncio.Task[None] | None = None
        self._drain_waiter: asyncio.Future[None] | None = None
        cluster.on(INGRESS_KIND, self._on_ingress_frame)
        cluster.on(HOLDER_KIND, self._on_holder_frame)
        cluster.on_lost(self.on_peer_lost)
        cluster.on_evicted(lambda: self.on_peer_lost(None))
        cluster.on_missed(self._on_renamed)

    def _on_ingress_frame(self, ingress: str, data: bytes) -> None:
        self.inbound.on_frame(ingress, decode_ingress_frame(data))

    def _send_to_ingress(self, ingress: str, frame: HolderFrame) -> bool:
        return self.cluster.send(ingress, HOLDER_KIND, encode_frame(frame))

    def _on_holder_frame(self, holder: str, data: bytes) -> None:
        frame = decode_holder_frame(data)
        if isinstance(frame, UnknownFrame):
            for forward in [forward for number in frame.numbers if (forward := self._pending.get(number)) is not None]:
                if forward.holder == holder:
                    forward.mark_lost()
            return
        forward = self._pending.get(frame.number)
        if forward is not None and forward.holder == holder:
            forward.on_frame(frame)

    def on_peer_lost(self, name: str | None) -> None:
        """Fail the forwards to a process whose messages may be lost, and disconnect its requests; None stands for every
        process."""
        for forward in list(self._pending.values()):
            if name is None or forward.holder == name:
                forward.mark_lost()
        self.inbound.on_peer_lost(name)

    def _on_renamed(self) -> None:
        for target in self.inbound.targets:
            target.on_renamed()

    # --- requests to other processes ------------------------------------------------------------------------

    def begin(self, holder: str, request: HttpRequest) -> "PendingForward":
        """Create a forward to a holder, and start checking holders."""
        number = next(self._numbers)
        forward = self._pending[number] = PendingForward(self, number, holder, request)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._check_pending)
        return forward

    def end(self, forward: "PendingForward") -> None:
        """Remove a forward that is over."""
        del self._pending[forward.number]
        if self._drain_waiter is not None and not self._drain_waiter.done() and not self._has_pending_replies():
            self._drain_waiter.set_result(None)

    def _has_pending_replies(self) -> bool:
        """Return whether a client waits for a reply; standalone streams do not count."""
        return any(not forward.is_standalone_stream for forward in self._pending.values())

    async def drained(self) -> None:
        """Wait until every forwarded request is answered."""
        if self._has_pending_replies():
            self._drain_waiter = asyncio.get_running_loop().create_future()
            await self._drain_waiter

    def _check_pending(self) -> None:
        """Check every second whether the holders are alive and still work on the forwarded requests.

        A holder may be dead without any other process looking, or a frame may be lost without either side noticing.
        """
        self._timer = None
        if self._pending:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_CHECK_INTERVAL, self._check_pending)
            for holder in {forward.holder for forward in self._pending.values()}:
                pending = [number for number, forward in self._pending.items() if forward.holder == holder]
                self.cluster.send(holder, INGRESS_KIND, encode_frame(PendingFrame(pending)))
            if self._check_task is None:
                self._check_task = loop.create_task(
                    self._check_holders({forward.holder for forward in self._pending.values()})
                )

    async def _check_holders(self, holders: Collection[str]) -> None:
        try:
            for holder in holders:
                with contextlib.suppress(StoreError):
                    if await self.cluster.evict_if_dead(holder):
                        self.on_peer_lost(holder)
        finally:
            self._check_task = None

    async def close(self) -> None:
        """Fail all forwards; requests from other processes get a moment to finish."""
        for forward in list(self._pending.values()):
            forward.mark_lost()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._check_task is not None:
            self._check_task.cancel()
        await self.inbound.close()


class Forwarder:
    """Forwards requests of one application."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._pending: set[PendingForward] = set()

    @property
    def name(self) -> str:
        """Id of this process in the cluster."""
        return self._relay.cluster.name

    def has_peer(self, name: str) -> bool:
        """Return whether there is another process of that id."""
        return name in self._relay.cluster.peers

    async def is_reachable(self, name: str) -> bool:
        """Return whether a process can receive requests, waiting while it is suspected. Raise `StoreError` if the store
        fails."""
        return await self._relay.cluster.wait_until_reachable(name)

    async def forward(
        self, request: HttpRequest, holder: str, target_id: str, body: bytes = b"", *, is_sse_post: bool = False
    ) -> ForwardOutcome:
        """Have another process answer a request. Unless the outcome is `ANSWERED`, the client got no response."""
        forward = self._relay.begin(holder, request)
        self._pending.add(forward)
        try:
            if not forward.send_request(target_id, body, is_sse_post=is_sse_post):
                return ForwardOutcome.NOT_HELD
            if len(body) > CHUNK_SIZE:
                await forward.send_body_rest(body)
            return await forward.deliver_response()
        finally:
            self._pending.discard(forward)
            self._relay.end(forward)
            forward.end()

    def close_idle_streams(self) -> None:
        """End the standalone streams."""
        for forward in list(self._pending):
            if forward.is_standalone_stream:
                forward.mark_lost()

    def close(self) -> None:
        """Fail all forwards of this application."""
        for forward in list(self._pending):
            forward.mark_lost()


class PendingForward:
    """One request that a holder answers."""

    __slots__ = (
        "_change_waiter",
        "_frames",
        "_holder_done",
        "_lost",
        "_relay",
        "_request",
        "_uncredited_bytes",
        "_write_nowait",
        "holder",
        "number",
    )

    def __init__(self, relay: Relay, number: int, holder: str, request: HttpRequest) -> None:
        self.number = number
        self.holder = holder
        self._relay = relay
        self._request = request
        self._frames: deque[HolderFrame] = deque()
        self._change_waiter: asyncio.Future[None] | None = None
        self._write_nowait: Callable[[bytes], bool] | None = None  # of the client's connection
        self._uncredited_bytes = 0  # written to the client, not credited yet
        self._lost = False
        self._holder_done = False  # the response is complete

    @property
    def is_standalone_stream(self) -> bool:
        """Whether the request is a GET, whose stream answers no request."""
        return self._request.method == "GET"

    # --- sending the request ------------------------------------------------------------------------------------

    def send_request(self, target_id: str, body: bytes, *, is_sse_post: bool) -> bool:
        """Send the request with the first chunk of its body; return False if the holder is not there."""
        request, relay = self._request, self._relay
        frame = RequestFrame(
            number=self.number,
            method=request.method,
            target_id=target_id,
            is_sse_post=is_sse_post,
            headers=_select_forwarded_headers(request.headers),
            peer=request.peer,
            owner_id=relay.codec.owner_id(request.principal),
            principal=relay.codec.encode(request.principal),
            expires_in=None if request.auth_expires_at is None else request.auth_expires_at - relay.clock.now(),
            window=relay.window,
            body_size=len(body),
            body=body[:CHUNK_SIZE],
        )
        sent = self._send_frame(frame)
        self._holder_done = not sent
        return sent

    def _send_frame(self, frame: IngressFrame) -> bool:
        return self._relay.cluster.send(self.holder, INGRESS_KIND, encode_frame(frame))

    async def send_body_rest(self, body: bytes) -> None:
        """Send the rest of a body that did not fit into the first frame."""
        for start in range(CHUNK_SIZE, len(body), CHUNK_SIZE):
            await self._relay.cluster.drain()
            self._send_frame(ChunkFrame(self.number, body[start : start + CHUNK_SIZE]))

    def end(self) -> None:
        """Tell the holder that this process no longer waits, unless the response was complete."""
        if not self._holder_done:
            self._send_frame(DisconnectFrame(self.number))

    # --- receiving frames -----------------------------------------------------------------------------------

    def on_frame(self, frame: HolderFrame) -> None:
        """Handle a frame of the holder: write a chunk at once if the client is waiting for it, queue it otherwise."""
        if (
            type(frame) is ChunkFrame
            and self._write_nowait is not None
            and self._is_waiting
            and self._write_nowait(frame.data)
        ):
            self._acknowledge(len(frame.data))
            return
        self._frames.append(frame)
        self._wake_up()

    @property
    def _is_waiting(self) -> bool:
        """Whether everything received was written, and the client waits for more."""
        return not self._frames and self._change_waiter is not None and not self._change_waiter.done()

    def mark_lost(self) -> None:
        """Expect no more frames."""
        self._lost = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._change_waiter is not None and not self._change_waiter.done():
            self._change_waiter.set_result(None)

    def _wait_for_change(self) -> asyncio.Future[None]:
        if self._change_waiter is None or self._change_waiter.done():
            self._change_waiter = asyncio.get_running_loop().create_future()
        return self._change_waiter

    async def _next_frame(self) -> HolderFrame | None:
        """Return the holder's next frame; None if the holder is lost."""
        while not self._frames:
            if self._lost:
                return None
            await self._wait_for_change()
        return self._frames.popleft()

    def _acknowledge(self, size: int) -> None:
        """Note bytes written to the client, and grant credit for half a window at a time. A standalone stream grants it
        at once: the holder gives unacknowledged events to the next reader."""
        self._uncredited_bytes += size
        if self.is_standalone_stream or self._uncredited_bytes * 2 >= self._relay.window:
            self._send_frame(CreditFrame(self.number, self._uncredited_bytes))
            self._uncredited_bytes = 0

    # --- responding to the client ---------------------------------------------------------------------------------

    async def deliver_response(self) -> ForwardOutcome:
        """Relay the holder's response to the client."""
        first = await self._next_frame()
        match first:
            case ResponseFrame():
                body = await self._read_whole_body(first)
                self._holder_done = body is not None
                if body is None:
                    return ForwardOutcome.LOST
                self._request.respond(first.status, body, *self._response_headers(first))
            case StreamStartFrame():
                await self._write_stream(first)
            case NotHeldFrame():
                self._holder_done = True
                return ForwardOutcome.NOT_HELD
            case _:
                return ForwardOutcome.LOST
        return ForwardOutcome.ANSWERED

    def _response_headers(self, head: ResponseFrame | StreamStartFrame) -> list[tuple[bytes, bytes]]:
        """Return the response headers. The ingress writes the challenge for missing scopes, since it knows the URL that
        the client used."""
        challenge = self._request.scope_challenge
        return [
            challenge(value.decode().split()) if name == MISSING_SCOPES_HEADER else (name, value)
            for name, value in head.headers
        ]

    async def _read_whole_body(self, answer: ResponseFrame) -> bytes | None:
        """Return the body of a response; None if the holder is lost before it is complete."""
        if len(answer.body) == answer.body_size:
            return answer.body
        body = bytearray(answer.body)
        while len(body) < answer.body_size:
            if type(part := await self._next_frame()) is not ChunkFrame:
                return None
            body += part.data
            self._acknowledge(len(part.data))
        return bytes(body)

    async def _write_stream(self, head: StreamStartFrame) -> None:
        """Relay a stream until it ends, the client disconnects, or the holder is lost; the client can resume it."""
        request = self._request
        await request.begin_response(head.status, self._response_headers(head))
        request.when_disconnected(self._wake_up)
        self._write_nowait = request.write_nowait
        try:
            while not request.disconnected:
                if self._frames:
                    frame = self._frames.popleft()
                    if type(frame) is not ChunkFrame:
                        self._holder_done = type(frame) is StreamEndFrame
                        break
                    await request.write(frame.data)
                    self._acknowledge(len(frame.data))
                elif self._lost:
                    break
                else:
                    await self._wait_for_change()
            self._write_nowait = None
            if not request.disconnected:
                await request.end_stream()
        finally:
            self._write_nowait = None
            request.on_disconnect = None


def _select_forwarded_headers(headers: Mapping[bytes, bytes]) -> Headers:
    """Return the headers that the holder reads.

    The ingress has authenticated the caller and sends the principal, so credentials (`Authorization`, `DPoP`, cookies,
    headers of a custom authenticator) stay in this process.
    """
    return [(name, value) for name, value in headers.items() if name in _FORWARDED_HEADERS or name.startswith(b"mcp-")]
