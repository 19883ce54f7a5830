"""HTTP+SSE of 2024-11-05, client side: one event stream for everything the server sends, and an endpoint to post to.

The first event of the stream names the endpoint. The channel closes when the stream ends.
"""

import asyncio
from typing import Final

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.http.client.credentials import OnAuthorizing
from trunkline.transports.http.client.http_backend import Reply, media_type_of, read_body
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.outbox import PendingPost
from trunkline.transports.http.client.post import (
    FIRST_FAILURE_STATUS,
    NOT_FOUND,
    OK,
    ChannelCallbacks,
    read_refusal,
    send_post,
)
from trunkline.transports.http.client.resumable_stream import decode_events
from trunkline.transports.http.client.url import HttpUrl
from trunkline.wire.framing import TooLarge
from trunkline.wire.media_types import EVENT_STREAM
from trunkline.wire.sse import SseDecoder, SseEvent

__all__ = ["HttpSse", "NoStream"]


class NoStream(TransportError):
    """The server answered with a status other than 200, or without an event stream."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status} {reason}, and no stream of events")
        self.status = status


class HttpSse:
    """The event stream and the endpoint of one connection."""

    transport: Final = "sse"

    def __init__(self, peer: HttpPeer, channel: ChannelCallbacks, settings: Settings) -> None:
        self._peer = peer
        self._channel = channel
        self._settings = settings
        self._decoder = SseDecoder(settings.sse_event_size_limit)
        self._stream: Reply | None = None
        self._endpoint: HttpUrl | None = None
        self._early_events: list[SseEvent | TooLarge] = []  # events that arrived with the endpoint

    async def open(self, on_authorizing: OnAuthorizing) -> None:
        """Open the stream and wait for its first event. Raise `TransportError` if that fails. The timeout stops
        while authorization is in progress."""
        limit, loop = self._settings.connect_timeout, asyncio.get_running_loop()

        def pause_timeout(begun: bool) -> None:
            on_authorizing(begun)
            timeout.reschedule(None if begun or limit is None else loop.time() + limit)

        try:
            async with asyncio.timeout(limit) as timeout:
                await self._open(pause_timeout)
        except TimeoutError:
            self.close()
            raise TransportError(f"no stream that names an endpoint within {limit:g} s") from None
        except BaseException:
            self.close()
            raise

    async def _open(self, on_authorizing: OnAuthorizing) -> None:
        reply = self._stream = await self._peer.send("GET", accept=EVENT_STREAM, on_authorizing=on_authorizing)
        if reply.status != OK or media_type_of(reply) != EVENT_STREAM:
            raise NoStream(reply.status, reply.reason)
        async for data in reply.chunks():
            if events := self._decoder.feed(data):
                first, *self._early_events = events
                if isinstance(first, TooLarge) or first.kind != "endpoint":
                    raise TransportError("the stream does not begin with an endpoint")
                self._endpoint = self._peer.endpoint.resolve(first.data.decode("utf-8", "replace"))
                return
        raise TransportError("the stream ended before it had named an endpoint")

    async def listen(self) -> None:
        """Read the stream until the server ends it."""
        reason = "the server ended the stream"
        try:
            await self._deliver(self._early_events)
            if self._stream is not None:
                async for data in self._stream.chunks():
                    await self._deliver(self._decoder.feed(data))
        except TransportError as error:
            reason = str(error)
        finally:
            self.close()
        self._channel.lose(reason)

    async def _deliver(self, events: list[SseEvent | TooLarge]) -> None:
        if messages := decode_events(events):
            await self._channel.deliver(messages)

    async def post(self, pending: PendingPost) -> None:
        """Post a message; its response arrives on the stream."""
        reply = await send_post(self._peer, pending, self._channel, self._endpoint)
        if reply is None:
            return
        try:
            if reply.status == NOT_FOUND:
                self._channel.lose("the server does not know the session any more", pending)
            elif reply.status < FIRST_FAILURE_STATUS:
                self._channel.accepted(pending)
                await read_body(reply, self._settings.http_body_size_limit)
            elif pending.request_id is not None:
                await self._channel.deliver([await read_refusal(reply, pending.request_id, self._settings)])
        except TransportError as error:
            if not pending.accepted:
                self._channel.unanswered(pending, str(error))
        finally:
            reply.close()

    def parse_complete_answer(self, reply: Reply, pending: PendingPost) -> None:
        """Return None: the response to a request arrives on the stream."""

    async def end_session(self) -> None:
        """Do nothing: the session ends with its stream."""

    def close(self) -> None:
        """Close the stream."""
        if self._stream is not None:
            self._stream.close()
