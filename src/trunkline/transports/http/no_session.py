"""Streamable HTTP of the handshake era without sessions: any process can answer any request.

The server keeps no state between requests. Features that need a session are unavailable: requests to the client,
subscriptions, and the standalone stream.
"""

from typing import Final

from trunkline.protocol.revisions import Revision
from trunkline.transports.channel import ChannelClosed
from trunkline.transports.http.request import VERSION_HEADER, Handling, HttpRequest
from trunkline.transports.http.respond import Responder, check_version, refuse_malformed
from trunkline.transports.http.session.channel import Exchange, HttpChannel
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire.messages import Incoming, Malformed, Request

__all__ = ["NoSessionEndpoint"]

_METHODS: Final = b"POST, OPTIONS"
_DEFAULT_VERSION: Final = Revision.V2025_03_26.value.encode()  # the revision of clients that do not send the header


class NoSessionEndpoint:
    """POST handler that opens a channel for each request and closes it with the reply."""

    def __init__(self, guard: ListenerGuard) -> None:
        self._guard = guard
        self._settings = guard.settings
        self._responder = Responder(guard)
        self._channels: dict[HttpChannel, None] = {}

    def handle(self, request: HttpRequest) -> None:
        """Refuse every method but POST: there are no streams and no sessions."""
        request.refuse_method(_METHODS)

    def handle_post(self, request: HttpRequest, message: Incoming, body: bytes) -> Handling:  # noqa: ARG002
        """Answer a posted message. `body` is unused: no other process could answer it better."""
        if not check_version(request, message):
            return None
        if isinstance(message, Malformed):
            refuse_malformed(request, message)
        elif len(self._channels) >= self._settings.max_sessions or self._guard.closing:
            limit = f"{self._settings.max_sessions} requests are in progress, which is the limit (max_sessions)"
            request.refuse(503, f"{limit}; try again later", (b"retry-after", b"1"), kind="too_many_sessions")
        else:
            is_initialize = isinstance(message, Request) and message.method == "initialize"
            channel = self._open_channel(
                request, None if is_initialize else request.headers.get(VERSION_HEADER, _DEFAULT_VERSION).decode()
            )
            exchange = channel.begin_exchange(message, request.principal, request.head.view, request)
            if exchange.request_ids and exchange.response is None:
                exchange.on_finished = lambda: self._end_channel(channel)
            else:
                self._end_channel(channel)
            if not exchange.request_ids or exchange.decided:
                return self._responder.respond(request, exchange)
            self._responder.when_decided(exchange, lambda: self._respond_later(request, exchange))
        return None

    def _respond_later(self, request: HttpRequest, exchange: Exchange) -> None:
        if exchange.stream is not None:
            request.run(self._responder.write_stream(request, exchange.stream))
        else:
            self._responder.respond(request, exchange)

    def _open_channel(self, request: HttpRequest, revision: str | None) -> HttpChannel:
        channel = HttpChannel(request.peer, self._settings, revision=revision)
        channel.open(self._guard.admit_session(channel))
        self._channels[channel] = None
        return channel

    def _end_channel(self, channel: HttpChannel) -> None:
        self._channels.pop(channel, None)
        channel.terminate(ChannelClosed("the request was answered"))

    def close_idle_streams(self) -> None:
        """Do nothing: every stream here answers a request."""

    def close(self, reason: str) -> None:
        """Interrupt the requests in progress."""
        for channel in list(self._channels):
            self._channels.pop(channel)
            channel.terminate(ChannelClosed(reason))
