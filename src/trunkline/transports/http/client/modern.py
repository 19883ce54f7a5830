"""Modern era, client side: each request is an independent POST, answered with JSON or an event stream.

There is no session and no resumption: if a response breaks off, the request has failed. To cancel a request, the client
closes the response; the server gets no other notice.
"""

from typing import Final

from trunkline.config import Settings
from trunkline.transports.http.client.http_backend import Reply
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.outbox import PendingPost
from trunkline.transports.http.client.post import (
    FIRST_FAILURE_STATUS,
    GATEWAY_ERRORS,
    ChannelCallbacks,
    post,
    read_refusal,
)
from trunkline.transports.http.client.response import parse_complete_answer, read_events, read_response
from trunkline.transports.http.client.resumable_stream import decode_events, find_unusable_reason
from trunkline.transports.http.client.status import unusable_answer_error
from trunkline.wire.messages import Incoming
from trunkline.wire.sse import SseDecoder

__all__ = ["ModernHttp"]

_DISCOVER: Final = "server/discover"
_MCP_ERROR_STATUSES: Final = frozenset({400, 404, 405})


class ModernHttp:
    """Sends requests of the modern era."""

    def __init__(self, peer: HttpPeer, channel: ChannelCallbacks, settings: Settings) -> None:
        self._peer = peer
        self._channel = channel
        self._settings = settings

    async def post(self, pending: PendingPost) -> None:
        """Post a request and read its response."""
        await post(self._peer, pending, self._channel, self._handle_reply)

    def parse_complete_answer(self, reply: Reply, pending: PendingPost) -> Incoming | None:
        """Return the response to a request if it needs no more than to be parsed; None otherwise."""
        return parse_complete_answer(reply, pending, self._settings)

    async def _handle_reply(self, reply: Reply, pending: PendingPost) -> None:
        self._channel.accepted(pending)
        if pending.request_id is None:
            return  # a notification has no response
        if reply.status < FIRST_FAILURE_STATUS:
            await read_response(reply, pending, self._channel, self._settings, self._read_stream)
        elif reply.status in GATEWAY_ERRORS:
            self._channel.unanswered(
                pending, f"HTTP {reply.status} {reply.reason}: the gateway has no response from the server"
            )
        else:
            # The probe asks whether the server implements the modern era; only these statuses come from MCP servers.
            trust_body = pending.method != _DISCOVER or reply.status in _MCP_ERROR_STATUSES
            await self._channel.deliver(
                [await read_refusal(reply, pending.request_id or 0, self._settings, trust_body=trust_body)]
            )

    async def _read_stream(self, reply: Reply, pending: PendingPost) -> None:
        stream = _ReplyStream(self._settings)
        if await read_events(reply, stream.feed, self._channel, pending.request_id):
            return
        if stream.unusable_reason is None:
            self._channel.unanswered(pending, "the response broke off and cannot be resumed")
        else:
            await self._channel.deliver([unusable_answer_error(pending.request_id or 0, stream.unusable_reason)])


class _ReplyStream:
    """The events of one response. Event ids are ignored, since the stream cannot be resumed."""

    def __init__(self, settings: Settings) -> None:
        self.unusable_reason: str | None = None  # why a message that may have been the response is unusable
        self._decoder = SseDecoder(settings.sse_event_size_limit)

    def feed(self, data: bytes) -> list[Incoming]:
        messages = decode_events(self._decoder.feed(data))
        self.unusable_reason = find_unusable_reason(messages) or self.unusable_reason
        return messages
