"""Getting to a session that is not at hand: it is brought here if nobody holds it, or the request is carried to whoever
does. Where a session is held is remembered until it is there no more."""

import asyncio
from typing import Final

from trunkline.errors import InternalError, Interrupted, StoreError
from trunkline.transports.http.forwarding.outbound import Front, Outcome
from trunkline.transports.http.request import Visit
from trunkline.transports.http.respond import answer_interrupted
from trunkline.transports.http.session.backend import Elsewhere
from trunkline.transports.http.session.lookup import STOPPING, Missing, Restoring
from trunkline.transports.http.session.sessions import HttpSession
from trunkline.transports.listener_limits import Guard
from trunkline.wire import codec
from trunkline.wire.messages import Batch, Request

__all__ = ["LOST", "SESSION", "UNKEPT", "Seeking"]

SESSION: Final = b"mcp-session-id"
LOST: Final = "the process that worked on this request was lost"
UNKEPT: Final = Missing(
    "what is kept of sessions cannot be reached; try again later", "temporarily_unavailable", 503, b"1"
)
_MOVING: Final = Missing("the session is on its way between processes; try again", "temporarily_unavailable", 503, b"1")
_TRIES: Final = 4
_PAUSE: Final = 0.05  # seconds before the second try; the next ones wait for longer
_MOST_PLACES: Final = 10_000


class Seeking:
    """Finds sessions that are not at hand."""

    def __init__(self, guard: Guard, restoring: Restoring, front: Front | None) -> None:
        """Without a front there are no other processes."""
        self._guard = guard
        self._restoring = restoring
        self._front = front
        self._places: dict[str, Elsewhere] = {}

    async def seek(self, visit: Visit, body: bytes = b"") -> HttpSession | Missing | None:
        """The session that a request names, or why there is none; None if another process has answered the request."""
        ident = visit.headers[SESSION].decode("latin-1")
        for tries in range(_TRIES):
            try:
                found = self._places.get(ident) or await self._restoring.find(ident, visit.principal, visit.peer)
                if isinstance(found, Elsewhere) and not await self._reached(found):
                    self._places.pop(ident, None)
                    continue
            except StoreError:
                return UNKEPT
            if not isinstance(found, Elsewhere) or self._front is None:
                return found if not isinstance(found, Elsewhere) else _MOVING
            if await self._carried(self._front, visit, found, ident, body):
                return None
            if self._guard.closing:
                return STOPPING
            await asyncio.sleep(_PAUSE * tries)
        return _MOVING

    async def _reached(self, place: Elsewhere) -> bool:
        """Whether who holds a session can be asked; if it is gone, somebody else will hold it."""
        return self._front is None or await self._front.reaches(place.process)

    async def _carried(self, front: Front, visit: Visit, place: Elsewhere, ident: str, body: bytes) -> bool:
        """Whether the request was answered by who holds the session, as far as anybody knows."""
        if visit.scope["method"] == "GET" and self._guard.closing:
            return False
        self._remember(ident, place)
        outcome = await front.carry(visit, place.process, ident, body)
        if outcome is Outcome.ANSWERED:
            return True
        self._places.pop(ident, None)
        if outcome is Outcome.LOST and visit.scope["method"] == "POST":
            await answer_lost(visit, body)
            return True
        return False

    def _remember(self, ident: str, place: Elsewhere) -> None:
        self._places[ident] = place
        if len(self._places) > _MOST_PLACES:
            del self._places[next(iter(self._places))]


async def answer_lost(visit: Visit, body: bytes) -> None:
    """Answer a POST that another process may have taken, and has not answered. A notification or an answer does no harm
    if it is posted again, which a status of 502 asks for."""
    message = codec.decode(body)
    parts = message.messages if isinstance(message, Batch) else (message,)
    ids = [part.id for part in parts if isinstance(part, Request)]
    if ids:
        await answer_interrupted(visit, ids, LOST, batch=isinstance(message, Batch))
    else:
        await visit.refuse(502, LOST, code=InternalError.code, kind=Interrupted.kind)
