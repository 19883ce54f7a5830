"""Posting one message: what every kind of server that we post to has in common."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, TransportError
from trunkline.transports.http.client.http_backend import NotReached, Reply, body_of, kind_of
from trunkline.transports.http.client.http_peer import Peer
from trunkline.transports.http.client.outbox import Letter
from trunkline.transports.http.client.status import failed, refusal
from trunkline.transports.http.client.url import Misled, Place
from trunkline.wire.messages import ErrorResponse, Incoming, RequestId

__all__ = ["FAILED", "LOST_ON_THE_WAY", "NOT_FOUND", "OK", "Above", "post", "posted", "refused"]

OK: Final = 200
NOT_FOUND: Final = 404
FAILED: Final = 300  # and every status from there on
LOST_ON_THE_WAY: Final = frozenset({502, 504})  # a proxy says so, and nobody knows what the server has done


class Above(Protocol):
    """The channel, to those who do its work."""

    async def hand_up(self, messages: Sequence[Incoming]) -> None:
        """Takes messages, once they are wanted."""
        ...

    def taken(self, letter: Letter) -> None:
        """A letter has arrived."""
        ...

    def unanswered(self, letter: Letter, why: str) -> None:
        """A letter that may have arrived will not be answered."""
        ...

    def asking(self, letter: Letter, begun: bool) -> None:
        """Before a letter can be answered it has to be settled who we are; and when that is over."""
        ...

    def turned_away(self, letter: Letter, error: AuthorizationFailed) -> None:
        """A letter was not taken, since that could not be settled."""
        ...

    def lose(self, why: str, letter: Letter | None = None) -> None:
        """The server or the session is gone; a letter has not arrived for that reason."""
        ...

    async def fall_back(self, letter: Letter, refused: ErrorResponse) -> None:
        """The server does not take initialize here."""
        ...

    def listen(self) -> None:
        """The conversation has begun."""
        ...


async def posted(peer: Peer, letter: Letter, above: Above, to: Place | None = None) -> Reply | None:
    """Posts a message and gives the head of the answer; None if there is none, which has been told above. Raises
    `TransportError` for what wants no answer, and may have arrived or not."""
    try:
        asking = partial(above.asking, letter)
        return await peer.send("POST", body=letter.body, to=to, label=letter.label, asking=asking)
    except NotReached as error:
        above.lose(f"cannot reach {peer.place.name}: {error}", letter)
    except Misled as error:
        if letter.request is not None:
            await above.hand_up([failed(letter.request, str(error))])
    except AuthorizationFailed as error:
        above.turned_away(letter, error)
    except TransportError as error:
        if letter.request is None:
            raise
        above.unanswered(letter, str(error))
    return None


async def post(peer: Peer, letter: Letter, above: Above, take: Callable[[Reply, Letter], Awaitable[None]]) -> None:
    """Posts a message, and has its answer taken; what breaks off meanwhile is told above. Raises `TransportError` for
    what wants no answer, and may have arrived or not."""
    reply = await posted(peer, letter, above)
    if reply is None:
        return
    try:
        await take(reply, letter)
    except TransportError as error:
        if letter.request is None:
            raise
        above.unanswered(letter, str(error))
    finally:
        reply.close()


async def refused(reply: Reply, request: RequestId, settings: Settings, *, heard: bool = True) -> ErrorResponse:
    """The answer to a request that was refused; what the body says counts if it is `heard`. Raises `TransportError` if
    the body cannot be had."""
    body = await body_of(reply, settings.http_body_size_limit)
    return refusal(request, reply.status, reply.reason, kind_of(reply) if heard else "", body)
