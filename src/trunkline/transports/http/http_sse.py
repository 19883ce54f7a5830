"""HTTP+SSE of revision 2024-11-05: one event stream from the server, and a URL that the client posts to.

The first event names that URL. It contains an unguessable token and works only for the principal that opened the
stream.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import parse_qs

from trunkline.config import Settings
from trunkline.errors import Interrupted
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, Receiver
from trunkline.transports.http.body import BodyReader
from trunkline.transports.http.forwarding.inbound import ForwardedRequest
from trunkline.transports.http.forwarding.outbound import Forwarder, ForwardOutcome
from trunkline.transports.http.request import Handling, HttpRequest
from trunkline.transports.http.session.lookup import HOLDER_LOST
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire import codec, sse
from trunkline.wire.messages import Batch, Encoded, ErrorResponse, Incoming, Message, Request, RequestId, Response

__all__ = ["HttpSseChannel", "HttpSseEndpoint"]


class HttpSseChannel:
    """Channel of one event stream and the messages posted for it."""

    def __init__(self, peer: str, settings: Settings) -> None:
        self._info = ChannelInfo("sse", peer)
        self._settings = settings
        self._receiver: Receiver | None = None
        self._unsent_events: deque[bytes] = deque()
        self._unsent_bytes = 0  # queued, or being written
        self._drain_waiter: asyncio.Future[None] | None = None  # done when fewer bytes are unsent
        self._wake = asyncio.Event()
        self._pending_requests: set[RequestId] = set()  # ids of requests in progress
        self._closing = False  # the channel ends once no request is in progress
        self._closed = False

    @property
    def info(self) -> ChannelInfo:
        """Description of the channel."""
        return self._info

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._closed

    def open(self, receiver: Receiver) -> None:
        """Set the receiver of incoming messages."""
        self._receiver = receiver

    def receive(self, message: Incoming, origin: MessageOrigin) -> None:
        """Pass a posted message up, and note the requests in it."""
        if self._receiver is not None and not self._closed:
            self._pending_requests.update(part.id for part in _split_batch(message) if isinstance(part, Request))
            self._receiver.received([message], origin)

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:  # noqa: ARG002
        """Queue a message for the stream. The channel ends if more than `unsent_limit` bytes are unsent."""
        if self._closed:
            return None
        frame = codec.encode(cast("Any", message))
        event = sse.encode_message(frame)
        self._unsent_bytes += len(event)
        if self._unsent_bytes > self._settings.unsent_limit:
            self.terminate(ChannelClosed(f"the peer left {self._unsent_bytes} bytes unread"))
            return None
        self._unsent_events.append(event)
        self._wake.set()
        self._pending_requests.difference_update(
            part.id for part in _split_batch(message) if isinstance(part, Response | ErrorResponse)
        )
        if self._closing:
            self.close_when_idle()
        return len(frame)

    def pause(self) -> None:
        """Do nothing: each POST is read by itself."""

    def resume(self) -> None:
        """Do nothing, like `pause`."""

    async def drain(self) -> None:
        """Wait while more than `unsent_high` bytes are unsent."""
        while self._unsent_bytes > self._settings.unsent_high and not self._closed:
            if self._drain_waiter is None:
                self._drain_waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drain_waiter)

    def _wake_drain(self) -> None:
        """Wake the handlers that wait in `drain`."""
        waiter, self._drain_waiter = self._drain_waiter, None
        if waiter is not None:
            waiter.set_result(None)

    async def close(self) -> None:
        """End the stream after the queued events were written."""
        self.terminate(ChannelClosed("closed"))

    def close_when_idle(self) -> None:
        """End the stream once no request on it is in progress."""
        self._closing = True
        if not self._pending_requests:
            self.terminate(ChannelClosed("the server is about to stop"))

    def give_up(self, ident: RequestId) -> None:
        """Expect no reply to a cancelled request."""
        self._pending_requests.discard(ident)
        if self._closing:
            self.close_when_idle()

    def close_stream(self) -> None:
        """Do nothing: the stream is the connection, and a client cannot resume it."""

    def terminate(self, closed: ChannelClosed) -> None:
        """End the channel with a reason."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.closed(closed)  # answers requests in progress, so the channel closes afterwards
        self._closed = True
        self._wake.set()
        self._wake_drain()

    async def write_stream(self, request: HttpRequest) -> None:
        """Write queued events until the channel ends or the client disconnects."""
        request.when_disconnected(self._wake.set)
        try:
            while not request.disconnected:
                if self._unsent_events:
                    data = b"".join(self._unsent_events)
                    self._unsent_events.clear()
                    await request.write(data)
                    self._unsent_bytes -= len(data)
                    self._wake_drain()
                elif self._closed:
                    await request.end_stream()
                    return
                else:
                    await self._wait_for_event(request)
        finally:
            request.on_disconnect = None
            self.terminate(ChannelClosed("the peer closed the stream"))

    async def _wait_for_event(self, request: HttpRequest) -> None:
        """Wait for an event; write a comment if there is none for a while."""
        self._wake.clear()
        try:
            async with asyncio.timeout(self._settings.stream_keepalive):
                await self._wake.wait()
        except TimeoutError:
            await request.write(sse.COMMENT)


def _split_batch(message: Incoming | Encoded | Sequence[Message]) -> Sequence[Any]:
    """Return the messages in what was received or is sent."""
    if isinstance(message, Batch):
        return message.messages
    return message if isinstance(message, Sequence) else (message,)


class HttpSseEndpoint:
    """Two routes: GET opens a stream, POST delivers a message to one."""

    def __init__(self, guard: ListenerGuard, messages_path: str, forwarder: Forwarder | None = None) -> None:
        """Without a forwarder, streams of other processes are unknown here."""
        self._guard = guard
        self._settings = guard.settings
        self._body_reader = BodyReader(guard.settings, guard.clock)
        self._forwarder = forwarder
        self._messages_path = messages_path  # the path that clients post to
        self._channels: dict[str, tuple[HttpSseChannel, Any]] = {}

    def __len__(self) -> int:
        return len(self._channels)

    async def handle_stream(self, request: HttpRequest) -> None:
        """Open an event stream and write it until it ends."""
        if request.method != "GET":
            request.refuse_method(b"GET, OPTIONS")
            return
        if (busy := self._guard.check_capacity("streams")) is not None:
            request.refuse(503, busy.reason, (b"retry-after", busy.retry_after), kind=busy.kind)
            return
        token = self._new_token()
        channel = HttpSseChannel(request.peer, self._settings)
        channel.open(self._guard.admit(channel, channel.terminate))
        self._channels[token] = (channel, request.principal)
        root = request.prefix + request.root_path
        expired = ChannelClosed("the credentials of the stream have expired")
        expiry = (
            None
            if request.auth_expires_at is None
            else self._guard.clock.call_at(request.auth_expires_at, lambda: channel.terminate(expired))
        )
        try:
            await request.begin_stream()
            await request.write(
                sse.encode_event(f"{root}{self._messages_path}?session_id={token}".encode(), kind="endpoint")
            )
            with self._guard.observe_stream():
                await channel.write_stream(request)
        finally:
            if expiry is not None:
                expiry.cancel()
            del self._channels[token]
            channel.terminate(ChannelClosed("the peer closed the stream"))

    def _new_token(self) -> str:
        """Return an unguessable token, followed by the id of this process if there are several."""
        token = secrets.token_urlsafe(32)
        return token if self._forwarder is None else f"{token}.{self._forwarder.name}"

    def handle_post(self, request: HttpRequest) -> Handling:
        """Deliver a posted message to its stream, here or in another process. Replies go to the stream."""
        if request.method != "POST":
            request.refuse_method(b"POST, OPTIONS")
            return None
        token = parse_qs(request.query.decode("latin-1")).get("session_id", [""])[0]
        channel, owner = self._channels.get(token, (None, None))
        holder = token.rpartition(".")[2]
        if channel is not None and owner == request.principal:
            return self._read_and_deliver(request, channel) if self._body_reader.check_headers(request) else None
        if channel is None and self._forwarder is not None and self._forwarder.has_peer(holder):
            forwarder = self._forwarder
            known = self._body_reader.check_headers(request)
            return self._forward(request, forwarder, holder, token) if known else None
        self._refuse_unknown_session(request)
        return None

    async def _read_and_deliver(self, request: HttpRequest, channel: HttpSseChannel) -> None:
        body = await self._body_reader.read_body(request)
        if body is not None:
            self._deliver(request, channel, body)

    def _deliver(self, request: HttpRequest, channel: HttpSseChannel, body: bytes) -> None:
        message = codec.decode_strict(body)
        request.respond(202)
        channel.receive(message, MessageOrigin(request.principal, request.head.view, channel, request=request))

    def _refuse_unknown_session(self, request: HttpRequest) -> None:
        request.refuse(404, "session not found; open a stream first", kind="session_not_found")

    async def _forward(self, request: HttpRequest, forwarder: Forwarder, holder: str, token: str) -> None:
        body = await self._body_reader.read_body(request)
        if body is None:
            return
        match await forwarder.forward(request, holder, token, body, is_sse_post=True):
            case ForwardOutcome.NOT_HELD:
                self._refuse_unknown_session(request)
            case ForwardOutcome.LOST:
                request.refuse_with_error(500, Interrupted(HOLDER_LOST))
            case ForwardOutcome.ANSWERED:
                pass

    async def handle_forwarded(self, request: ForwardedRequest) -> bool:
        """Deliver a message that another process forwarded; return False if its stream is not here."""
        channel, owner = self._channels.get(request.target_id, (None, None))
        if channel is None or not request.belongs_to(owner):
            return False
        self._deliver(request, channel, request.received_body)
        return True

    def close_idle_streams(self) -> None:
        """End the streams with no request in progress now, and the rest as soon as they have none."""
        for channel, _ in list(self._channels.values()):
            channel.close_when_idle()

    def close_unreachable(self) -> None:
        """End the streams whose token names a former id of this process: their clients reconnect and get a reachable
        one."""
        for token, (channel, _) in list(self._channels.items()):
            if self._forwarder is not None and token.rpartition(".")[2] != self._forwarder.name:
                channel.terminate(ChannelClosed("this process has a new id"))

    def close(self, reason: str) -> None:
        """End every stream."""
        for channel, _ in list(self._channels.values()):
            channel.terminate(ChannelClosed(reason))
        self._body_reader.close()
