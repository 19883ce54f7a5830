"""Channel of one HTTP session: many HTTP requests, one conversation.

Each POST is an exchange. An outgoing message finds its exchange by the request that it is about. A reply that is the
first message of its exchange is sent as plain JSON; any message before it turns the response into an event stream.
Messages about no request go to the standalone stream, which the client opens with GET.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast

from trunkline.config import Settings
from trunkline.errors import InsufficientScope
from trunkline.transports.channel import (
    ChannelClosed,
    ChannelInfo,
    MessageOrigin,
    ProfiledReceiver,
    Receiver,
    RequestHead,
)
from trunkline.transports.http.session.event_store import EventStore, MemoryEventStore
from trunkline.transports.http.session.streams import STANDALONE, Stream
from trunkline.wire.codec import to_json
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

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["Exchange", "HttpChannel", "missing_scopes"]


class StreamOwner(Protocol):
    """Creates the streams of exchanges; implemented by channels."""

    def new_stream(self, requests: Sequence[RequestId]) -> Stream:
        """Create a stream for the replies to some requests."""
        ...

    async def wait_drained(self, stream: Stream | None) -> None:
        """Wait while a stream is read too slowly."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether a client can resume a stream."""
        ...

    def forget_request(self, ident: RequestId, exchange: "Exchange") -> None:
        """Expect no reply to a request any more."""
        ...


class Exchange:
    """One POST: its requests, and its response so far."""

    # Defaults on the class: most exchanges set none of them but the response.
    internal_id = 0  # used by channels that clients share
    status = 200  # of a plain JSON response
    missing_scopes: Sequence[str] | None = None  # set by an insufficient_scope error
    malformed_ids: Sequence[RequestId | None] = ()  # ids of malformed messages; None where unreadable
    response: bytes | None = None  # the reply, encoded
    failed = False  # the reply is an error
    abandoned = False  # no reply will follow
    cancelled_ids: tuple[RequestId, ...] = ()
    stream: Stream | None = None  # set once a message precedes the reply
    on_finished: Callable[[], None] | None = None  # called after the reply
    on_decided: Callable[[], None] | None = None  # called once, when `decided` becomes true

    def __init__(self, channel: "StreamOwner", ids: Sequence[RequestId]) -> None:
        self._channel = channel
        self.request_ids = ids  # of the requests in the POST

    def matches_reply_id(self, ident: Any) -> bool:
        """Return whether a reply with that id, sent while this exchange is being received, can only belong to it."""
        return ident in self.request_ids or ident in self.malformed_ids or not isinstance(ident, int | str)

    def send_event(self, frame: bytes) -> None:
        """Send a message before the reply, which makes the response an event stream."""
        self.open_stream().write(frame)

    def finish(self, frame: bytes, *, failed: bool) -> None:
        """Send the reply."""
        self.response = frame
        if failed:
            self.failed = True
        if self.stream is not None:
            self.stream.write(frame)
            self.stream.complete()
        if self.on_decided is not None:
            self._set_decided()
        if self.on_finished is not None:
            self.on_finished()

    def open_stream(self) -> Stream:
        """Return the event stream of this exchange, creating it if necessary."""
        if self.stream is None:
            self.stream = self._channel.new_stream(self.request_ids)
            self._set_decided()
        return self.stream

    def begin_response(self) -> None:
        """Open the event stream if nothing is decided yet: writing to the connection shows whether the client is still
        there."""
        if not self.decided:
            self.open_stream()

    async def drain(self) -> None:
        """Wait while the client reads the events before the reply too slowly."""
        await self._channel.wait_drained(self.stream)

    def detach(self) -> None:
        """Note that no reader will attach for this POST: its events stay in the log for a client that resumes."""
        self.open_stream().detach()

    def close_stream(self) -> None:
        """Disconnect the client, which resumes the stream later without loss. Do nothing where streams are not
        resumable."""
        if self._channel.resumable:
            self.open_stream().disconnect_reader()

    def give_up(self, ident: RequestId) -> None:
        """Note that a request was cancelled; abandon the exchange when all its requests are."""
        self.cancelled_ids = (*self.cancelled_ids, ident)
        self._channel.forget_request(ident, self)
        if all(one in self.cancelled_ids for one in self.request_ids):
            if self.stream is not None:
                self.stream.complete()
            self.abandon()

    def abandon(self) -> None:
        """Expect no reply any more."""
        self.abandoned = True
        if self.stream is not None:
            self.stream.end()
        self._set_decided()

    def _set_decided(self) -> None:
        callback, self.on_decided = self.on_decided, None
        if callback is not None:
            callback()

    @property
    def decided(self) -> bool:
        """Whether it is decided how the POST is answered: with JSON, with events, or without a reply."""
        return self.response is not None or self.stream is not None or self.abandoned


class HttpChannel:
    """Channel of one session, or of one POST where sessions are off."""

    __slots__ = (
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
        "closed",
    )

    def __init__(
        self,
        peer: str,
        settings: Settings,
        *,
        revision: str | None = None,
        session_id: str | None = None,
        events: EventStore | None = None,
    ) -> None:
        """With `events`, which has the events of the session, the session is durable."""
        durable = None if events is None else session_id
        self._info = ChannelInfo(
            "http", peer, revision=revision, session=durable, session_id=session_id, handshake_only=True
        )
        self._settings = settings
        self._receiver: Receiver | None = None
        self.closed = False  # whether the session has ended in this process
        self._moved = False
        self._current_exchange: Exchange | None = None  # the exchange whose message is being passed up
        self._exchanges: dict[RequestId, Exchange] = {}
        self._events = events  # created with the first event if not given
        self._stream_numbers: count[int] | None = None
        self._streams: dict[int, Stream] = {}
        self.active_requests = 0  # HTTP requests in progress
        if events is not None:
            events.on_committed(self._wake_reader)

    @property
    def info(self) -> ChannelInfo:
        """Description of the channel."""
        return self._info

    @property
    def profile(self) -> "Profile | None":
        """The compatibility profile of the session, if it has one."""
        return self._receiver.profile if isinstance(self._receiver, ProfiledReceiver) else None

    @property
    def resumable(self) -> bool:
        """Whether the channel is a session, whose streams a client can resume."""
        return self._info.revision is None

    @property
    def permanently_closed(self) -> bool:
        """Whether the session has ended for good: no process continues it."""
        return self.closed and not self._moved

    def open(self, receiver: Receiver) -> None:
        """Set the receiver of incoming messages."""
        self._receiver = receiver

    # --- incoming ------------------------------------------------------------------------------------

    def begin_exchange(
        self, message: Incoming, principal: Any, headers: Mapping[str, str], request: RequestHead | None = None
    ) -> Exchange:
        """Pass a message up; return its exchange, which may be decided already."""
        exchange = self._current_exchange = (
            Exchange(self, (message.id,)) if type(message) is Request else self._create_exchange(message)
        )
        try:
            if self._receiver is not None:
                self._receiver.received([message], MessageOrigin(principal, headers, exchange, None, request))
        finally:
            self._current_exchange = None
        if exchange.response is None:
            self._register(exchange)
        return exchange

    def _create_exchange(self, message: Incoming) -> Exchange:
        parts = message.messages if isinstance(message, Batch) else (message,)
        exchange = Exchange(self, [part.id for part in parts if isinstance(part, Request)])
        exchange.malformed_ids = [part.id for part in parts if isinstance(part, Malformed)]
        return exchange

    def _register(self, exchange: Exchange) -> None:
        """Register an exchange for later replies; abandon it if the session has ended meanwhile."""
        if self.closed:
            exchange.abandon()
            return
        for ident in exchange.request_ids:
            if ident not in exchange.cancelled_ids:
                self._exchanges.setdefault(ident, exchange)  # the receiver has refused an id that is in use

    def has_request(self, ident: RequestId) -> bool:
        """Return whether a request is in progress."""
        return ident in self._exchanges

    def forget_request(self, ident: RequestId, exchange: Exchange) -> None:
        """Expect no reply to a request any more."""
        if self._exchanges.get(ident) is exchange:
            del self._exchanges[ident]

    def pause(self) -> None:
        """Do nothing: each POST waits for its own reply, so a client cannot run far ahead."""

    def resume(self) -> None:
        """Do nothing, like `pause`."""

    # --- outgoing -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:
        """Send a message to the exchange that it answers, to the stream of the request that it is about, or to the
        standalone stream."""
        if self.closed:
            return None
        if type(message) is Encoded:  # for many sessions
            frame = message.frame
        else:
            frame, current = to_json(message), self._current_exchange
            if type(message) is Response and current is not None and message.id in current.request_ids:  # most messages
                current.finish(frame, failed=False)
                return len(frame)
            if isinstance(message, Response | ErrorResponse):
                self._finish_exchange([message.id], frame, message if isinstance(message, ErrorResponse) else None)
                return len(frame)
            if isinstance(message, Sequence):
                self._finish_exchange([one.id for one in message if isinstance(one, Response | ErrorResponse)], frame)
                return len(frame)
        if about is None or (exchange := self._find_exchange(about)) is None:
            stream = self._streams.get(STANDALONE) or self.ensure_stream(STANDALONE)
        else:
            stream = exchange.open_stream()
        unread = stream.write(frame)
        if unread > self._settings.unsent_limit:
            self.terminate(ChannelClosed(f"the peer left {unread} bytes unread"))
        return len(frame)

    def _find_exchange(self, ident: RequestId) -> Exchange | None:
        """Return the exchange of a request."""
        current = self._current_exchange
        return current if current is not None and ident in current.request_ids else self._exchanges.get(ident)

    def _finish_exchange(self, idents: Sequence[Any], frame: bytes, error: ErrorResponse | None = None) -> None:
        current = self._current_exchange
        if current is not None and any(current.matches_reply_id(ident) for ident in idents):
            exchange: Exchange | None = current
        else:
            exchange = next((self._exchanges[ident] for ident in idents if ident in self._exchanges), None)
        if exchange is None:
            return  # no exchange waits for it any more
        for one in exchange.request_ids:
            if self._exchanges.get(one) is exchange:
                del self._exchanges[one]
        exchange.missing_scopes = None if error is None else missing_scopes(error)
        exchange.finish(frame, failed=error is not None)

    # --- streams -------------------------------------------------------------------------------

    def ensure_stream(self, number: int) -> Stream:
        """Return the stream of a number, creating it if necessary."""
        stream = self._streams.get(number)
        if stream is None:
            if self._events is None:
                self._events = MemoryEventStore(self._settings.replay_events, self._settings.replay_bytes)
            stream = self._streams[number] = Stream(number, self._events)
            if self._moved:
                stream.mark_moved()
        return stream

    def find_stream(self, number: int) -> Stream | None:
        """Return the stream of a number if it exists; the standalone stream always does."""
        return self.ensure_stream(STANDALONE) if number == STANDALONE else self._streams.get(number)

    def restore_streams(self, streams: Sequence[int], newest_stream: int, delivered: int) -> None:
        """Restore the streams of an earlier process: the ended ones, and the standalone stream."""
        self.ensure_stream(STANDALONE).last_read = delivered
        for number in streams:
            self.ensure_stream(number).end()
        self._stream_numbers = count(newest_stream + 1)

    def _wake_reader(self, number: int) -> None:
        if (stream := self._streams.get(number)) is not None:
            stream.wake_reader()

    def new_stream(self, requests: Sequence[RequestId]) -> Stream:
        """Create a stream. Forget the oldest ended streams if there are too many, or if they hold too many bytes."""
        if self._stream_numbers is None:
            self._stream_numbers = count(1)
        self._evict_streams()
        stream = self.ensure_stream(next(self._stream_numbers))
        if self._events is not None:
            self._events.begin(stream.number, requests)
        return stream

    def _evict_streams(self) -> None:
        """Forget the streams that ended first while the session exceeds its limits on replay."""
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
        """Detach the reader of the standalone stream; the client reconnects later."""
        standalone = self._streams.get(STANDALONE)
        if standalone is not None and standalone.attached:
            standalone.detach()

    def forget_stream(self, number: int) -> None:
        """Forget a stream that no client will resume."""
        self._streams.pop(number, None)
        if self._events is not None:
            self._events.drop(number)

    # --- closing -------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Wait while a stream is read too slowly."""
        for stream in list(self._streams.values()):
            await self.wait_drained(stream)

    async def wait_drained(self, stream: Stream | None) -> None:
        """Wait while a stream is read too slowly."""
        if stream is not None:
            await stream.wait_drained(self._settings.unsent_high)

    async def close(self) -> None:
        """End the session and its streams in this process. A durable session continues later, or in another process."""
        self._moved = self._info.session is not None
        self.terminate(ChannelClosed("closed"))

    def terminate(self, closed: ChannelClosed) -> None:
        """End the session with a reason, and abandon its exchanges."""
        if self.closed:
            return
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.closed(closed)  # answers requests in progress, so the channel closes afterwards
        self.closed = True
        for stream in self._streams.values():
            stream.end()
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.abandon()

    def mark_moved(self) -> None:
        """End the channel because another process continues the session; clients resume their streams there."""
        if not self.closed:
            self._moved = True
            for stream in self._streams.values():
                stream.mark_moved()
            self.terminate(ChannelClosed("session_moved"))


def missing_scopes(error: ErrorResponse) -> Sequence[str] | None:
    """Return the scopes that a request lacked; None if the error is another one."""
    data: Any = error.error.data
    if not isinstance(data, dict) or (details := cast("dict[str, Any]", data)).get("kind") != InsufficientScope.kind:
        return None
    return details.get("scopes") or ()
