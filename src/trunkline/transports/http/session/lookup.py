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
from trunkline.transports.channel import ChannelClosed
from trunkline.transports.http.forwarding.outbound import Forwarder, ForwardOutcome
from trunkline.transports.http.request import HttpRequest
from trunkline.transports.http.respond import respond_interrupted
from trunkline.transports.http.session.backend import EXPIRED, HeldElsewhere, SessionBackend, StoredSession
from trunkline.transports.http.session.channel import HttpChannel
from trunkline.transports.http.session.sessions import HttpSession, SessionTable
from trunkline.transports.listener_limits import SHUTTING_DOWN as TOLD_TO_ALL
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire import codec
from trunkline.wire.messages import Batch, Request

__all__ = ["HOLDER_LOST", "SESSION_HEADER", "STORE_UNAVAILABLE", "SessionLookup", "SessionRefusal", "SessionRestorer"]


class SessionRefusal(Struct, frozen=True):
    """Why there is no session: what the peer is told."""

    reason: str
    kind: str
    status: int = 404
    retry_after: bytes | None = None  # seconds until it is worth another try


SESSION_NOT_FOUND: Final = SessionRefusal("there is no such session; initialize again", "session_not_found")
SESSION_EXPIRED: Final = SessionRefusal("the session was not used for too long; initialize again", "session_expired")
SERVER_STOPPING: Final = SessionRefusal(TOLD_TO_ALL.why, TOLD_TO_ALL.kind, 503, TOLD_TO_ALL.wait)


LookupResult = HttpSession | SessionRefusal | HeldElsewhere


class SessionRestorer:
    """Finds sessions that are not here, or not for certain."""

    def __init__(self, guard: ListenerGuard, sessions: SessionTable, backend: SessionBackend | None) -> None:
        self._guard = guard
        self._sessions = sessions
        self._backend = backend
        self._pending: dict[tuple[str, Any], asyncio.Task[LookupResult]] = {}

    async def find(self, ident: str, principal: Any, peer: str) -> LookupResult:
        """The session of that id, if it is that principal's and is kept somewhere; or who holds it, or why there is
        none. Raises `StoreError` if that cannot be found out."""
        if self._sessions.has_expired(ident, principal):
            return SESSION_EXPIRED
        if self._backend is None:
            return SESSION_NOT_FOUND
        key = (ident, principal)
        task = self._pending.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._find(self._backend, ident, principal, peer))
            self._pending[key] = task
            task.add_done_callback(lambda _: self._pending.pop(key))
        return await asyncio.shield(task)  # who hangs up does not keep others from it

    async def wait_restored(self, ident: str) -> None:
        """Waits for a session that is being brought here, if it is."""
        if under_way := [task for (one, _), task in self._pending.items() if one == ident]:
            await asyncio.wait(under_way)

    async def _find(self, backend: SessionBackend, ident: str, principal: Any, peer: str) -> LookupResult:
        if (session := await self._sessions.get_confirmed(ident, principal)) is not None:
            return session
        if self._guard.closing:
            return SERVER_STOPPING  # what is here and closed may go on elsewhere
        if self._sessions.holds(ident):
            return SESSION_NOT_FOUND
        kept = await backend.acquire(ident, principal)
        if kept is None:
            return SESSION_NOT_FOUND
        if kept is EXPIRED:
            return SESSION_EXPIRED
        if isinstance(kept, HeldElsewhere):
            return kept
        found = self._refusal(principal) or await self._restore(kept, ident, principal, peer)
        if isinstance(found, SessionRefusal):
            await kept.release()  # others may take it
        return found

    def _refusal(self, principal: Any) -> SessionRefusal | None:
        """Return why no session is brought here now: the server is stopping, or has too many. None if one may be."""
        if self._guard.closing:
            return SERVER_STOPPING
        full = self._sessions.make_room(principal)
        return None if full is None else SessionRefusal(full, "too_many_sessions", 503, b"30")

    async def _restore(
        self, stored: StoredSession, ident: str, principal: Any, peer: str
    ) -> HttpSession | SessionRefusal:
        channel = HttpChannel(peer, self._guard.settings, session=ident, events=stored.events)
        channel.open(self._guard.admit_session(channel))
        try:
            revived = await stored.restore(principal)
        except BaseException:
            channel.terminate(ChannelClosed("the session could not be brought back"))
            await stored.release()
            raise
        if channel.closed:
            return SERVER_STOPPING
        refusal = self._refusal(principal)  # others may have come meanwhile
        if revived is None or refusal is not None:
            channel.terminate(ChannelClosed("the session is not brought back"))
            return refusal or SESSION_NOT_FOUND
        channel.restore_streams(revived.streams, revived.newest_stream, revived.delivered)
        return self._sessions.add(ident, channel, principal, stored)


SESSION_HEADER: Final = b"mcp-session-id"
HOLDER_LOST: Final = "the process that worked on this request was lost"
STORE_UNAVAILABLE: Final = SessionRefusal(
    "what is kept of sessions cannot be reached; try again later", "temporarily_unavailable", 503, b"1"
)
_SESSION_MOVING: Final = SessionRefusal(
    "the session is on its way between processes; try again", "temporarily_unavailable", 503, b"1"
)
_MAX_ATTEMPTS: Final = 4
_RETRY_DELAY: Final = 0.05  # seconds before the second try; the next ones wait for longer
_MAX_CACHED_HOLDERS: Final = 10_000


class SessionLookup:
    """Finds sessions that are not at hand."""

    def __init__(self, guard: ListenerGuard, restorer: SessionRestorer, forwarder: Forwarder | None) -> None:
        """Without a front there are no other processes."""
        self._guard = guard
        self._restorer = restorer
        self._forwarder = forwarder
        self._holders: dict[str, HeldElsewhere] = {}

    async def find_or_forward(self, request: HttpRequest, body: bytes = b"") -> HttpSession | SessionRefusal | None:
        """The session that a request names, or why there is none; None if another process has answered the request."""
        ident = request.headers[SESSION_HEADER].decode("latin-1")
        for tries in range(_MAX_ATTEMPTS):
            try:
                found = self._holders.get(ident) or await self._restorer.find(ident, request.principal, request.peer)
                if isinstance(found, HeldElsewhere) and not await self._is_reachable(found):
                    self._holders.pop(ident, None)
                    continue
            except StoreError:
                return STORE_UNAVAILABLE
            if not isinstance(found, HeldElsewhere) or self._forwarder is None:
                return found if not isinstance(found, HeldElsewhere) else _SESSION_MOVING
            if await self._forward(self._forwarder, request, found, ident, body):
                return None
            if self._guard.closing:
                return SERVER_STOPPING
            await asyncio.sleep(_RETRY_DELAY * tries)
        return _SESSION_MOVING

    async def _is_reachable(self, held: HeldElsewhere) -> bool:
        """Whether who holds a session can be asked; if it is gone, somebody else will hold it."""
        return self._forwarder is None or await self._forwarder.is_reachable(held.holder)

    async def _forward(
        self, forwarder: Forwarder, request: HttpRequest, held: HeldElsewhere, ident: str, body: bytes
    ) -> bool:
        """Whether the request was answered by who holds the session, as far as anybody knows."""
        if request.scope["method"] == "GET" and self._guard.closing:
            return False
        self._remember_holder(ident, held)
        outcome = await forwarder.forward(request, held.holder, ident, body)
        if outcome is ForwardOutcome.ANSWERED:
            return True
        self._holders.pop(ident, None)
        if outcome is ForwardOutcome.LOST and request.scope["method"] == "POST":
            await respond_holder_lost(request, body)
            return True
        return False

    def _remember_holder(self, ident: str, held: HeldElsewhere) -> None:
        self._holders[ident] = held
        if len(self._holders) > _MAX_CACHED_HOLDERS:
            del self._holders[next(iter(self._holders))]


async def respond_holder_lost(request: HttpRequest, body: bytes) -> None:
    """Answer a POST that another process may have taken, and has not answered. A notification or an answer does no harm
    if it is posted again, which a status of 502 asks for."""
    message = codec.decode(body)
    parts = message.messages if isinstance(message, Batch) else (message,)
    ids = [part.id for part in parts if isinstance(part, Request)]
    if ids:
        await respond_interrupted(request, ids, HOLDER_LOST, batch=isinstance(message, Batch))
    else:
        await request.refuse(502, HOLDER_LOST, code=InternalError.code, kind=Interrupted.kind)
