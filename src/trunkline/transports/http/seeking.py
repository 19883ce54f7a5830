"""Getting to a session that is not at hand: it is brought here if nobody holds it, or the request is carried to whoever
does. Where a session is held is remembered until it is there no more."""

import asyncio
from typing import Final

from trunkline.errors import StoreError
from trunkline.transports.guard import Guard
from trunkline.transports.http.keeper import Elsewhere
from trunkline.transports.http.relaying import Front, Outcome
from trunkline.transports.http.restoring import STOPPING, Missing, Restoring
from trunkline.transports.http.sessions import HttpSession
from trunkline.transports.http.visits import Visit

__all__ = ["SESSION", "UNKEPT", "Seeking", "refuse_lost"]

SESSION: Final = b"mcp-session-id"
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
            await refuse_lost(visit)
            return True
        return False

    def _remember(self, ident: str, place: Elsewhere) -> None:
        self._places[ident] = place
        if len(self._places) > _MOST_PLACES:
            del self._places[next(iter(self._places))]


async def refuse_lost(visit: Visit) -> None:
    """Tells a client that its request was lost on the way."""
    why = "the process that worked on this request was lost: whether it was done is not known"
    await visit.refuse(502, why, code=-32603, kind="outcome_unknown")
