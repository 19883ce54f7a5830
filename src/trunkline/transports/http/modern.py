"""Streamable HTTP of the modern era (2026-07-28): each POST is self-contained.

All requests share one channel. Clients choose request ids independently, so the channel gives each request an internal
id while it is in progress. A client that disconnects cancels its request.
"""

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, Final, cast

from trunkline.config import Settings
from trunkline.errors import UnsupportedVersion
from trunkline.protocol.custom_methods import is_custom
from trunkline.protocol.envelope import Envelope, InvalidEnvelope
from trunkline.protocol.known_request import KnownRequest
from trunkline.protocol.types import CancelledParams
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, Receiver
from trunkline.transports.http.request import Handling, HttpRequest
from trunkline.transports.http.respond import Responder, refuse_malformed, respond_json
from trunkline.transports.http.session.channel import Exchange, missing_scopes
from trunkline.transports.http.session.event_store import MemoryEventStore
from trunkline.transports.http.session.streams import Stream
from trunkline.transports.listener_limits import ListenerGuard
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

__all__ = ["ModernChannel", "ModernEndpoint"]

_STATUS_BY_CODE: Final = {-32700: 400, -32600: 400, -32601: 404, -32020: 400, -32021: 400, UnsupportedVersion.code: 400}


class ModernChannel:
    """Channel that all self-contained requests share."""

    def __init__(self, settings: Settings) -> None:
        self._info = ChannelInfo("http", stateless=True)
        self._settings = settings
        self._receiver: Receiver | None = None
        self._internal_ids = count(1)
        self.exchanges: dict[RequestId, Exchange] = {}  # of the requests in progress, by their internal ids
        self.closed = False  # whether the channel has ended

    @property
    def info(self) -> ChannelInfo:
        """Description of the channel: shared by unrelated peers."""
        return self._info

    @property
    def resumable(self) -> bool:
        """False: a client cannot resume the stream of a self-contained request."""
        return False

    def open(self, receiver: Receiver) -> None:
        """Set the receiver of incoming messages."""
        self._receiver = receiver

    # --- incoming ------------------------------------------------------------------------------------

    def begin_exchange(self, message: Request, request: HttpRequest, envelope: Envelope | None = None) -> Exchange:
        """Pass a message up under an internal id; return its exchange, which may be decided already. `envelope` is that
        of a known request."""
        ident, head = message.id, request.head
        exchange = Exchange(self, (ident,))
        message.id = exchange.internal_id = number = next(self._internal_ids)
        routing = head.routing_headers or head.read_routing_headers()
        self.exchanges[number] = exchange
        if self._receiver is not None:
            origin = MessageOrigin(request.principal, head.view, exchange, ident, request, routing, envelope)
            self._receiver.received([message], origin)
        return exchange

    def deliver_notification(self, message: Notification, request: HttpRequest) -> None:
        """Pass a notification up."""
        if self._receiver is not None:
            head = request.head
            routing = head.routing_headers or head.read_routing_headers()
            origin = MessageOrigin(request.principal, head.view, routing_headers=routing)
            self._receiver.received([message], origin)

    def cancel_exchange(self, exchange: Exchange) -> None:
        """Cancel an exchange whose client no longer waits; do nothing if it is answered."""
        if exchange.response is None and self._receiver is not None:
            params: Any = codec.to_raw(
                CancelledParams(request_id=exchange.internal_id, reason="the client disconnected")
            )
            self.exchanges.pop(exchange.internal_id, None)
            self._receiver.received([Notification("notifications/cancelled", params)], MessageOrigin())

    def forget_request(self, ident: RequestId, exchange: Exchange) -> None:  # noqa: ARG002 - each has one request
        """Expect no reply to a request any more."""
        self.exchanges.pop(exchange.internal_id, None)

    def pause(self) -> None:
        """Do nothing: each POST waits for its own reply."""

    def resume(self) -> None:
        """Do nothing, like `pause`."""

    # --- outgoing -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:
        """Send a reply, or a message about a request in progress. A message about no request is dropped: there is no
        stream for it."""
        if type(message) is Response:
            ident = message.id
            exchange = self.exchanges.get(ident)
            if exchange is not None:
                message.id = exchange.request_ids[0]
                frame = codec.to_json(message)  # may raise: an error follows then
                del self.exchanges[ident]
                exchange.finish(frame, failed=False)
                return len(frame)
        elif isinstance(message, ErrorResponse):
            exchange = self.exchanges.pop(cast("RequestId", message.id), None)
            if exchange is not None:
                exchange.status = _http_status(message)
                exchange.missing_scopes = missing_scopes(message)
                frame = codec.encode(ErrorResponse(exchange.request_ids[0], message.error))
                exchange.finish(frame, failed=False)
                return len(frame)
        elif about is not None and (exchange := self.exchanges.get(about)) is not None:
            exchange.send_event(codec.encode(cast("Any", message)))
            stream = exchange.stream
            if stream is not None and stream.unread_bytes > self._settings.unsent_limit:
                stream.end()
                self.cancel_exchange(exchange)
        return None

    def new_stream(self, requests: Sequence[RequestId]) -> Stream:  # noqa: ARG002 - the protocol's
        """Return an event stream for one reply. It has no event ids and keeps nothing for replay."""
        return Stream(0, MemoryEventStore(0, 0), has_event_ids=False)

    async def drain(self) -> None:
        """Wait while a peer reads too slowly."""
        for exchange in list(self.exchanges.values()):
            await exchange.drain()

    async def wait_drained(self, stream: Stream | None) -> None:
        """Wait while a stream is read too slowly."""
        if stream is not None:
            await stream.wait_drained(self._settings.unsent_high)

    # --- closing -------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the channel and all its exchanges."""
        self.terminate(ChannelClosed("closed"))

    def terminate(self, closed: ChannelClosed) -> None:
        """End the channel with a reason, and abandon its exchanges."""
        if self.closed:
            return
        self.closed = True
        if self._receiver is not None:
            self._receiver.closed(closed)  # answers the requests in progress
        exchanges, self.exchanges = self.exchanges, {}
        for exchange in exchanges.values():
            if exchange.stream is not None:
                exchange.stream.end()
            exchange.abandon()


def _http_status(message: ErrorResponse) -> int:
    """Return the HTTP status of an error: the specification's where it names one, otherwise 200."""
    data: Any = message.error.data
    if isinstance(data, dict) and cast("dict[str, Any]", data).get("kind") == InvalidEnvelope.kind:
        return 400
    return _STATUS_BY_CODE.get(message.error.code, 200)


class ModernEndpoint:
    """POST handler of self-contained requests."""

    def __init__(self, guard: ListenerGuard) -> None:
        self._guard = guard
        self._limit = guard.settings.max_connections
        self._responder = Responder(guard)
        self._channel: ModernChannel | None = None

    def handle_body(self, request: HttpRequest, body: bytes) -> Handling:
        """Answer a POST whose version header names a revision of the modern era."""
        head = request.head
        known = head.known_request
        if known is not None and (message := known.match(body)) is not None:
            return self._handle_request(request, message, known.envelope)
        decoded = codec.decode_strict(body)
        if head.routing_headers is not None and head.lessons and type(decoded) is Request:
            head.lessons -= 1
            head.known_request = KnownRequest.learn(body, decoded, head.routing_headers)
        return self.handle(request, decoded)

    def handle(self, request: HttpRequest, message: Incoming) -> Handling:
        """Answer one posted message."""
        if type(message) is Request:
            return self._handle_request(request, message)
        if isinstance(message, Notification):
            # Those of the specification are ignored: a client cancels its own request by disconnecting.
            if is_custom(message.method) and not self._guard.closing:
                self._open_channel().deliver_notification(message, request)
            request.respond(202)
        elif isinstance(message, Malformed):
            refuse_malformed(request, message)
        else:
            request.refuse(400, "post one request or notification at a time")
        return None

    def _refuse(self, request: HttpRequest, message: Request, reason: str) -> None:
        retry = (b"retry-after", b"1")
        request.refuse(503, reason, retry, kind="temporarily_unavailable", request_id=message.id)

    def _handle_request(self, request: HttpRequest, message: Request, envelope: Envelope | None = None) -> Handling:
        if self._guard.closing:
            return self._refuse(request, message, "the server is about to stop")
        channel = self._channel
        if channel is None or channel.closed:
            channel = self._open_channel()
        if len(channel.exchanges) >= self._limit:
            reason = f"{self._limit} requests are in progress, which is the limit (max_connections); try again later"
            return self._refuse(request, message, reason)
        exchange = channel.begin_exchange(message, request, envelope)
        if exchange.response is not None and exchange.stream is None:
            respond_json(request, exchange, exchange.response)  # the common case: the reply came at once
            return None
        if exchange.decided:
            return self._respond(request, channel, exchange)
        request.when_disconnected(partial(self._cancel, channel, exchange))
        request.when_half_closed(exchange.begin_response)
        self._responder.when_decided(exchange, partial(self._respond_later, request, channel, exchange))
        return None

    def _open_channel(self) -> ModernChannel:
        """Return the open channel; open another one if it has ended."""
        channel = self._channel
        if channel is None or channel.closed:
            channel = self._channel = ModernChannel(self._guard.settings)
            channel.open(self._guard.admit_session(channel))
        return channel

    def _respond(self, request: HttpRequest, channel: ModernChannel, exchange: Exchange) -> Handling:
        """Answer a request that is decided."""
        if exchange.stream is not None:
            return self._write_stream(request, channel, exchange)
        return self._responder.respond(request, exchange)

    def _respond_later(self, request: HttpRequest, channel: ModernChannel, exchange: Exchange) -> None:
        request.on_disconnect = None
        if exchange.stream is not None:
            request.run(self._write_stream(request, channel, exchange))
        else:
            self._respond(request, channel, exchange)

    def _cancel(self, channel: ModernChannel, exchange: Exchange) -> None:
        """Cancel a request whose client has disconnected."""
        self._responder.forget(exchange)
        channel.cancel_exchange(exchange)

    async def _write_stream(self, request: HttpRequest, channel: ModernChannel, exchange: Exchange) -> None:
        """Write the event stream of a request. A client that disconnects cancels the request."""
        try:
            await self._responder.write_stream(request, exchange.open_stream())
        finally:
            channel.cancel_exchange(exchange)

    def close(self, reason: str) -> None:
        """Interrupt the requests in progress."""
        if self._channel is not None:
            self._channel.terminate(ChannelClosed(reason))
