"""Table of the sessions of an HTTP endpoint: lookup, quotas and expiry.

A session belongs to the principal that opened it; for any other principal it does not exist. The table never evicts a
session in use to make room. A session that was opened but never used expires early, and when a limit is reached the
oldest of them is evicted, those without a complete handshake first. Only when every session is in use, new sessions are
refused.
"""

import secrets
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from trunkline.client_address import address_group
from trunkline.clock import Clock, Timer
from trunkline.config import Settings
from trunkline.transports.channel import ChannelClosed
from trunkline.transports.http.session.backend import SessionBackend, StoredSession
from trunkline.transports.http.session.channel import HttpChannel
from trunkline.wire.messages import Batch, Incoming, Notification, RequestId

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["HttpSession", "SessionTable", "Stage", "next_stage"]


_MAX_EXPIRED_IDS: Final = 1000  # expired ids to remember
_INITIALIZED: Final = "notifications/initialized"
_TOUCHES_PER_TTL: Final = 10  # a session's use is written at most this often within `session_ttl`


class Stage(Enum):
    """How far a client has come with a session."""

    OPENED = auto()  # `initialize` was answered
    CONFIRMED = auto()  # `notifications/initialized` was received
    USED = auto()  # a message or a stream followed


def next_stage(stage: Stage, message: Incoming | None) -> Stage:
    """Return the stage of a session after a message was posted in it; None stands for a stream that was opened."""
    if stage is not Stage.OPENED:
        return Stage.USED
    parts = message.messages if isinstance(message, Batch) else (message,)
    confirmed = any(isinstance(part, Notification) and part.method == _INITIALIZED for part in parts)
    return Stage.CONFIRMED if confirmed else Stage.OPENED


class LimitReached(Struct, frozen=True):
    """A limit that has been reached: the reason for the client, and which sessions count against it."""

    reason: str
    counts: Callable[["HttpSession"], bool]


class HttpSession(Struct):
    """A session: its channel, its principal, and its time of last use."""

    id: str
    channel: HttpChannel
    principal: Any
    last_used: float
    stored: StoredSession | None = None  # durable state, if there is a backend
    touch_at: float = inf  # when the next use must be written to the backend
    address: str | None = None  # counted by `max_sessions_per_address`; None: not counted
    stage: Stage = Stage.USED


class SessionTable:
    """All sessions of one endpoint."""

    def __init__(self, settings: Settings, clock: Clock, backend: SessionBackend | None = None) -> None:
        """`backend` tells until when the leases of durable sessions are certainly valid."""
        self._backend = backend
        self._membership = None if backend is None else backend.membership
        self._settings = settings
        self._clock = clock
        self._sessions: dict[str, HttpSession] = {}
        self._count_by_principal: dict[Any, int] = {}
        self._count_by_address: dict[str, int] = {}  # only clients without a principal
        self._unused: dict[str, HttpSession] = {}  # not used yet, the oldest first
        self._expired: dict[str, Any] = {}  # the principal by id of the sessions that expired last
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def profile_of(self, ident: str) -> "Profile | None":
        """Return the compatibility profile of a session; None if it has none, or is not here."""
        session = self._sessions.get(ident)
        return None if session is None else session.channel.profile

    def make_room(self, principal: Any, host: str | None = None) -> str | None:
        """Return why a client cannot open one more session; None if it can. Evict sessions that were never used first,
        then remove closed ones."""
        while (limit := self._reached_limit(principal, host)) is not None:
            if (unused := self._oldest_unused(limit.counts)) is None:
                return self._recheck_without_closed(principal, host)
            self._evict(unused)
        return None

    def _evict(self, session: HttpSession) -> None:
        """End a session that was never used, in all processes."""
        if session.channel.closed:
            self._remove_closed(session)
            return
        self._expire(session, "session_evicted")
        if self._backend is not None and session.stored is not None:
            self._backend.delete_later(session.stored)

    def _recheck_without_closed(self, principal: Any, host: str | None) -> str | None:
        for session in list(self._sessions.values()):
            if session.channel.closed:
                self._remove_closed(session)
        limit = self._reached_limit(principal, host)
        return None if limit is None else limit.reason

    def oldest_unused_of(self, principal: Any) -> HttpSession | None:
        """Return the session of a principal that may be evicted for a new one; None if all that are here are in use."""
        return self._oldest_unused(lambda session: session.principal == principal)

    def _oldest_unused(self, counts: Callable[[HttpSession], bool]) -> HttpSession | None:
        idle = (one for one in self._unused.values() if not one.channel.active_requests and counts(one))
        confirmed: HttpSession | None = None
        for session in idle:
            if session.stage is Stage.OPENED:
                return session
            confirmed = confirmed or session
        return confirmed

    def _reached_limit(self, principal: Any, host: str | None) -> LimitReached | None:
        """Return the limit that one more session would exceed."""
        settings = self._settings
        maximum = settings.max_sessions_per_principal
        if principal is not None and maximum is not None and self._count_by_principal.get(principal, 0) >= maximum:
            return LimitReached(self.quota_message, lambda session: session.principal == principal)
        maximum, address = settings.max_sessions_per_address, self._counted_address(principal, host)
        if address is not None and maximum is not None and self._count_by_address.get(address, 0) >= maximum:
            reason = f"the address {address} has {maximum} sessions, which is the limit (max_sessions_per_address)"
            return LimitReached(f"{reason}; end one first, or authenticate", lambda session: session.address == address)
        if len(self._sessions) >= settings.max_sessions:
            reason = f"there are {settings.max_sessions} sessions, which is the limit (max_sessions); try again later"
            return LimitReached(reason, lambda _: True)
        return None

    def _counted_address(self, principal: Any, host: str | None) -> str | None:
        return None if principal is not None or not host else address_group(host)

    @property
    def quota_message(self) -> str:
        """The reason for a principal that has as many sessions as it may have."""
        maximum = self._settings.max_sessions_per_principal
        return f"this principal has {maximum} sessions, which is the limit (max_sessions_per_principal); end one first"

    def new_id(self) -> str:
        """Return an unguessable id."""
        return secrets.token_urlsafe(32)

    def add(
        self,
        ident: str,
        channel: HttpChannel,
        principal: Any,
        stored: StoredSession | None = None,
        *,
        host: str | None = None,
        stage: Stage = Stage.USED,
    ) -> HttpSession:
        """Add a session of a client at `host`, and start sweeping if a limit on idle time is set."""
        now, address = self._clock.now(), self._counted_address(principal, host)
        session = HttpSession(ident, channel, principal, now, stored, self._next_touch(now, stored), address, stage)
        self._sessions[session.id] = session
        self._count_by_principal[principal] = self._count_by_principal.get(principal, 0) + 1
        if address is not None:
            self._count_by_address[address] = self._count_by_address.get(address, 0) + 1
        if stage is not Stage.USED:
            self._unused[session.id] = session
        if stored is not None:
            stored.on_taken_over(partial(self._forget_moved, session))
        if self._timer is None and self._needs_sweep:
            self._schedule_sweep()
        return session

    @property
    def _needs_sweep(self) -> bool:
        settings = self._settings
        limits = (settings.session_ttl, settings.session_confirm_timeout, settings.session_unused_ttl)
        return any(limit is not None for limit in limits)

    def advance_stage(self, session: HttpSession, message: Incoming | None) -> None:
        """Update the stage of a session that was not in use yet."""
        session.stage = next_stage(session.stage, message)
        if session.stage is Stage.USED:
            self._unused.pop(session.id, None)
            if session.stored is not None:
                self._touch(session, self._clock.now())  # from now on its full lifetime applies

    def get(self, ident: str, principal: Any) -> HttpSession | None:
        """Return the session of that id if it is that principal's, open, and its lease is certainly valid; mark it
        used."""
        session = self._sessions.get(ident)
        if session is None or session.principal != principal or session.channel.closed:
            return None
        now = self._clock.now()
        if self._membership is not None and now >= self._membership.lease.valid_until:
            return None
        self._mark_used(session, now)
        return session

    def get_in_doubt(self, ident: str, principal: Any, request_id: RequestId) -> HttpSession | None:
        """Return the session of that id and principal if it is open here and that request is in progress in it. Its
        lease may have expired."""
        session = self._sessions.get(ident)
        if session is None or session.principal != principal or not session.channel.has_request(request_id):
            return None
        return session

    def _mark_used(self, session: HttpSession, now: float) -> None:
        session.last_used = now
        if now >= session.touch_at:
            self._touch(session, now)

    def _touch(self, session: HttpSession, now: float) -> None:
        if session.stored is not None:
            session.touch_at = self._next_touch(now, session.stored)
            session.stored.touch()

    def _next_touch(self, now: float, stored: StoredSession | None) -> float:
        ttl = self._settings.session_ttl
        return inf if stored is None or ttl is None else now + ttl / _TOUCHES_PER_TTL

    def principal_of(self, ident: str) -> Any:
        """Return the principal of a session that is here."""
        return self._sessions[ident].principal

    def holds(self, ident: str) -> bool:
        """Return whether a session of that id is here, whatever its principal and state."""
        return ident in self._sessions

    async def get_confirmed(self, ident: str, principal: Any) -> HttpSession | None:
        """Like `get`, but confirm the lease with the store first. Raise `StoreError` if that fails."""
        session = self._sessions.get(ident)
        if session is None or session.principal != principal or session.channel.closed:
            return None
        if session.stored is not None and not await session.stored.confirm_lease():
            return None
        if session.channel.closed:
            return None
        self._mark_used(session, self._clock.now())
        return session

    def has_expired(self, ident: str, principal: Any) -> bool:
        """Return whether that principal had a session of that id that expired."""
        return ident in self._expired and self._expired[ident] == principal

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(list(self._sessions.values()))

    def now(self) -> float:
        """Return the time on the table's clock."""
        return self._clock.now()

    def remove(self, session: HttpSession, reason: str) -> None:
        """End a session in this process."""
        if self._forget(session):
            session.channel.terminate(ChannelClosed(reason))

    def _remove_closed(self, session: HttpSession) -> None:
        """Remove a session whose channel is closed; if it ended for good, delete it from the backend as well."""
        self.remove(session, "the session has ended")
        if self._backend is not None and session.stored is not None and session.channel.permanently_closed:
            self._backend.delete_later(session.stored)

    def _forget_moved(self, session: HttpSession) -> None:
        """Drop a session that another process has taken over."""
        self._forget(session)
        session.channel.mark_moved()

    def _forget(self, session: HttpSession) -> bool:
        if self._sessions.get(session.id) is not session:
            return False
        del self._sessions[session.id]
        self._unused.pop(session.id, None)
        _decrement(self._count_by_principal, session.principal)
        if session.address is not None:
            _decrement(self._count_by_address, session.address)
        return True

    def _schedule_sweep(self) -> None:
        self._timer = self._clock.call_at(self._clock.now() + self._settings.session_sweep, self._sweep)

    def _sweep(self) -> None:
        """Expire idle sessions. A session with a request or stream in progress is in use."""
        self._timer = None
        now = self._clock.now()
        limits = self._idle_limits()
        for session in list(self._sessions.values()):
            if session.channel.active_requests:
                session.last_used = now
                if now >= session.touch_at:
                    self._touch(session, now)
            elif session.channel.closed:
                self._remove_closed(session)
            elif now - session.last_used >= limits[session.stage]:
                self._expire(session, "session_expired")
        if self._sessions:
            self._schedule_sweep()

    def _idle_limits(self) -> dict[Stage, float]:
        """Return how long a session may be idle at each stage, in seconds."""
        settings = self._settings
        used = inf if settings.session_ttl is None else settings.session_ttl
        early = {Stage.OPENED: settings.session_confirm_timeout, Stage.CONFIRMED: settings.session_unused_ttl}
        return {
            Stage.USED: used,
            **{stage: used if limit is None else min(limit, used) for stage, limit in early.items()},
        }

    def _expire(self, session: HttpSession, reason: str) -> None:
        """End an idle session and remember its id. Its records in the store expire by themselves."""
        self.remove(session, reason)
        self._expired[session.id] = session.principal
        while len(self._expired) > _MAX_EXPIRED_IDS:
            del self._expired[next(iter(self._expired))]

    def close(self, reason: str) -> None:
        """End all sessions."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for session in list(self._sessions.values()):
            self.remove(session, reason)


def _decrement(counts: dict[Any, int], key: Any) -> None:
    """Decrement a count; remove it at zero."""
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
