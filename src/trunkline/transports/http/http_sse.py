"""HTTP+SSE, as revision 2024-11-05 had it: a stream of events from us, and an address that the peer posts to.

The first event names that address. It holds a token that nobody can guess, and belongs to whoever opened the stream.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import parse_qs

from trunkline.config import Settings
from trunkline.errors import Interrupted
from trunkline.transports.channel import ChannelInfo, Closed, Origin, Receiver
from trunkline.transports.http.body import Reading
from trunkline.transports.http.forwarding.inbound import Carried
from trunkline.transports.http.forwarding.outbound import Front, Outcome
from trunkline.transports.http.request import HeaderView, Visit, cancel
from trunkline.transports.http.session.lookup import LOST
from trunkline.transports.listener_limits import Guard
from trunkline.wire import codec, sse
from trunkline.wire.messages import Batch, Encoded, ErrorResponse, Incoming, Message, Request, RequestId, Response

__all__ = ["LegacyChannel", "LegacyEndpoint"]


class LegacyChannel:
    """One stream of events, and what is posted for it."""

    def __init__(self, peer: str, settings: Settings) -> None:
        self._info = ChannelInfo("sse", peer)
        self._settings = settings
        self._receiver: Receiver | None = None
        self._waiting: deque[bytes] = deque()
        self._unsent = 0  # bytes that wait, or that are being written out
        self._eased: asyncio.Future[None] | None = None  # done when fewer bytes are unsent
        self._wake = asyncio.Event()
        self._asked: set[RequestId] = set()  # what is not answered yet
        self._leaving = False  # as soon as all is answered
        self._closed = False

    @property
    def info(self) -> ChannelInfo:
        """What kind of line this is."""
        return self._info

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    def open(self, receiver: Receiver) -> None:
        """Names who is told of messages."""
        self._receiver = receiver

    def received(self, message: Incoming, origin: Origin) -> None:
        """Hands a message up."""
        if self._receiver is not None and not self._closed:
            self._asked.update(part.id for part in _parts(message) if isinstance(part, Request))
            self._receiver.received([message], origin)

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> None:  # noqa: ARG002
        """Takes a message for the stream."""
        if self._closed:
            return
        event = sse.encode(codec.encode(cast("Any", message)), kind="message")
        self._unsent += len(event)
        if self._unsent > self._settings.unsent_limit:
            self.lost(Closed(f"the peer left {self._unsent} bytes unread"))
            return
        self._waiting.append(event)
        self._wake.set()
        self._asked.difference_update(part.id for part in _parts(message) if isinstance(part, Response | ErrorResponse))
        if self._leaving:
            self.release()

    def pause(self) -> None:
        """Nothing to be done: each POST is read by itself."""

    def resume(self) -> None:
        """Nothing to be done either."""

    async def drain(self) -> None:
        """Wait while more than `unsent_high` bytes are unsent."""
        while self._unsent > self._settings.unsent_high and not self._closed:
            if self._eased is None:
                self._eased = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._eased)

    def _ease(self) -> None:
        """Wake the handlers that wait in `drain`."""
        eased, self._eased = self._eased, None
        if eased is not None:
            eased.set_result(None)

    async def close(self) -> None:
        """Ends the stream, once all is written."""
        self.lost(Closed("closed"))

    def release(self) -> None:
        """Ends the stream once nothing is being answered on it any more."""
        self._leaving = True
        if not self._asked:
            self.lost(Closed("the server is about to stop"))

    def give_up(self, ident: RequestId) -> None:
        """That request was cancelled, and is not answered."""
        self._asked.discard(ident)
        if self._leaving:
            self.release()

    def close_stream(self) -> None:
        """Nothing to be done: the stream is the line, and nobody could read on."""

    def lost(self, closed: Closed) -> None:
        """The stream is over."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.closed(closed)  # which answers what is under way, so the channel closes after it
        self._closed = True
        self._wake.set()
        self._ease()

    async def flow(self, visit: Visit) -> None:
        """Writes out what is sent, until the end of the stream or of the peer."""
        gone = asyncio.ensure_future(visit.hung_up())
        try:
            while not gone.done():
                if self._waiting:
                    data = b"".join(self._waiting)
                    self._waiting.clear()
                    await visit.go_on(data)
                    self._unsent -= len(data)
                    self._ease()
                elif self._closed:
                    await visit.end_stream()
                    return
                else:
                    await self._wait(visit, gone)
        finally:
            self.lost(Closed("the peer closed the stream"))
            await cancel(gone)

    async def _wait(self, visit: Visit, gone: "asyncio.Future[Any]") -> None:
        self._wake.clear()
        wake = asyncio.ensure_future(self._wake.wait())
        limit = self._settings.stream_keepalive
        try:
            done, _ = await asyncio.wait([wake, gone], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()
        if not done:
            await visit.go_on(sse.COMMENT)


def _parts(message: Incoming | Encoded | Sequence[Message]) -> Sequence[Any]:
    """The messages in what was read, or is sent."""
    if isinstance(message, Batch):
        return message.messages
    return message if isinstance(message, Sequence) else (message,)


class LegacyEndpoint:
    """Two addresses: one for streams, one for what is posted."""

    def __init__(self, guard: Guard, messages: str, front: Front | None = None) -> None:
        """What is posted for a stream that another process has is carried there by the front."""
        self._guard = guard
        self._settings = guard.settings
        self._reading = Reading(guard.settings, guard.clock)
        self._front = front
        self._messages = messages  # the path to post to
        self._lines: dict[str, tuple[LegacyChannel, Any]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    async def stream(self, visit: Visit) -> None:
        """Opens a stream of events."""
        if visit.scope["method"] != "GET":
            await visit.not_allowed(b"GET, OPTIONS")
            return
        if (busy := self._guard.refuse_more("streams")) is not None:
            await visit.refuse(503, busy.why, (b"retry-after", busy.wait), kind=busy.kind)
            return
        token = self._new_token()
        channel = LegacyChannel(visit.peer, self._settings)
        channel.open(self._guard.admit(channel, channel.lost))
        self._lines[token] = (channel, visit.principal)
        root: str = visit.scope.get("prefix", "") + visit.scope.get("root_path", "")
        expired = Closed("what proved who the stream is for has run out")
        expiry = None if visit.until is None else self._guard.clock.call_at(visit.until, lambda: channel.lost(expired))
        try:
            await visit.begin_stream()
            await visit.go_on(sse.encode(f"{root}{self._messages}?session_id={token}".encode(), kind="endpoint"))
            await channel.flow(visit)
        finally:
            if expiry is not None:
                expiry.cancel()
            del self._lines[token]
            channel.lost(Closed("the peer closed the stream"))

    def _new_token(self) -> str:
        """What nobody can guess, and which process has the stream, where there are others."""
        token = secrets.token_urlsafe(32)
        return token if self._front is None else f"{token}.{self._front.name}"

    async def post(self, visit: Visit) -> None:
        """Takes a message for a stream; its answer goes there."""
        if visit.scope["method"] != "POST":
            await visit.not_allowed(b"POST, OPTIONS")
            return
        query: bytes = visit.scope.get("query_string", b"")
        token = parse_qs(query.decode("latin-1")).get("session_id", [""])[0]
        channel, owner = self._lines.get(token, (None, None))
        holder = token.rpartition(".")[2]
        if channel is not None and owner == visit.principal:
            body = await self._reading.body(visit)
            if body is not None:
                await self._hand_over(visit, channel, body)
        elif channel is None and self._front is not None and self._front.knows(holder):
            await self._carry(visit, self._front, holder, token)
        else:
            await self._refuse(visit)

    async def _hand_over(self, visit: Visit, channel: LegacyChannel, body: bytes) -> None:
        message = codec.decode_strict(body)
        await visit.respond(202)
        channel.received(message, Origin(visit.principal, HeaderView(visit.headers), channel))

    async def _refuse(self, visit: Visit) -> None:
        await visit.refuse(404, "there is no such session; open a stream first", kind="session_not_found")

    async def _carry(self, visit: Visit, front: Front, holder: str, token: str) -> None:
        body = await self._reading.body(visit)
        if body is None:
            return
        match await front.carry(visit, holder, token, body, messages=True):
            case Outcome.NOT_HELD:
                await self._refuse(visit)
            case Outcome.LOST:
                await visit.refuse_with(500, Interrupted(LOST))
            case Outcome.ANSWERED:
                pass

    async def carried(self, visit: Carried) -> bool:
        """Takes a message that another process has let in, if its stream is here."""
        channel, owner = self._lines.get(visit.ident, (None, None))
        if channel is None or not visit.belongs_to(owner):
            return False
        await self._hand_over(visit, channel, visit.posted)
        return True

    def release(self) -> None:
        """Ends the streams on which nothing is being answered, and the others when it is."""
        for channel, _ in list(self._lines.values()):
            channel.release()

    def end_lost(self) -> None:
        """Ends the streams that other processes do not find any more: who comes back has one that they do."""
        for token, (channel, _) in list(self._lines.items()):
            if self._front is not None and token.rpartition(".")[2] != self._front.name:
                channel.lost(Closed("this process has another name"))

    def close(self, reason: str) -> None:
        """Ends every stream."""
        for channel, _ in list(self._lines.values()):
            channel.lost(Closed(reason))
        self._reading.close()
