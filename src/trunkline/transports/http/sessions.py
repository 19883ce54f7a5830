"""The sessions of an HTTP endpoint: who has one, who may have one more, and whose time is up.

A session belongs to the principal who opened it; to anybody else it does not exist. One that is used is never ended to
make room: when the house is full, whoever comes last is turned away, and first those who hold most of it already.
"""

import secrets
from collections.abc import Iterator
from functools import partial
from math import inf
from typing import Any, Final

from msgspec import Struct

from trunkline.clock import Clock, Timer
from trunkline.config import Settings
from trunkline.transports.channel import Closed
from trunkline.transports.http.channel import HttpChannel
from trunkline.transports.http.keeper import KeptSession, SessionKeeper

__all__ = ["HttpSession", "Sessions"]


_MOST_EXPIRED: Final = 1000  # ids that are known to have expired
_TOUCHES: Final = 10  # in the time that a session may be unused; that it was used is not kept more often


class HttpSession(Struct):
    """A channel, whose it is, and when it was used last."""

    id: str
    channel: HttpChannel
    principal: Any
    used: float
    kept: KeptSession | None = None  # by whom it can be found, though this process is gone
    touch_at: float = inf  # when it has to be told that the session is still in use


class Sessions:
    """All sessions of one endpoint."""

    def __init__(self, settings: Settings, clock: Clock, keeper: SessionKeeper | None = None) -> None:
        """Of those that are kept, `keeper` says for how long nobody else can have them."""
        self._keeper = keeper
        self._settings = settings
        self._clock = clock
        self._sessions: dict[str, HttpSession] = {}
        self._held: dict[Any, int] = {}  # how many each principal has
        self._expired: dict[str, Any] = {}  # the ids of those that ended last for want of use, and whose they were
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def full_for(self, principal: Any) -> str | None:
        """Why that principal cannot have one more; None if it can. Those that have ended make room first."""
        if (why := self._full_for(principal)) is None:
            return None
        for session in list(self._sessions.values()):
            if session.channel.closed:
                self._clear(session)
                why = self._full_for(principal)
        return why

    def _full_for(self, principal: Any) -> str | None:
        most = self._settings.max_sessions_per_principal
        if principal is not None and most is not None and self._held.get(principal, 0) >= most:
            return self.one_too_many
        if len(self._sessions) >= self._settings.max_sessions:
            return f"there are {self._settings.max_sessions} sessions, which is the most; try again later"
        return None

    @property
    def one_too_many(self) -> str:
        """What a principal is told who has as many as it may."""
        most = self._settings.max_sessions_per_principal
        return f"this principal has {most} sessions, which is the most; end one first"

    def new_id(self) -> str:
        """An id that nobody can guess."""
        return secrets.token_urlsafe(32)

    def add(self, ident: str, channel: HttpChannel, principal: Any, kept: KeptSession | None = None) -> HttpSession:
        """Takes a session in."""
        now = self._clock.now()
        session = HttpSession(ident, channel, principal, now, kept, self._next_touch(now, kept))
        self._sessions[session.id] = session
        self._held[principal] = self._held.get(principal, 0) + 1
        if kept is not None:
            kept.on_taken(partial(self._moved, session))
        if self._timer is None and self._settings.session_ttl is not None:
            self._wait()
        return session

    def get(self, ident: str, principal: Any) -> HttpSession | None:
        """The session of that id, if it is that principal's, still open, and certainly held here. It counts as used
        from now on."""
        session = self._sessions.get(ident)
        if session is None or session.principal != principal or session.channel.closed:
            return None
        now = self._clock.now()
        if self._keeper is not None and now >= self._keeper.sure_until:
            return None
        self._use(session, now)
        return session

    def _use(self, session: HttpSession, now: float) -> None:
        session.used = now
        if now >= session.touch_at:
            self._touch(session, now)

    def _touch(self, session: HttpSession, now: float) -> None:
        if session.kept is not None:
            session.touch_at = self._next_touch(now, session.kept)
            session.kept.touch()

    def _next_touch(self, now: float, kept: KeptSession | None) -> float:
        ttl = self._settings.session_ttl
        return inf if kept is None or ttl is None else now + ttl / _TOUCHES

    def owner(self, ident: str) -> Any:
        """Whose session that is, of one that is here."""
        return self._sessions[ident].principal

    def holds(self, ident: str) -> bool:
        """Whether a session of that id is here, whoever's it is and whatever has become of it."""
        return ident in self._sessions

    async def confirmed(self, ident: str, principal: Any) -> HttpSession | None:
        """The same as `get`, of a session of which it has to be asked whether it is held here. Raises `StoreError` if
        that cannot be found out."""
        session = self._sessions.get(ident)
        if session is None or session.principal != principal or session.channel.closed:
            return None
        if session.kept is not None and not await session.kept.confirm():
            return None
        if session.channel.closed:
            return None
        self._use(session, self._clock.now())
        return session

    def expired(self, ident: str, principal: Any) -> bool:
        """Whether that principal had a session of that id, until it was not used for too long."""
        return ident in self._expired and self._expired[ident] == principal

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(list(self._sessions.values()))

    def now(self) -> float:
        """The time, as sessions know it."""
        return self._clock.now()

    def remove(self, session: HttpSession, reason: str) -> None:
        """Ends a session."""
        if self._forget(session):
            session.channel.lost(Closed(reason))

    def _clear(self, session: HttpSession) -> None:
        """Forgets a session whose channel is closed; if it is over, for all processes."""
        self.remove(session, "the session has ended")
        if self._keeper is not None and session.kept is not None and session.channel.over:
            self._keeper.ended(session.kept)

    def _moved(self, session: HttpSession) -> None:
        """Another process goes on with a session: it is none of ours any more."""
        self._forget(session)
        session.channel.moved()

    def _forget(self, session: HttpSession) -> bool:
        if self._sessions.get(session.id) is not session:
            return False
        del self._sessions[session.id]
        left = self._held[session.principal] - 1
        if left:
            self._held[session.principal] = left
        else:
            del self._held[session.principal]
        return True

    def _wait(self) -> None:
        self._timer = self._clock.call_at(self._clock.now() + self._settings.session_sweep, self._sweep)

    def _sweep(self) -> None:
        """Ends the sessions that nobody has used for too long. One with a request or a stream under way is in use."""
        self._timer = None
        now, limit = self._clock.now(), self._settings.session_ttl or 0.0
        for session in list(self._sessions.values()):
            if session.channel.active:
                session.used = now
                if now >= session.touch_at:
                    self._touch(session, now)
            elif session.channel.closed:
                self._clear(session)
            elif now - session.used >= limit:
                self.remove(session, "session_expired")
                self._expired[session.id] = session.principal
        while len(self._expired) > _MOST_EXPIRED:
            del self._expired[next(iter(self._expired))]
        if self._sessions:
            self._wait()

    def close(self, reason: str) -> None:
        """Ends all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for session in list(self._sessions.values()):
            self.remove(session, reason)
