"""The modern era, the client's side: every request is posted by itself, and answered there by JSON or by events.

There is no session, no other stream and no way to read on: an answer that breaks off is lost, and the request with it.
Who does not want an answer any more hangs up, which is all that the server hears of it.
"""

from typing import Final

from trunkline.config import Settings
from trunkline.transports.http.client.http_backend import Reply
from trunkline.transports.http.client.http_peer import Peer
from trunkline.transports.http.client.outbox import Letter
from trunkline.transports.http.client.post import FAILED, LOST_ON_THE_WAY, Above, post, refused
from trunkline.transports.http.client.response import read_answer, read_events
from trunkline.transports.http.client.resumable_stream import messages_in, why_unusable
from trunkline.transports.http.client.status import unusable
from trunkline.wire.messages import Incoming
from trunkline.wire.sse import EventDecoder

__all__ = ["Stateless"]

_DISCOVER: Final = "server/discover"
_SPEAKS: Final = frozenset({400, 404, 405})


class Stateless:
    """Posts requests of the modern era."""

    def __init__(self, peer: Peer, above: Above, settings: Settings) -> None:
        self._peer = peer
        self._above = above
        self._settings = settings

    async def post(self, letter: Letter) -> None:
        """Posts a request, and sees to its answer."""
        await post(self._peer, letter, self._above, self._take)

    async def _take(self, reply: Reply, letter: Letter) -> None:
        self._above.taken(letter)
        if reply.status < FAILED:
            await read_answer(reply, letter, self._above, self._settings, self._follow)
        elif reply.status in LOST_ON_THE_WAY:
            self._above.unanswered(letter, f"HTTP {reply.status} {reply.reason}: the answer was lost on the way")
        else:
            # Only some statuses come from who speaks MCP; whether the server does, is what is to be found out.
            heard = letter.method != _DISCOVER or reply.status in _SPEAKS
            await self._above.hand_up([await refused(reply, letter.request or 0, self._settings, heard=heard)])

    async def _follow(self, reply: Reply, letter: Letter) -> None:
        stream = _Stream(self._settings)
        if await read_events(reply, stream.feed, self._above, letter.request):
            return
        if stream.unusable is None:
            self._above.unanswered(letter, "the answer broke off, and cannot be read on")
        else:
            await self._above.hand_up([unusable(letter.request or 0, stream.unusable)])


class _Stream:
    """The events of one answer. They have no positions; a server that tells some is not listened to."""

    def __init__(self, settings: Settings) -> None:
        self.unusable: str | None = None  # why an event was lost that may have been the answer
        self._decoder = EventDecoder(settings.sse_event_size_limit)

    def feed(self, data: bytes) -> list[Incoming]:
        messages = messages_in(self._decoder.feed(data))
        self.unusable = why_unusable(messages) or self.unusable
        return messages
