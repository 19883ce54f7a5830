"""Streamable HTTP of the modern era: each POST stands for itself, and so does its answer.

All of them share one channel. Since clients choose their ids without knowing of each other, each request is given one
of our own for as long as it is under way. A peer that hangs up has called its request off.
"""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, cast

from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import UnsupportedVersion
from trunkline.protocol.envelope import InvalidEnvelope, held_by
from trunkline.protocol.revisions import HANDSHAKE, MODERN, SPOKEN
from trunkline.protocol.types import CancelledParams
from trunkline.transports.channel import ChannelInfo, Closed, Origin, Receiver
from trunkline.transports.http.request import HeaderView, Visit, cancel
from trunkline.transports.http.respond import VERSION, Answering
from trunkline.transports.http.session.channel import Exchange, scopes_missed
from trunkline.transports.http.session.event_store import MemoryEvents
from trunkline.transports.http.session.streams import Stream
from trunkline.transports.listener_limits import Guard
from trunkline.wire import codec
from trunkline.wire.messages import (
    Encoded,
    ErrorResponse,
    Incoming,
    Malformed,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
)

__all__ = ["StatelessChannel", "StatelessEndpoint", "is_modern", "known_version", "refuse_malformed"]

_STATUS: Final = {-32700: 400, -32600: 400, -32601: 404, -32020: 400, -32021: 400, UnsupportedVersion.code: 400}
_MODERN: Final = frozenset(revision.value.encode() for revision in MODERN)
_HANDSHAKE: Final = frozenset(revision.value.encode() for revision in HANDSHAKE)
_KINDS: Final = {-32700: "parse_error", -32602: "invalid_params"}


class StatelessChannel:
    """What all requests that stand for themselves go through."""

    def __init__(self, settings: Settings) -> None:
        self._info = ChannelInfo("http", shared=True)
        self._settings = settings
        self._receiver: Receiver | None = None
        self._ids = count(1)
        self._exchanges: dict[RequestId, Exchange] = {}
        self._closed = False

    @property
    def info(self) -> ChannelInfo:
        """What kind of line this is."""
        return self._info

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    @property
    def lasting(self) -> bool:
        """Nobody can come back to a request that stands for itself."""
        return False

    def __len__(self) -> int:
        return len(self._exchanges)

    def open(self, receiver: Receiver) -> None:
        """Names who is told of messages."""
        self._receiver = receiver

    # --- in ------------------------------------------------------------------------------------

    def exchange(self, request: Request, origin: Origin) -> Exchange:
        """Hands a request up under an id of our own, and gives what has come of it so far."""
        made = Exchange(self, [request.id])
        number = made.number = next(self._ids)
        self._exchanges[number] = made
        if self._receiver is not None:
            self._receiver.received(
                [Request(number, request.method, request.params)],
                Origin(origin.principal, origin.headers, made, request.id),
            )
        return made

    def call_off(self, exchange: Exchange) -> None:
        """Nobody waits for the answer any more."""
        if exchange.answer is None and self._receiver is not None:
            params: Any = codec.to_raw(CancelledParams(request_id=exchange.number, reason="the client hung up"))
            self._exchanges.pop(exchange.number, None)
            self._receiver.received([Notification("notifications/cancelled", params)], Origin())

    def unexpect(self, ident: RequestId, exchange: Exchange) -> None:  # noqa: ARG002 - each has one request
        """The answer will not come."""
        self._exchanges.pop(exchange.number, None)

    def pause(self) -> None:
        """Nothing to be done: each POST waits for its own answer."""

    def resume(self) -> None:
        """Nothing to be done either."""

    # --- out -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> None:
        """Takes an answer, or something that belongs to one. What belongs to none has nowhere to go."""
        if isinstance(message, Response | ErrorResponse):
            exchange = self._exchanges.pop(cast("RequestId", message.id), None)
            if exchange is not None:
                if isinstance(message, ErrorResponse):
                    exchange.status = _status_of(message)
                    exchange.lacks = scopes_missed(message)
                exchange.finish(codec.encode(replace(message, id=exchange.ids[0])), failed=False)
        elif about is not None and (exchange := self._exchanges.get(about)) is not None:
            exchange.tell(codec.encode(cast("Any", message)))
            stream = exchange.stream
            if stream is not None and stream.unread > self._settings.unsent_limit:
                stream.end()
                self.call_off(exchange)

    def new_stream(self, requests: Sequence[RequestId]) -> Stream:  # noqa: ARG002 - the seam's
        """A stream of events for one answer; nobody comes back for it, so nothing of it is kept."""
        return Stream(0, MemoryEvents(0, 0), ids=False)

    async def drain(self) -> None:
        """Waits while somebody reads too slowly what is sent."""
        for exchange in list(self._exchanges.values()):
            await exchange.drain()

    async def drained(self, stream: Stream | None) -> None:
        """Waits while a stream is read too slowly."""
        if stream is not None:
            await stream.drained(self._settings.unsent_high)

    # --- the end -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends it."""
        self.lost(Closed("closed"))

    def lost(self, closed: Closed) -> None:
        """It is over."""
        if self._closed:
            return
        self._closed = True
        if self._receiver is not None:
            self._receiver.closed(closed)  # which answers what is under way
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            if exchange.stream is not None:
                exchange.stream.end()
            exchange.abandon()


def _status_of(message: ErrorResponse) -> int:
    """The status that goes with an error: the specification's, where it names one."""
    data: Any = message.error.data
    if isinstance(data, dict) and cast("dict[str, Any]", data).get("kind") == InvalidEnvelope.kind:
        return 400
    return _STATUS.get(message.error.code, 200)


class StatelessEndpoint:
    """Answers requests that stand for themselves."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._answering = Answering(guard.settings, guard.clock)
        self._channel: StatelessChannel | None = None

    async def takes(self, visit: Visit, message: Incoming) -> bool:
        """Answers what is of the modern era; False if it is not."""
        modern = is_modern(visit)
        if isinstance(message, Request):
            if modern or held_by(message.params):
                await self._post(visit, message)
                return True
        elif modern:
            match message:
                case Notification():
                    await visit.respond(202)  # there is nothing to act on: nobody can call off what is not its own
                case Malformed():
                    await refuse_malformed(visit, message)
                case _:
                    await visit.refuse(400, "a message here is one request or notification")
            return True
        return False

    def _busy(self) -> str | None:
        """Why nothing more can be answered now; None if it can."""
        if self._guard.closing:
            return "the server is about to stop"
        most = self._guard.settings.max_connections
        if self._channel is not None and len(self._channel) >= most:
            return f"{most} requests are being answered, which is the most; try again later"
        return None

    async def _post(self, visit: Visit, message: Request) -> None:
        if (why := self._busy()) is not None:
            await self._turn_away(visit, message, why)
            return
        channel = self._channel
        if channel is None or channel.closed:
            channel = self._channel = StatelessChannel(self._guard.settings)
            channel.open(self._guard.admit_session(channel))
        exchange = channel.exchange(message, Origin(visit.principal, HeaderView(visit.headers)))
        try:
            if not exchange.decided:
                await self._decide(visit, exchange)
            if exchange.answer is not None or exchange.stream is not None or channel.closed:
                await self._answering.answer(visit, exchange)
        finally:
            channel.call_off(exchange)

    async def _turn_away(self, visit: Visit, message: Request, why: str) -> None:
        await visit.refuse(503, why, (b"retry-after", b"1"), kind="temporarily_unavailable", about=message.id)

    async def _decide(self, visit: Visit, exchange: Exchange) -> None:
        """Waits until it is known how a request is answered, or the peer has gone."""
        gone, changed = asyncio.ensure_future(visit.hung_up()), exchange.changed()
        gone.add_done_callback(lambda _: changed.done() or changed.set_result(None))
        visit.when_half_closed(exchange.begin_answer)
        try:
            await self._answering.decide(exchange)
        finally:
            await cancel(gone)

    def close(self, reason: str) -> None:
        """Ends what is being answered."""
        if self._channel is not None:
            self._channel.lost(Closed(reason))


def is_modern(visit: Visit) -> bool:
    """Whether the headers of a request name a revision of the modern era."""
    return visit.headers.get(VERSION) in _MODERN


async def known_version(visit: Visit, message: Incoming | None = None) -> bool:
    """Whether the revision that a request names is one with a handshake, or none; the peer is told if it is not."""
    version = visit.headers.get(VERSION)
    if version is None or version in _HANDSHAKE:
        return True
    about = message.id if isinstance(message, Request | Malformed) else None
    await visit.refuse_with(400, UnsupportedVersion(version.decode("latin-1"), SPOKEN), about=about)
    return False


async def refuse_malformed(visit: Visit, message: Malformed) -> None:
    """Tells a peer that what it posted is no message."""
    kind = _KINDS.get(message.code, "invalid_request")
    await visit.refuse(400, message.why, code=message.code, kind=kind, about=message.id)
