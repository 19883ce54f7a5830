"""The modern era, the client's side: every request is posted by itself, and answered there by JSON or by events.

There is no session, no other stream and no way to read on: an answer that breaks off is lost, and the request with it.
Who does not want an answer any more hangs up, which is all that the server hears of it.
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
from trunkline.transports.http.client.response import read_events, read_response
from trunkline.transports.http.client.resumable_stream import decode_events, find_unusable_reason
from trunkline.transports.http.client.status import unusable_answer_error
from trunkline.wire.messages import Incoming
from trunkline.wire.sse import SseDecoder

__all__ = ["ModernHttp"]

_DISCOVER: Final = "server/discover"
_MCP_ERROR_STATUSES: Final = frozenset({400, 404, 405})


class ModernHttp:
    """Posts requests of the modern era."""

    def __init__(self, peer: HttpPeer, above: ChannelCallbacks, settings: Settings) -> None:
        self._peer = peer
        self._channel = above
        self._settings = settings

    async def post(self, letter: PendingPost) -> None:
        """Posts a request, and sees to its answer."""
        await post(self._peer, letter, self._channel, self._handle_reply)

    async def _handle_reply(self, reply: Reply, letter: PendingPost) -> None:
        self._channel.accepted(letter)
        if reply.status < FIRST_FAILURE_STATUS:
            await read_response(reply, letter, self._channel, self._settings, self._read_stream)
        elif reply.status in GATEWAY_ERRORS:
            self._channel.unanswered(letter, f"HTTP {reply.status} {reply.reason}: the answer was lost on the way")
        else:
            # Only some statuses come from who speaks MCP; whether the server does, is what is to be found out.
            heard = letter.method != _DISCOVER or reply.status in _MCP_ERROR_STATUSES
            await self._channel.deliver(
                [await read_refusal(reply, letter.request_id or 0, self._settings, trust_body=heard)]
            )

    async def _read_stream(self, reply: Reply, letter: PendingPost) -> None:
        stream = _ReplyStream(self._settings)
        if await read_events(reply, stream.feed, self._channel, letter.request_id):
            return
        if stream.unusable_reason is None:
            self._channel.unanswered(letter, "the answer broke off, and cannot be read on")
        else:
            await self._channel.deliver([unusable_answer_error(letter.request_id or 0, stream.unusable_reason)])


class _ReplyStream:
    """The events of one answer. They have no positions; a server that tells some is not listened to."""

    def __init__(self, settings: Settings) -> None:
        self.unusable_reason: str | None = None  # why an event was lost that may have been the answer
        self._decoder = SseDecoder(settings.sse_event_size_limit)

    def feed(self, data: bytes) -> list[Incoming]:
        messages = decode_events(self._decoder.feed(data))
        self.unusable_reason = find_unusable_reason(messages) or self.unusable_reason
        return messages
