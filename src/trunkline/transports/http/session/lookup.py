"""Finding the session that a request names: in this process, restored from the store, or in the process that holds it.

A session that no process holds is restored here, once, however many requests name it at the same time; quotas and
expiry apply to it as to a new one. If another process holds it, the request is forwarded there, and the holder is
cached until it no longer has the session. A session in this process goes the same way when its lease is not certainly
valid.
"""

import asyncio
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import Fenced, InternalError, Interrupted, StoreError
from trunkline.transports.channel import ChannelClosed
from trunkline.transports.http.forwarding.outbound import Forwarder, ForwardOutcome
from trunkline.transports.http.request import SESSION_HEADER, HttpRequest
from trunkline.transports.http.respond import respond_interrupted
from trunkline.transports.http.session.backend import EXPIRED, HeldElsewhere, SessionBackend, StoredSession
from trunkline.transports.http.session.channel import HttpChannel
from trunkline.transports.http.session.sessions import HttpSession, SessionTable
from trunkline.transports.listener_limits import SHUTTING_DOWN as TOLD_TO_ALL
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire import codec
from trunkline.wire.messages import Batch, Request

__all__ = ["HOLDER_LOST", "STORE_UNAVAILABLE", "SessionLookup", "SessionRefusal", "SessionRestorer"]


class SessionRefusal(Struct, frozen=True):
    """Why a request has no session: the HTTP error for the client."""

    reason: str
    kind: str
    status: int = 404
    retry_after: bytes | None = None  # seconds


SESSION_NOT_FOUND: Final = SessionRefusal("session not found; initialize again", "session_not_found")
SESSION_EXPIRED: Final = SessionRefusal("the session has expired; initialize again", "session_expired")
SERVER_STOPPING: Final = SessionRefusal(TOLD_TO_ALL.reason, TOLD_TO_ALL.kind, 503, TOLD_TO_ALL.retry_after)


LookupResult = HttpSession | SessionRefusal | HeldElsewhere


class SessionRestorer:
    """Restores sessions that are not in this process, or whose lease is uncertain."""

    def __init__(self, guard: ListenerGuard, sessions: SessionTable, backend: SessionBackend | None) -> None:
        self._guard = guard
        self._sessions = sessions
        self._backend = backend
        self._pending: dict[tuple[str, Any], asyncio.Task[LookupResult]] = {}

    async def find(self, ident: str, principal: Any, peer: str) -> LookupResult:
        """Return the session of that id and principal, its holder, or the refusal. Raise `StoreError` if the store
        fails."""
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
        return await asyncio.shield(task)  # a request that is cancelled does not cancel the restore for the others

    async def wait_restored(self, ident: str) -> None:
        """Wait for a restore of that session in progress, if there is one."""
        if pending := [task for (one, _), task in self._pending.items() if one == ident]:
            await asyncio.wait(pending)

    async def _find(self, backend: SessionBackend, ident: str, principal: Any, peer: str) -> LookupResult:
        if (session := await self._sessions.get_confirmed(ident, principal)) is not None:
            return session
        if self._guard.closing:
            return SERVER_STOPPING  # a closed session here may continue in another process
        if self._sessions.holds(ident):
            return SESSION_NOT_FOUND
        stored = await backend.acquire(ident, principal)
        if stored is None:
            return SESSION_NOT_FOUND
        if stored is EXPIRED:
            return SESSION_EXPIRED
        if isinstance(stored, HeldElsewhere):
            return stored
        found = self._refusal(principal) or await self._restore(stored, ident, principal, peer)
        if isinstance(found, SessionRefusal):
            await stored.release()  # another process may acquire it
        return found

    def _refusal(self, principal: Any) -> SessionRefusal | None:
        """Return why no session can be restored here now: the server is stopping, or a limit is reached. None if it
        can."""
        if self._guard.closing:
            return SERVER_STOPPING
        full = self._sessions.make_room(principal)
        return None if full is None else SessionRefusal(full, "too_many_sessions", 503, b"30")

    async def _restore(
        self, stored: StoredSession, ident: str, principal: Any, peer: str
    ) -> HttpSession | SessionRefusal:
        channel = HttpChannel(peer, self._guard.settings, session_id=ident, events=stored.events)
        channel.open(self._guard.admit_session(channel))
        try:
            revived = await stored.restore(principal)
        except BaseException:
            channel.terminate(ChannelClosed("the session could not be restored"))
            await stored.release()
            raise
        if channel.closed:
            return SERVER_STOPPING
        refusal = self._refusal(principal)  # sessions may have been opened meanwhile
        if revived is None or refusal is not None:
            channel.terminate(ChannelClosed("the session was not restored"))
            return refusal or SESSION_NOT_FOUND
        channel.restore_streams(revived.streams, revived.newest_stream, revived.delivered)
        return self._sessions.add(ident, channel, principal, stored)


HOLDER_LOST: Final = "the process that handled this request was lost"
STORE_UNAVAILABLE: Final = SessionRefusal(
    "the session store is unavailable; try again later", "temporarily_unavailable", 503, b"1"
)
_SESSION_MOVING: Final = SessionRefusal(
    "the session is moving between processes; try again", "temporarily_unavailable", 503, b"1"
)
_MAX_ATTEMPTS: Final = 4
_RETRY_DELAY: Final = 0.05  # seconds; times the number of attempts so far
_MAX_CACHED_HOLDERS: Final = 10_000


class SessionLookup:
    """Finds the session of a request, or forwards the request to its holder."""

    def __init__(self, guard: ListenerGuard, restorer: SessionRestorer, forwarder: Forwarder | None) -> None:
        """Without a forwarder there are no other processes."""
        self._guard = guard
        self._restorer = restorer
        self._forwarder = forwarder
        self._holders: dict[str, HeldElsewhere] = {}

    async def find_or_forward(self, request: HttpRequest, body: bytes = b"") -> HttpSession | SessionRefusal | None:
        """Return the session that a request names, or the refusal; None if another process has answered the request."""
        ident = request.headers[SESSION_HEADER].decode("latin-1")
        for attempt in range(_MAX_ATTEMPTS):
            try:
                found = self._holders.get(ident) or await self._restorer.find(ident, request.principal, request.peer)
                if isinstance(found, HeldElsewhere) and not await self._is_reachable(found):
                    self._holders.pop(ident, None)
                    continue
            except Fenced:  # another process acquired the session while this one looked it up
                await asyncio.sleep(_RETRY_DELAY * attempt)
                continue
            except StoreError:
                return STORE_UNAVAILABLE
            if not isinstance(found, HeldElsewhere) or self._forwarder is None:
                return found if not isinstance(found, HeldElsewhere) else _SESSION_MOVING
            if await self._forward(self._forwarder, request, found, ident, body):
                return None
            if self._guard.closing:
                return SERVER_STOPPING
            await asyncio.sleep(_RETRY_DELAY * attempt)
        return _SESSION_MOVING

    async def _is_reachable(self, held: HeldElsewhere) -> bool:
        """Return whether the holder can receive requests; if it is dead, another process will hold the session."""
        return self._forwarder is None or await self._forwarder.is_reachable(held.holder)

    async def _forward(
        self, forwarder: Forwarder, request: HttpRequest, held: HeldElsewhere, ident: str, body: bytes
    ) -> bool:
        """Forward a request to the holder; return whether it was answered, as far as this process can tell."""
        if request.method == "GET" and self._guard.closing:
            return False
        self._remember_holder(ident, held)
        outcome = await forwarder.forward(request, held.holder, ident, body)
        if outcome is ForwardOutcome.ANSWERED:
            return True
        self._holders.pop(ident, None)
        if outcome is ForwardOutcome.LOST and request.method == "POST":
            respond_holder_lost(request, body)
            return True
        return False

    def _remember_holder(self, ident: str, held: HeldElsewhere) -> None:
        self._holders[ident] = held
        if len(self._holders) > _MAX_CACHED_HOLDERS:
            del self._holders[next(iter(self._holders))]


def respond_holder_lost(request: HttpRequest, body: bytes) -> None:
    """Answer a POST that the holder may have received but did not answer.

    Notifications and replies get 502: posting them again does no harm.
    """
    message = codec.decode(body)
    parts = message.messages if isinstance(message, Batch) else (message,)
    ids = [part.id for part in parts if isinstance(part, Request)]
    if ids:
        respond_interrupted(request, ids, HOLDER_LOST, batch=isinstance(message, Batch))
    else:
        request.refuse(502, HOLDER_LOST, code=InternalError.code, kind=Interrupted.kind)
