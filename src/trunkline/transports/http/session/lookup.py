"""Going on with a session that another process has held: a request names it, and it is not here.

However many requests name it at once, it is brought back once. It counts from then on like any other: there have to be
room for it and time left, and it belongs to whoever opened it. One that another process still holds stays there. One
that is here is asked for too, when this process cannot be sure that nobody has taken it.

Getting to a session that is not at hand: it is brought here if nobody holds it, or the request is carried to whoever
does. Where a session is held is remembered until it is there no more.
"""

import asyncio
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import InternalError, Interrupted, StoreError
from trunkline.transports.channel import Closed
from trunkline.transports.http.forwarding.outbound import Front, Outcome
from trunkline.transports.http.request import Visit
from trunkline.transports.http.respond import answer_interrupted
from trunkline.transports.http.session.backend import EXPIRED, Elsewhere, KeptSession, SessionKeeper
from trunkline.transports.http.session.channel import HttpChannel
from trunkline.transports.http.session.sessions import HttpSession, Sessions
from trunkline.transports.listener_limits import STOPPING as TOLD_TO_ALL
from trunkline.transports.listener_limits import Guard
from trunkline.wire import codec
from trunkline.wire.messages import Batch, Request

__all__ = ["LOST", "SESSION", "UNKEPT", "Missing", "Restoring", "Seeking"]


class Missing(Struct, frozen=True):
    """Why there is no session: what the peer is told."""

    why: str
    kind: str
    status: int = 404
    wait: bytes | None = None  # seconds until it is worth another try


NO_SUCH: Final = Missing("there is no such session; initialize again", "session_not_found")
TOO_OLD: Final = Missing("the session was not used for too long; initialize again", "session_expired")
STOPPING: Final = Missing(TOLD_TO_ALL.why, TOLD_TO_ALL.kind, 503, TOLD_TO_ALL.wait)


Found = HttpSession | Missing | Elsewhere


class Restoring:
    """Finds sessions that are not here, or not for certain."""

    def __init__(self, guard: Guard, sessions: Sessions, keeper: SessionKeeper | None) -> None:
        self._guard = guard
        self._sessions = sessions
        self._keeper = keeper
        self._under_way: dict[tuple[str, Any], asyncio.Task[Found]] = {}

    async def find(self, ident: str, principal: Any, peer: str) -> Found:
        """The session of that id, if it is that principal's and is kept somewhere; or who holds it, or why there is
        none. Raises `StoreError` if that cannot be found out."""
        if self._sessions.expired(ident, principal):
            return TOO_OLD
        if self._keeper is None:
            return NO_SUCH
        key = (ident, principal)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._find(self._keeper, ident, principal, peer))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(task)  # who hangs up does not keep others from it

    async def brought(self, ident: str) -> None:
        """Waits for a session that is being brought here, if it is."""
        if under_way := [task for (one, _), task in self._under_way.items() if one == ident]:
            await asyncio.wait(under_way)

    async def _find(self, keeper: SessionKeeper, ident: str, principal: Any, peer: str) -> Found:
        if (session := await self._sessions.confirmed(ident, principal)) is not None:
            return session
        if self._guard.closing:
            return STOPPING  # what is here and closed may go on elsewhere
        if self._sessions.holds(ident):
            return NO_SUCH
        kept = await keeper.find(ident, principal)
        if kept is None:
            return NO_SUCH
        if kept is EXPIRED:
            return TOO_OLD
        if isinstance(kept, Elsewhere):
            return kept
        found = self._refusal(principal) or await self._revive(kept, ident, principal, peer)
        if isinstance(found, Missing):
            await kept.leave()  # others may take it
        return found

    def _refusal(self, principal: Any) -> Missing | None:
        """Return why no session is brought here now: the server is stopping, or has too many. None if one may be."""
        if self._guard.closing:
            return STOPPING
        full = self._sessions.full_for(principal)
        return None if full is None else Missing(full, "too_many_sessions", 503, b"30")

    async def _revive(self, kept: KeptSession, ident: str, principal: Any, peer: str) -> HttpSession | Missing:
        channel = HttpChannel(peer, self._guard.settings, session=ident, events=kept.events)
        channel.open(self._guard.admit_session(channel))
        try:
            revived = await kept.revive(principal)
        except BaseException:
            channel.lost(Closed("the session could not be brought back"))
            await kept.leave()
            raise
        if channel.closed:
            return STOPPING
        refusal = self._refusal(principal)  # others may have come meanwhile
        if revived is None or refusal is not None:
            channel.lost(Closed("the session is not brought back"))
            return refusal or NO_SUCH
        channel.restore(revived.streams, revived.newest, revived.read)
        return self._sessions.add(ident, channel, principal, kept)


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
