"""Going on with a session that another process has held: a request names it, and it is not here.

However many requests name it at once, it is brought back once. It counts from then on like any other: there have to be
room for it and time left, and it belongs to whoever opened it. One that another process still holds stays there. One
that is here is asked for too, when this process cannot be sure that nobody has taken it.
"""

import asyncio
from typing import Any, Final

from msgspec import Struct

from trunkline.transports.channel import Closed
from trunkline.transports.http.session.backend import EXPIRED, Elsewhere, KeptSession, SessionKeeper
from trunkline.transports.http.session.channel import HttpChannel
from trunkline.transports.http.session.sessions import HttpSession, Sessions
from trunkline.transports.listener_limits import STOPPING as TOLD_TO_ALL
from trunkline.transports.listener_limits import Guard

__all__ = ["Missing", "Restoring"]


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
