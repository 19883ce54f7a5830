"""Read the response to a POST: a JSON message, or an event stream that contains it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.http.client.http_backend import Reply, ReplyTooLarge, media_type_of, read_body
from trunkline.transports.http.client.outbox import PendingPost
from trunkline.transports.http.client.post import OK, ChannelCallbacks
from trunkline.transports.http.client.status import answers_request, http_error, parse_answer
from trunkline.wire.media_types import JSON
from trunkline.wire.messages import Incoming, RequestId

__all__ = ["parse_complete_answer", "read_events", "read_response"]

_LINGER: Final = 1.0  # seconds for a server to end a stream after the response


async def read_response(
    reply: Reply,
    pending: PendingPost,
    channel: ChannelCallbacks,
    settings: Settings,
    follow: Callable[[Reply, PendingPost], Awaitable[None]],
    *,
    batches: bool = False,
) -> None:
    """Deliver the response to a request. `follow` reads an event stream."""
    request = pending.request_id or 0
    match media_type_of(reply):
        case "text/event-stream":
            await follow(reply, pending)
        case "application/json" if reply.status == OK:
            try:
                body = await read_body(reply, settings.http_body_size_limit)
            except ReplyTooLarge as error:
                await channel.deliver([http_error(request, str(error))])
            else:
                await channel.deliver([parse_answer(body, request, batches=batches)])
        case "":
            channel.unanswered(pending, f"HTTP {reply.status} without a response")
        case media_type:
            reason = (
                f"the server responded with {media_type}, neither JSON nor an event stream; is this an MCP endpoint?"
            )
            await channel.deliver([http_error(request, reason)])


def parse_complete_answer(
    reply: Reply, pending: PendingPost, settings: Settings, *, batches: bool = False
) -> Incoming | None:
    """Return the response to a request if all of it has arrived, as JSON within the limit; None if `read_response` has
    to handle it."""
    if reply.status != OK or media_type_of(reply) != JSON:
        return None
    body = reply.content
    if body is None or len(body) > settings.http_body_size_limit:
        return None
    return parse_answer(body, pending.request_id or 0, batches=batches)


async def read_events(
    reply: Reply, feed: Callable[[bytes], list[Incoming]], channel: ChannelCallbacks, request: RequestId | None = None
) -> bool:
    """Deliver the messages of one connection; return whether the response was among them. After the response the
    server has `_LINGER` seconds to end the stream."""
    answered = False
    with contextlib.suppress(TransportError, TimeoutError):
        async with asyncio.timeout(None) as timeout:
            async for data in reply.chunks():
                messages = feed(data)
                if not messages:
                    continue
                if request is not None and not answered:
                    answered = any(answers_request(message, request) for message in messages)
                    if answered:
                        timeout.reschedule(asyncio.get_running_loop().time() + _LINGER)
                await channel.deliver(messages)
    return answered
