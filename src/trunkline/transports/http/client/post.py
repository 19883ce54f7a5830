"""Post one message and read its response: the part that all HTTP transports share."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, TransportError
from trunkline.transports.http.client.http_backend import Reply, RequestNotSent, media_type_of, read_body
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.outbox import PendingPost
from trunkline.transports.http.client.status import error_from_status, http_error
from trunkline.transports.http.client.url import HttpUrl, RedirectRefused
from trunkline.wire.messages import ErrorResponse, Incoming, RequestId

__all__ = [
    "FIRST_FAILURE_STATUS",
    "GATEWAY_ERRORS",
    "NOT_FOUND",
    "OK",
    "ChannelCallbacks",
    "post",
    "read_refusal",
    "send_post",
]

OK: Final = 200
NOT_FOUND: Final = 404
FIRST_FAILURE_STATUS: Final = 300  # this status and all above it
GATEWAY_ERRORS: Final = frozenset({502, 504})  # sent by a proxy; whether the server processed the request is unknown


class ChannelCallbacks(Protocol):
    """The channel's interface for its transports."""

    async def deliver(self, messages: Sequence[Incoming]) -> None:
        """Pass messages to the receiver, waiting while it has paused."""
        ...

    def accepted(self, pending: PendingPost) -> None:
        """A POST was accepted."""
        ...

    def unanswered(self, pending: PendingPost, reason: str) -> None:
        """A message that may have arrived will get no response."""
        ...

    def authorizing(self, pending: PendingPost, begun: bool) -> None:
        """Authorization for a message has begun or ended."""
        ...

    def authorization_failed(self, pending: PendingPost, error: AuthorizationFailed) -> None:
        """The server did not accept a message because authorization failed."""
        ...

    def lose(self, reason: str, pending: PendingPost | None = None) -> None:
        """The server or the session is gone; the message, if any, has not arrived."""
        ...

    async def fall_back(self, pending: PendingPost, refused: ErrorResponse) -> None:
        """The server refused `initialize`; try HTTP+SSE."""
        ...

    def listen(self) -> None:
        """The session is initialized; read the server's own stream."""
        ...


async def send_post(
    peer: HttpPeer, pending: PendingPost, channel: ChannelCallbacks, url: HttpUrl | None = None
) -> Reply | None:
    """Post a message and return the response headers; None if it failed and the failure is reported to the channel.
    Raise `TransportError` for a message without a response, which may have arrived or not."""
    outcome, pending.outcome = pending.outcome, None
    try:
        on_authorizing = partial(channel.authorizing, pending)
        return await peer.send(
            "POST",
            body=pending.body,
            url=url,
            modern_headers=pending.modern_headers,
            trace_headers=pending.trace_headers,
            on_authorizing=on_authorizing,
            first_outcome=outcome,
        )
    except RequestNotSent as error:
        channel.lose(f"cannot reach {peer.endpoint.name}: {error}", pending)
    except RedirectRefused as error:
        if pending.request_id is not None:
            await channel.deliver([http_error(pending.request_id, str(error))])
    except AuthorizationFailed as error:
        channel.authorization_failed(pending, error)
    except TransportError as error:
        if pending.request_id is None:
            raise
        channel.unanswered(pending, str(error))
    return None


async def post(
    peer: HttpPeer,
    pending: PendingPost,
    channel: ChannelCallbacks,
    handle_reply: Callable[[Reply, PendingPost], Awaitable[None]],
) -> None:
    """Post a message and handle its response with `handle_reply`; report a broken response to the channel. Raise
    `TransportError` for a message without a response, which may have arrived or not."""
    reply = await send_post(peer, pending, channel)
    if reply is None:
        return
    try:
        await handle_reply(reply, pending)
    except TransportError as error:
        if pending.request_id is None:
            raise
        channel.unanswered(pending, str(error))
    finally:
        reply.close()


async def read_refusal(
    reply: Reply, request: RequestId, settings: Settings, *, trust_body: bool = True
) -> ErrorResponse:
    """Return the error for a request that was refused; ignore the body unless `trust_body`. Raise `TransportError`
    if the body cannot be read."""
    body = await read_body(reply, settings.http_body_size_limit)
    return error_from_status(request, reply.status, reply.reason, media_type_of(reply) if trust_body else "", body)
