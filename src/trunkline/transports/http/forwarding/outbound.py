"""Carrying requests to the process that holds what they are for, and their answers back.

Whoever of several processes a client comes to lets it in, and reads what it sends; where another one holds its session,
that one answers. What it answers is passed on as it comes, at the pace of who reads: no more than a window's worth of
it is ever on the way. A process that is lost on the way has answered or not, which nobody knows.
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
from trunkline.transports.http.request import Headers, HttpRequest, cancel_and_wait
from trunkline.transports.http.session.channel import Decision

__all__ = ["ClusterLink", "ForwardOutcome", "Forwarder", "Relay"]

_FORWARDED_HEADERS: Final = frozenset({b"accept", b"content-type", b"last-event-id"})
_CHECK_INTERVAL: Final = 1.0  # seconds: whether those who are waited for are still there


class ClusterLink(Protocol):
    """The line to the other processes. What one sends to another arrives in order and once, or both are told."""

    @property
    def name(self) -> str:
        """What this process is called among them. It may have another name later."""
        ...

    @property
    def peers(self) -> Collection[str]:
        """Those that are there."""
        ...

    def on(self, kind: bytes, handler: Callable[[str, bytes], Any]) -> None:
        """Has a function be told who says something of a kind, and what."""
        ...

    def on_lost(self, callback: Callable[[str | None], None]) -> None:
        """Has a function be told whose messages may have been lost, of None: anybody's; or who is gone."""
        ...

    def on_evicted(self, callback: Callable[[], None]) -> None:
        """Has a function be told that others take this process for dead: nobody reaches it under its name."""
        ...

    def on_missed(self, callback: Callable[[], None]) -> None:
        """Has a function be told that it was out of reach for a while, and may have another name now."""
        ...

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Sends something to one process. False if nothing was sent: it is certain that nobody is there, or there is no
        way to others for now."""
        ...

    async def drain(self) -> None:
        """Waits while much of what was sent has not left yet."""
        ...

    async def evict_if_dead(self, name: str) -> bool:
        """Whether a process is gone. Raises `StoreError` if that cannot be found out."""
        ...

    async def wait_until_reachable(self, name: str) -> bool:
        """Whether a process is there to be sent something, once that is not in doubt. Raises `StoreError` if that
        cannot be found out."""
        ...


class ForwardOutcome(Enum):
    """What has become of a request that was to be carried."""

    ANSWERED = auto()
    NOT_HELD = auto()  # that process does not hold what it is for, or is gone: nothing was done
    LOST = auto()  # on the way: nobody knows whether anything was done, and the client has been told nothing


class Relay:
    """All that one process carries for others, and has carried by others."""

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
            for line in [line for number in frame.numbers if (line := self._pending.get(number)) is not None]:
                if line.holder == holder:
                    line.mark_lost()
            return
        line = self._pending.get(frame.number)
        if line is not None and line.holder == holder:
            line.on_frame(frame)

    def on_peer_lost(self, name: str | None) -> None:
        """What that process was sent or has sent may be lost: nobody waits for it any more."""
        for line in list(self._pending.values()):
            if name is None or line.holder == name:
                line.mark_lost()
        self.inbound.on_peer_lost(name)

    def _on_renamed(self) -> None:
        for host in self.inbound.targets:
            host.on_renamed()

    # --- what others answer ------------------------------------------------------------------------

    def begin(self, holder: str, request: HttpRequest) -> "PendingForward":
        """One more request that is carried."""
        number = next(self._numbers)
        line = self._pending[number] = PendingForward(self, number, holder, request)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._check_pending)
        return line

    def end(self, forward: "PendingForward") -> None:
        """It is over."""
        del self._pending[forward.number]
        if self._drain_waiter is not None and not self._drain_waiter.done() and not self._has_pending_replies():
            self._drain_waiter.set_result(None)

    def _has_pending_replies(self) -> bool:
        """Whether somebody waits for an answer; a stream of what belongs to no request is none."""
        return any(not line.is_standalone_stream for line in self._pending.values())

    async def drained(self) -> None:
        """Waits until all that is carried is answered."""
        if self._has_pending_replies():
            self._drain_waiter = asyncio.get_running_loop().create_future()
            await self._drain_waiter

    def _check_pending(self) -> None:
        """Those who are waited for may be gone, and nobody else looks. Or a message was lost on the way there or back,
        and neither side was told: each is asked whether it still works on what it is waited for."""
        self._timer = None
        if self._pending:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_CHECK_INTERVAL, self._check_pending)
            for holder in {line.holder for line in self._pending.values()}:
                pending = [number for number, line in self._pending.items() if line.holder == holder]
                self.cluster.send(holder, INGRESS_KIND, encode_frame(PendingFrame(pending)))
            if self._check_task is None:
                self._check_task = loop.create_task(
                    self._check_holders({line.holder for line in self._pending.values()})
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
        """Carries nothing any more; what is being written to others has a moment."""
        for line in list(self._pending.values()):
            line.mark_lost()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._check_task is not None:
            self._check_task.cancel()
        await self.inbound.close()


class Forwarder:
    """What one place where clients come has carried to others."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._pending: set[PendingForward] = set()

    @property
    def name(self) -> str:
        """What this process is called among the others."""
        return self._relay.cluster.name

    def has_peer(self, name: str) -> bool:
        """Whether there is another process of that name."""
        return name in self._relay.cluster.peers

    async def is_reachable(self, name: str) -> bool:
        """Whether a process can be asked, once that is not in doubt. Raises `StoreError` if that is not known."""
        return await self._relay.cluster.wait_until_reachable(name)

    async def forward(
        self, request: HttpRequest, holder: str, target_id: str, body: bytes = b"", *, is_sse_post: bool = False
    ) -> ForwardOutcome:
        """Has another process answer a request; the client has the answer then, unless it says otherwise."""
        line = self._relay.begin(holder, request)
        self._pending.add(line)
        try:
            if not line.send_request(target_id, body, is_sse_post=is_sse_post):
                return ForwardOutcome.NOT_HELD
            if len(body) > CHUNK_SIZE:
                await line.send_body_rest(body)
            return await line.deliver_response()
        finally:
            self._pending.discard(line)
            self._relay.end(line)
            line.end()

    def close_idle_streams(self) -> None:
        """Ends the streams on which nothing is being answered."""
        for line in list(self._pending):
            if line.is_standalone_stream:
                line.mark_lost()

    def close(self) -> None:
        """Ends what is left."""
        for line in list(self._pending):
            line.mark_lost()


class PendingForward:
    """One request that another process answers."""

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
        self._change_waiter: Decision | None = None
        self._write_nowait: Callable[[bytes], bool] | None = None  # writes at once
        self._uncredited_bytes = 0  # bytes for which the holder has no credit yet
        self._lost = False
        self._holder_done = False  # the holder has said all

    @property
    def is_standalone_stream(self) -> bool:
        """Whether it is a stream for whatever happens, and no answer."""
        return self._request.scope["method"] == "GET"

    # --- asking ------------------------------------------------------------------------------------

    def send_request(self, target_id: str, body: bytes, *, is_sse_post: bool) -> bool:
        """Sends the request, or the beginning of it; False if nobody is there."""
        visit, relay = self._request, self._relay
        ask = RequestFrame(
            number=self.number,
            method=visit.scope["method"],
            target_id=target_id,
            is_sse_post=is_sse_post,
            headers=_select_forwarded_headers(visit.headers),
            peer=visit.peer,
            owner_id=relay.codec.owner_id(visit.principal),
            principal=relay.codec.encode(visit.principal),
            expires_in=None if visit.auth_expires_at is None else visit.auth_expires_at - relay.clock.now(),
            window=relay.window,
            body_size=len(body),
            body=body[:CHUNK_SIZE],
        )
        sent = self._send_frame(ask)
        self._holder_done = not sent
        return sent

    def _send_frame(self, frame: IngressFrame) -> bool:
        return self._relay.cluster.send(self.holder, INGRESS_KIND, encode_frame(frame))

    async def send_body_rest(self, body: bytes) -> None:
        """Sends what did not fit into the first frame."""
        for start in range(CHUNK_SIZE, len(body), CHUNK_SIZE):
            await self._relay.cluster.drain()
            self._send_frame(ChunkFrame(self.number, body[start : start + CHUNK_SIZE]))

    def end(self) -> None:
        """Nobody waits any more."""
        if not self._holder_done:
            self._send_frame(DisconnectFrame(self.number))

    # --- hearing -----------------------------------------------------------------------------------

    def on_frame(self, frame: HolderFrame) -> None:
        """Takes what the holder says."""
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
        """Whether all that came is written, and more is waited for."""
        return not self._frames and self._change_waiter is not None and not self._change_waiter.done()

    def mark_lost(self) -> None:
        """Nothing more comes."""
        self._lost = True
        self._wake_up()

    def _wake_up(self, _: object = None) -> None:
        if self._change_waiter is not None and not self._change_waiter.done():
            self._change_waiter.set_result(None)

    def _wait_for_change(self) -> Decision:
        if self._change_waiter is None or self._change_waiter.done():
            self._change_waiter = Decision()
        return self._change_waiter

    async def _next_frame(self) -> HolderFrame | None:
        """What the holder says next; None if nothing more comes."""
        while not self._frames:
            if self._lost:
                return None
            await self._wait_for_change()
        return self._frames.popleft()

    def _acknowledge(self, size: int) -> None:
        """So much has been passed on. Credit is given for much at a time; of a stream that is for whatever happens, at
        once: what was not passed on is for whoever comes next."""
        self._uncredited_bytes += size
        if self.is_standalone_stream or self._uncredited_bytes * 2 >= self._relay.window:
            self._send_frame(CreditFrame(self.number, self._uncredited_bytes))
            self._uncredited_bytes = 0

    # --- answering ---------------------------------------------------------------------------------

    async def deliver_response(self) -> ForwardOutcome:
        """Brings the client its answer."""
        first = await self._next_frame()
        match first:
            case ResponseFrame():
                body = await self._read_whole_body(first)
                self._holder_done = body is not None
                if body is None:
                    return ForwardOutcome.LOST
                await self._request.respond(first.status, body, *self._response_headers(first))
            case StreamStartFrame():
                await self._write_stream(first)
            case NotHeldFrame():
                self._holder_done = True
                return ForwardOutcome.NOT_HELD
            case _:
                return ForwardOutcome.LOST
        return ForwardOutcome.ANSWERED

    def _response_headers(self, head: ResponseFrame | StreamStartFrame) -> list[tuple[bytes, bytes]]:
        """The headers of an answer. How to get more rights is for the front to say, which knows how it was reached."""
        challenge = self._request.scope_challenge
        return [
            challenge(value.decode().split()) if name == MISSING_SCOPES_HEADER else (name, value)
            for name, value in head.headers
        ]

    async def _read_whole_body(self, answer: ResponseFrame) -> bytes | None:
        """The body of an answer; None if it does not come."""
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
        """Writes a stream out until it ends, the client goes, or the holder is lost: who comes back reads on."""
        visit = self._request
        await visit.begin_response(head.status, self._response_headers(head))
        gone = asyncio.ensure_future(visit.wait_disconnected())
        gone.add_done_callback(self._wake_up)
        self._write_nowait = visit.write_nowait
        try:
            while not gone.done():
                if self._frames:
                    frame = self._frames.popleft()
                    if type(frame) is not ChunkFrame:
                        self._holder_done = type(frame) is StreamEndFrame
                        break
                    await visit.write(frame.data)
                    self._acknowledge(len(frame.data))
                elif self._lost:
                    break
                else:
                    await self._wait_for_change()
            self._write_nowait = None
            if not gone.done():
                await visit.end_stream()
        finally:
            self._write_nowait = None
            await cancel_and_wait(gone)


def _select_forwarded_headers(headers: Mapping[bytes, bytes]) -> Headers:
    """Return the headers that the holder reads. The front has authenticated the caller and sends the principal, so
    credentials (`Authorization`, `DPoP`, cookies, whatever a custom gate looks at) stay in this process."""
    return [(name, value) for name, value in headers.items() if name in _FORWARDED_HEADERS or name.startswith(b"mcp-")]
