"""Reading what a server answers to a request that was posted: a message of JSON, or events with the answer among
them."""

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
from trunkline.wire.messages import Incoming, RequestId

__all__ = ["read_events", "read_response"]

_LINGER: Final = 1.0  # seconds for a server to end a stream that has brought its answer


async def read_response(
    reply: Reply,
    letter: PendingPost,
    above: ChannelCallbacks,
    settings: Settings,
    follow: Callable[[Reply, PendingPost], Awaitable[None]],
    *,
    batches: bool = False,
) -> None:
    """Hands up the answer to a request. One that comes as events is left to `follow`."""
    request = letter.request_id or 0
    match media_type_of(reply):
        case "text/event-stream":
            await follow(reply, letter)
        case "application/json" if reply.status == OK:
            try:
                body = await read_body(reply, settings.http_body_size_limit)
            except ReplyTooLarge as error:
                await above.deliver([http_error(request, str(error))])
            else:
                await above.deliver([parse_answer(body, request, batches=batches)])
        case "":
            above.unanswered(letter, f"HTTP {reply.status} without an answer")
        case other:
            why = f"the server answers with {other}, neither JSON nor events; is this an MCP endpoint?"
            await above.deliver([http_error(request, why)])


async def read_events(
    reply: Reply, feed: Callable[[bytes], list[Incoming]], above: ChannelCallbacks, request: RequestId | None = None
) -> bool:
    """Hands up what one connection brings; whether the answer to a request was in it. A server that does not end the
    stream then is not waited for."""
    answered = False
    with contextlib.suppress(TransportError, TimeoutError):
        async with asyncio.timeout(None) as patience:
            async for data in reply.chunks():
                messages = feed(data)
                if not messages:
                    continue
                if request is not None and not answered:
                    answered = any(answers_request(message, request) for message in messages)
                    if answered:
                        patience.reschedule(asyncio.get_running_loop().time() + _LINGER)
                await above.deliver(messages)
    return answered
