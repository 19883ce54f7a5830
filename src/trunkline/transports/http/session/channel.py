"""The channel of one HTTP session: many requests over HTTP, one conversation.

Each POST is an exchange. What is answered while it is handed over, or later, finds its way by the request that it is
about: the answer to an exchange that has sent nothing else is plain JSON, anything before it makes it a stream of
events. What belongs to no request goes to the stream of the GET.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, cast

from trunkline.config import Settings
from trunkline.errors import InsufficientScope
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, Receiver
from trunkline.transports.http.session.event_store import EventStore, MemoryEventStore
from trunkline.transports.http.session.streams import STANDALONE, Stream
from trunkline.wire.codec import encode
from trunkline.wire.messages import (
    Batch,
    Encoded,
    ErrorResponse,
    Incoming,
    Malformed,
    Message,
    Request,
    RequestId,
    Response,
)

__all__ = ["Decision", "Exchange", "HttpChannel", "missing_scopes"]


class StreamOwner(Protocol):
    """Who makes streams."""

    def new_stream(self, requests: Sequence[RequestId]) -> Stream:
        """One more, for the answers to some requests."""
        ...

    async def wait_drained(self, stream: Stream | None) -> None:
        """Waits while one is read too slowly."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether a peer can come back to one."""
        ...

    def forget_request(self, ident: RequestId, exchange: "Exchange") -> None:
        """The answer to a request will not come."""
        ...


class Decision(asyncio.Future[None]):
    """Done when it is known how an exchange is answered. Who has waited for it only writes that out."""


class Exchange:
    """One POST: what it asks, and what comes of it."""

    __slots__ = (
        "_channel",
        "_decision",
        "abandoned",
        "cancelled_ids",
        "failed",
        "internal_id",
        "malformed_ids",
        "missing_scopes",
        "on_finished",
        "request_ids",
        "response",
        "status",
        "stream",
    )

    def __init__(self, channel: "StreamOwner", ids: Sequence[RequestId]) -> None:
        self._channel = channel
        self.request_ids = ids  # of the requests in it
        self.internal_id = 0  # of our own, where ids are not enough
        self.status = 200  # of a plain answer
        self.missing_scopes: Sequence[str] | None = None  # the scopes that would be needed for another answer
        self.malformed_ids: Sequence[RequestId | None] = ()  # the ids of what is no message, where they could be read
        self.response: bytes | None = None  # the last message
        self.failed = False  # the answer is an error
        self.abandoned = False  # there will be no answer
        self.cancelled_ids: tuple[RequestId, ...] = ()  # the requests that were cancelled
        self.stream: Stream | None = None  # once something was sent before the answer
        self.on_finished: Callable[[], None] | None = None  # is told of the answer
        self._decision: Decision | None = None

    def matches_reply_id(self, ident: Any) -> bool:
        """Whether an answer under that id, given while this is handed over, can only be meant for it."""
        return ident in self.request_ids or ident in self.malformed_ids or not isinstance(ident, int | str)

    def send_event(self, frame: bytes) -> None:
        """Sends something before the answer."""
        self.open_stream().write(frame)

    def finish(self, frame: bytes, *, failed: bool) -> None:
        """Sends the answer."""
        self.response = frame
        self.failed = failed
        if self.stream is not None:
            self.stream.write(frame)
            self.stream.complete()
        self._set_decided()
        if self.on_finished is not None:
            self.on_finished()

    def open_stream(self) -> Stream:
        """The stream of events that this exchange is answered with from now on."""
        if self.stream is None:
            self.stream = self._channel.new_stream(self.request_ids)
            self._set_decided()
        return self.stream

    def begin_response(self) -> None:
        """Open the stream if it is not decided yet how this is answered: what is written shows whether the peer is
        there."""
        if not self.decided:
            self.open_stream()

    async def drain(self) -> None:
        """Waits while the peer reads too slowly what it is sent before the answer."""
        await self._channel.wait_drained(self.stream)

    def detach(self) -> None:
        """No reader will come for this POST: what it sends waits in the event log for a client that comes back."""
        self.open_stream().detach()

    def close_stream(self) -> None:
        """Lets the peer go, who comes back for the rest of the stream. Nothing is lost by that; where nobody can come
        back, nobody is let go."""
        if self._channel.resumable:
            self.open_stream().disconnect_reader()

    def give_up(self, ident: RequestId) -> None:
        """That request was cancelled; when all are, there will be no answer."""
        self.cancelled_ids = (*self.cancelled_ids, ident)
        self._channel.forget_request(ident, self)
        if all(one in self.cancelled_ids for one in self.request_ids):
            if self.stream is not None:
                self.stream.complete()
            self.abandon()

    def abandon(self) -> None:
        """There will be no answer."""
        self.abandoned = True
        if self.stream is not None:
            self.stream.end()
        self._set_decided()

    def _set_decided(self) -> None:
        if self._decision is not None and not self._decision.done():
            self._decision.set_result(None)

    @property
    def decided(self) -> bool:
        """Whether it is known how it is answered: by JSON, by events, or not at all."""
        return self.response is not None or self.stream is not None or self.abandoned

    def decision(self) -> Decision:
        """Done when it is decided."""
        if self._decision is None:
            self._decision = Decision()
        return self._decision


class HttpChannel:
    """One session."""

    __slots__ = (
        "_closed",
        "_current_exchange",
        "_events",
        "_exchanges",
        "_info",
        "_moved",
        "_receiver",
        "_settings",
        "_stream_numbers",
        "_streams",
        "active_requests",
    )

    def __init__(
        self,
        peer: str,
        settings: Settings,
        *,
        revision: str | None = None,
        session: str | None = None,
        events: EventStore | None = None,
    ) -> None:
        """`session` is the id of one that is kept, with what is sent in it, in `events`."""
        self._info = ChannelInfo("http", peer, revision=revision, session=session)
        self._settings = settings
        self._receiver: Receiver | None = None
        self._closed = False
        self._moved = False
        self._current_exchange: Exchange | None = None  # the one that is being handed over
        self._exchanges: dict[RequestId, Exchange] = {}
        self._events = events  # if not given, made when the first event is sent
        self._stream_numbers: count[int] | None = None
        self._streams: dict[int, Stream] = {}
        self.active_requests = 0  # HTTP requests that are under way
        if events is not None:
            events.on_committed(self._wake_reader)

    @property
    def info(self) -> ChannelInfo:
        """What kind of line this is."""
        return self._info

    @property
    def resumable(self) -> bool:
        """Whether it is a session, to which a peer can come back."""
        return self._info.revision is None

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._closed

    @property
    def permanently_closed(self) -> bool:
        """Whether it has ended for good: nobody goes on with it later, or in another process."""
        return self._closed and not self._moved

    def open(self, receiver: Receiver) -> None:
        """Names who is told of messages."""
        self._receiver = receiver

    # --- in ------------------------------------------------------------------------------------

    def begin_exchange(self, message: Incoming, principal: Any, headers: Mapping[str, str]) -> Exchange:
        """Hands a message up, and gives what has come of it so far, which is also the stream of its origin."""
        made = self._current_exchange = self._create_exchange(message)
        try:
            if self._receiver is not None:
                self._receiver.received([message], MessageOrigin(principal, headers, made))
        finally:
            self._current_exchange = None
        if made.response is None:
            self._register(made)
        return made

    def _create_exchange(self, message: Incoming) -> Exchange:
        if type(message) is Request:
            return Exchange(self, (message.id,))
        parts = message.messages if isinstance(message, Batch) else (message,)
        made = Exchange(self, [part.id for part in parts if isinstance(part, Request)])
        made.malformed_ids = [part.id for part in parts if isinstance(part, Malformed)]
        return made

    def _register(self, exchange: Exchange) -> None:
        """The answer will come later, unless the session has ended meanwhile."""
        if self._closed:
            exchange.abandon()
            return
        for ident in exchange.request_ids:
            if ident not in exchange.cancelled_ids:
                self._exchanges.setdefault(ident, exchange)  # one that is in use was refused by whoever received it

    def forget_request(self, ident: RequestId, exchange: Exchange) -> None:
        """The answer will not come."""
        if self._exchanges.get(ident) is exchange:
            del self._exchanges[ident]

    def pause(self) -> None:
        """Nothing to be done: each POST waits for its own answer, so a peer cannot run ahead of us by much."""

    def resume(self) -> None:
        """Nothing to be done either."""

    # --- out -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> None:
        """Takes a message for the stream that it belongs to."""
        if self._closed:
            return
        frame = encode(cast("Any", message))
        current = self._current_exchange
        if (
            type(message) is Response and current is not None and message.id in current.request_ids
        ):  # the short way of most
            current.finish(frame, failed=False)
        elif isinstance(message, Response | ErrorResponse):
            self._finish_exchange([message.id], frame, message if isinstance(message, ErrorResponse) else None)
        elif isinstance(message, Sequence):
            self._finish_exchange([one.id for one in message if isinstance(one, Response | ErrorResponse)], frame)
        else:
            exchange = None if about is None else self._find_exchange(about)
            if exchange is not None:
                exchange.send_event(frame)
                stream = exchange.stream
            else:
                stream = self.ensure_stream(STANDALONE)
                stream.write(frame)
            if stream is not None and stream.unread_bytes > self._settings.unsent_limit:
                self.terminate(ChannelClosed(f"the peer left {stream.unread_bytes} bytes unread"))

    def _find_exchange(self, ident: RequestId) -> Exchange | None:
        """The exchange that a request belongs to."""
        current = self._current_exchange
        return current if current is not None and ident in current.request_ids else self._exchanges.get(ident)

    def _finish_exchange(self, idents: Sequence[Any], frame: bytes, error: ErrorResponse | None = None) -> None:
        current = self._current_exchange
        if current is not None and any(current.matches_reply_id(ident) for ident in idents):
            exchange: Exchange | None = current
        else:
            exchange = next((self._exchanges[ident] for ident in idents if ident in self._exchanges), None)
        if exchange is None:
            return  # nobody waits for it any more
        for one in exchange.request_ids:
            if self._exchanges.get(one) is exchange:
                del self._exchanges[one]
        exchange.missing_scopes = None if error is None else missing_scopes(error)
        exchange.finish(frame, failed=error is not None)

    # --- streams -------------------------------------------------------------------------------

    def ensure_stream(self, number: int) -> Stream:
        """The stream of a number, made if it is not there."""
        found = self._streams.get(number)
        if found is None:
            if self._events is None:
                self._events = MemoryEventStore(self._settings.replay_events, self._settings.replay_bytes)
            found = self._streams[number] = Stream(number, self._events)
            if self._moved:
                found.mark_moved()
        return found

    def find_stream(self, number: int) -> Stream | None:
        """The stream of a number, if it is there; the one of the GET always is."""
        return self.ensure_stream(STANDALONE) if number == STANDALONE else self._streams.get(number)

    def restore_streams(self, streams: Sequence[int], newest_stream: int, delivered: int) -> None:
        """Goes on with the streams that another process has begun: those that have ended, and the one of the GET."""
        self.ensure_stream(STANDALONE).last_read = delivered
        for number in streams:
            self.ensure_stream(number).end()
        self._stream_numbers = count(newest_stream + 1)

    def _wake_reader(self, number: int) -> None:
        if (stream := self._streams.get(number)) is not None:
            stream.wake_reader()

    def new_stream(self, requests: Sequence[RequestId]) -> Stream:
        """One more stream. The oldest that have ended are forgotten when there are too many, or too many bytes."""
        if self._stream_numbers is None:
            self._stream_numbers = count(1)
        self._evict_streams()
        made = self.ensure_stream(next(self._stream_numbers))
        if self._events is not None:
            self._events.begin(made.number, requests)
        return made

    def _evict_streams(self) -> None:
        """Forget the streams that ended first, as long as there are more than a session may have kept for replay."""
        events, settings = self._events, self._settings
        if events is None:
            return
        size = sum(events.size(number) for number in self._streams)
        for number, stream in list(self._streams.items()):
            if len(self._streams) <= settings.replay_streams and size <= settings.replay_session_bytes:
                return
            if stream.ended and not stream.attached:
                size -= events.size(number)
                self.forget_stream(number)

    def detach_standalone_reader(self) -> None:
        """Lets whoever waits for what belongs to no request go, and come back later."""
        waiting = self._streams.get(STANDALONE)
        if waiting is not None and waiting.attached:
            waiting.detach()

    def forget_stream(self, number: int) -> None:
        """Nobody will come back for that stream."""
        self._streams.pop(number, None)
        if self._events is not None:
            self._events.drop(number)

    # --- the end -------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Waits while somebody reads too slowly what is sent."""
        for stream in list(self._streams.values()):
            await self.wait_drained(stream)

    async def wait_drained(self, stream: Stream | None) -> None:
        """Waits while a stream is read too slowly."""
        if stream is not None:
            await stream.wait_drained(self._settings.unsent_high)

    async def close(self) -> None:
        """Ends the session and all of its streams, as far as this process is concerned: one that is kept goes on later,
        or in another."""
        self._moved = self._info.session is not None
        self.terminate(ChannelClosed("closed"))

    def terminate(self, closed: ChannelClosed) -> None:
        """The session is over."""
        if self._closed:
            return
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.closed(closed)  # which answers what is under way, so the channel closes after it
        self._closed = True
        for stream in self._streams.values():
            stream.end()
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.abandon()

    def mark_moved(self) -> None:
        """Another process goes on with the session. Whoever reads a stream is let go, to read on there."""
        if not self._closed:
            self._moved = True
            for stream in self._streams.values():
                stream.mark_moved()
            self.terminate(ChannelClosed("session_moved"))


def missing_scopes(error: ErrorResponse) -> Sequence[str] | None:
    """The scopes without which something was refused; None if that is not what an error is about."""
    data: Any = error.error.data
    if not isinstance(data, dict) or (told := cast("dict[str, Any]", data)).get("kind") != InsufficientScope.kind:
        return None
    return told.get("scopes") or ()
