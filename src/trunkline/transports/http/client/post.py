"""Posting one message: what every kind of server that we post to has in common."""

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
FIRST_FAILURE_STATUS: Final = 300  # and every status from there on
GATEWAY_ERRORS: Final = frozenset({502, 504})  # a proxy says so, and nobody knows what the server has done


class ChannelCallbacks(Protocol):
    """The channel, to those who do its work."""

    async def deliver(self, messages: Sequence[Incoming]) -> None:
        """Takes messages, once they are wanted."""
        ...

    def accepted(self, letter: PendingPost) -> None:
        """A letter has arrived."""
        ...

    def unanswered(self, letter: PendingPost, why: str) -> None:
        """A letter that may have arrived will not be answered."""
        ...

    def authorizing(self, letter: PendingPost, begun: bool) -> None:
        """Before a letter can be answered it has to be settled who we are; and when that is over."""
        ...

    def authorization_failed(self, letter: PendingPost, error: AuthorizationFailed) -> None:
        """A letter was not taken, since that could not be settled."""
        ...

    def lose(self, why: str, letter: PendingPost | None = None) -> None:
        """The server or the session is gone; a letter has not arrived for that reason."""
        ...

    async def fall_back(self, letter: PendingPost, refused: ErrorResponse) -> None:
        """The server does not take initialize here."""
        ...

    def listen(self) -> None:
        """The conversation has begun."""
        ...


async def send_post(
    peer: HttpPeer, letter: PendingPost, above: ChannelCallbacks, to: HttpUrl | None = None
) -> Reply | None:
    """Posts a message and gives the head of the answer; None if there is none, which has been told above. Raises
    `TransportError` for what wants no answer, and may have arrived or not."""
    try:
        asking = partial(above.authorizing, letter)
        return await peer.send(
            "POST", body=letter.body, url=to, modern_headers=letter.modern_headers, on_authorizing=asking
        )
    except RequestNotSent as error:
        above.lose(f"cannot reach {peer.endpoint.name}: {error}", letter)
    except RedirectRefused as error:
        if letter.request_id is not None:
            await above.deliver([http_error(letter.request_id, str(error))])
    except AuthorizationFailed as error:
        above.authorization_failed(letter, error)
    except TransportError as error:
        if letter.request_id is None:
            raise
        above.unanswered(letter, str(error))
    return None


async def post(
    peer: HttpPeer, letter: PendingPost, above: ChannelCallbacks, take: Callable[[Reply, PendingPost], Awaitable[None]]
) -> None:
    """Posts a message, and has its answer taken; what breaks off meanwhile is told above. Raises `TransportError` for
    what wants no answer, and may have arrived or not."""
    reply = await send_post(peer, letter, above)
    if reply is None:
        return
    try:
        await take(reply, letter)
    except TransportError as error:
        if letter.request_id is None:
            raise
        above.unanswered(letter, str(error))
    finally:
        reply.close()


async def read_refusal(
    reply: Reply, request: RequestId, settings: Settings, *, trust_body: bool = True
) -> ErrorResponse:
    """The answer to a request that was refused; what the body says counts if it is `heard`. Raises `TransportError` if
    the body cannot be had."""
    body = await read_body(reply, settings.http_body_size_limit)
    return error_from_status(request, reply.status, reply.reason, media_type_of(reply) if trust_body else "", body)
