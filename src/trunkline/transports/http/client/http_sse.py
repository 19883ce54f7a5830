"""HTTP+SSE of 2024-11-05, the client's side: one stream of events with all that the server says, and a place to post to
that is named in the first of them. When the stream ends, so does the conversation."""

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
    """A server answered with a status, and without a stream of events."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status} {reason}, and no stream of events")
        self.status = status


class HttpSse:
    """One stream, and the place to post to."""

    transport: Final = "sse"

    def __init__(self, peer: HttpPeer, above: ChannelCallbacks, settings: Settings) -> None:
        self._peer = peer
        self._channel = above
        self._settings = settings
        self._decoder = SseDecoder(settings.sse_event_size_limit)
        self._stream: Reply | None = None
        self._endpoint: HttpUrl | None = None
        self._early_events: list[SseEvent | TooLarge] = []  # with the endpoint, and not handed up yet

    async def open(self, on_authorizing: OnAuthorizing) -> None:
        """Opens the stream and waits for its first event. Raises `TransportError` if there is none such. The time that
        this may take stands still while it is being settled who we are."""
        limit, loop = self._settings.connect_timeout, asyncio.get_running_loop()

        def ask(begun: bool) -> None:
            on_authorizing(begun)
            waited.reschedule(None if begun or limit is None else loop.time() + limit)

        try:
            async with asyncio.timeout(limit) as waited:
                await self._open(ask)
        except TimeoutError:
            self.close()
            raise TransportError(f"no stream that names an endpoint within {limit:g} s") from None
        except BaseException:
            self.close()
            raise

    async def _open(self, asking: OnAuthorizing) -> None:
        reply = self._stream = await self._peer.send("GET", accept=EVENT_STREAM, on_authorizing=asking)
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
        """Reads what the server says, until it ends the stream."""
        why = "the server ended the stream"
        try:
            await self._deliver(self._early_events)
            if self._stream is not None:
                async for data in self._stream.chunks():
                    await self._deliver(self._decoder.feed(data))
        except TransportError as error:
            why = str(error)
        finally:
            self.close()
        self._channel.lose(why)

    async def _deliver(self, events: list[SseEvent | TooLarge]) -> None:
        if messages := decode_events(events):
            await self._channel.deliver(messages)

    async def post(self, letter: PendingPost) -> None:
        """Posts a message; its answer comes on the stream."""
        reply = await send_post(self._peer, letter, self._channel, self._endpoint)
        if reply is None:
            return
        try:
            if reply.status == NOT_FOUND:
                self._channel.lose("the server does not know the session any more", letter)
            elif reply.status < FIRST_FAILURE_STATUS:
                self._channel.accepted(letter)
                await read_body(reply, self._settings.http_body_size_limit)
            elif letter.request_id is not None:
                await self._channel.deliver([await read_refusal(reply, letter.request_id, self._settings)])
        except TransportError as error:
            if not letter.accepted:
                self._channel.unanswered(letter, str(error))
        finally:
            reply.close()

    async def end_session(self) -> None:
        """There is nothing to be said: the stream ends."""

    def close(self) -> None:
        """Lets go of the stream."""
        if self._stream is not None:
            self._stream.close()
