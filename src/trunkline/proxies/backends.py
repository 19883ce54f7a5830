"""The connections of a proxy, and which of them serves which client.

A request of the server behind cannot be attributed to a client unless the connection has only one. So in the handshake
era each session in front has a connection of its own, with the capabilities of its client. In the modern era requests
carry their own capabilities and the server asks in its results, so all clients of one principal share a connection.
A modern client of a server of the handshake era shares a connection as well, unless it can be asked: then its call
leases one, which serves no other call meanwhile.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from msgspec import UNSET, Struct

from trunkline.client.connection import ClientConnection
from trunkline.errors import NotNow
from trunkline.protocol.capabilities import restrict_to_revision
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.revisions import NEWEST_HANDSHAKE, Era, Revision
from trunkline.protocol.types import LOGGING_LEVELS, LoggingMessageParams, TaskStatusParams
from trunkline.proxies.backend import Backend, BackendTarget, FrontCall, TaskBehind
from trunkline.proxies.questions import Dialogue, answer_by_request
from trunkline.server.access.owner_id import principal_name
from trunkline.server.connection import Connection
from trunkline.wire import codec

__all__ = ["Backends", "PrincipalPool"]

_INPUT: Final = frozenset({"elicitation", "sampling", "roots"})  # capabilities of clients that a server may ask
_MAX_LEASED: Final = 64  # connections for calls and tasks whose clients a server of the handshake era may ask
_MAX_IDLE: Final = 4  # of these, without a call
_PASSED: Final = ("notifications/message", "notifications/elicitation/complete")  # notifications to the client in front
_Lease = tuple[str, bytes]  # principal, and capabilities of the client


class PrincipalPool(Struct, frozen=True, kw_only=True):
    """How the principals of one proxy share its connections."""

    shared: bool = False  # all principals use one connection; log messages of the server then reach none of them
    max_principals: int = 1000  # with a connection of their own; further ones are refused until one is idle
    idle_seconds: float = 300.0  # without a request, until the connection of a principal is closed


class _Followed(Struct, frozen=True):
    """A notification of the server that is handled whichever connection it arrives on."""

    name: str
    handler: Callable[[Any], object]
    of_principals: bool  # also on connections of principals


class Backends:
    """The connections to the server behind a proxy."""

    def __init__(
        self,
        target: BackendTarget,
        *,
        sessions: bool,
        on_connected: Callable[[bool], object],
        on_lost: Callable[[], object] | None = None,
        pool: PrincipalPool = PrincipalPool(),  # noqa: B008 - frozen
    ) -> None:
        """Without `sessions`, clients of the handshake era share the connections of the modern era where the server
        speaks it. `on_connected` is called with each connection of the catalog, `on_lost` when one is lost."""
        self._target = target
        self._pool = pool
        self._sweep: asyncio.TimerHandle | None = None  # the next search for idle connections
        self._sessions = sessions
        self._opens_sessions = sessions  # whether a session in front has a connection of its own
        self._session_backends: dict[Connection, Backend] = {}
        self._idle: dict[_Lease, list[Backend]] = {}
        self._leased: dict[Backend, Dialogue | TaskBehind] = {}
        self._retired: set[Backend] = set()  # of closed sessions whose tasks go on
        self._closing: set[asyncio.Task[None]] = set()
        self._followed: list[_Followed] = []
        self.catalog = Backend(
            target, target.revisions(target.newest), on_connected=on_connected, on_lost=on_lost, listens=True
        )
        self._shared = {"": self.catalog}  # by principal; that of anonymous clients reads the catalog as well
        self._watch(self.catalog, "")

    @property
    def modern(self) -> bool:
        """Whether the server speaks the modern era."""
        return self.catalog.modern

    def note_eras(self) -> None:
        """Note which eras the server speaks, once the catalog's connection is open."""
        handshake = not self.modern or any(map(self.speaks, self._handshake_revisions()))
        self._opens_sessions = handshake and (self._sessions or not self.modern)

    def speaks(self, revision: Revision) -> bool:
        """Return whether the server supports a revision of the handshake era, besides the modern era."""
        latest = self.catalog.runtime.latest
        allowed = revision in self._target.revisions(revision)
        return latest is not None and allowed and revision.value in latest.discovered_versions

    def _handshake_revisions(self, newest: Revision = NEWEST_HANDSHAKE) -> tuple[Revision, ...]:
        return tuple(one for one in self._target.revisions(newest) if one.era is Era.HANDSHAKE)

    def find(self, connection: Connection, call: IncomingRequest) -> Backend:
        """Return the connection for a call of a client in front, which may not be open yet."""
        if call.envelope is None and (found := self._session_backends.get(connection)) is not None:
            return found
        if call.envelope is None and self._has_session(connection):
            return self._open_session(connection, call.origin.principal)
        return self._find_shared(call.origin.principal)

    def announce_roots(self, session_id: int | None) -> None:
        """Tell the server that the roots of a session in front have changed."""
        for connection, backend in self._session_backends.items():
            if connection.number == session_id and backend.connection is not None:
                backend.connection.notify("notifications/roots/list_changed")

    def _has_session(self, connection: Connection) -> bool:
        return self._opens_sessions and not connection.channel.info.stateless

    def _open_session(self, connection: Connection, principal: Any) -> Backend:
        """Make the connection for a session, with the client's capabilities and up to its revision."""
        session = connection.session
        agreed = session.negotiated
        made = self._session_backends[connection] = Backend(
            self._target,
            self._handshake_revisions(session.effective_revision),
            info=session.peer,
            capabilities={} if agreed is None else agreed.client,
            answer=answer_by_request,
            front=connection,
        )
        self._watch(made, principal_name(principal))
        connection.close_callbacks = [*(connection.close_callbacks or ()), partial(self._close_session, connection)]
        return made

    def _close_session(self, connection: Connection) -> None:
        backend = self._session_backends.pop(connection, None)
        if backend is not None and backend.tasks:
            self._retired.add(backend)
        elif backend is not None:
            self._close_soon(backend)

    def _find_shared(self, caller: Any) -> Backend:
        """Return the connection of a principal, or that of all."""
        principal = "" if caller is None or self._pool.shared else principal_name(caller)
        found = self._shared.get(principal)
        if found is None:
            if len(self._shared) > self._pool.max_principals:
                self._close_idle(0.0)
            if len(self._shared) > self._pool.max_principals:
                raise NotNow("too many users have a connection to the server behind the proxy")
            self._schedule_sweep()
            newest = self._target.newest if self.modern else NEWEST_HANDSHAKE
            found = self._shared[principal] = Backend(self._target, self._target.revisions(newest))
            found.runtime.known_tools = self.catalog.runtime.known_tools  # for arguments that headers repeat
            self._watch(found, principal)
        return found

    def _schedule_sweep(self) -> None:
        if self._sweep is None:
            loop, seconds = asyncio.get_running_loop(), self._pool.idle_seconds
            self._sweep = loop.call_later(seconds, self._sweep_idle)

    def _sweep_idle(self) -> None:
        self._sweep = None
        self._close_idle(self._pool.idle_seconds)
        if len(self._shared) > 1:
            self._schedule_sweep()

    def _close_idle(self, seconds: float) -> None:
        """Close the connections of principals that have sent no request for some seconds."""
        due = self.catalog.runtime.now() - seconds
        for principal, backend in list(self._shared.items()):
            if principal and backend.idle and backend.idle_since <= due:
                del self._shared[principal]
                self._close_soon(backend)

    # --- leases ------------------------------------------------------------------------------------

    def needs_lease(self, call: IncomingRequest) -> bool:
        """Return whether a call is of a modern client that a server of the handshake era may ask."""
        envelope = call.envelope
        return envelope is not None and not _INPUT.isdisjoint(envelope.capabilities) and not self.modern

    def lease(self, front: FrontCall, binding: Any) -> Dialogue:
        """Return a call on a connection of its own, with the capabilities of its client. Raises `NotNow` if too many
        are in use."""
        call, envelope = front.call, front.call.envelope
        if envelope is None:
            raise NotNow("the call has no capabilities")
        encoded = b"" if envelope.encoded_capabilities is UNSET else bytes(envelope.encoded_capabilities)
        key = (principal_name(call.origin.principal), encoded)
        backend = self._take_idle(key, envelope.capabilities)
        dialogue = self._leased[backend] = Dialogue(backend, front, binding, lambda: self._release(key, backend))
        return dialogue

    def _take_idle(self, key: _Lease, capabilities: Any) -> Backend:
        if len(self._leased) >= _MAX_LEASED:
            raise NotNow("too many calls of the proxy wait for the server behind it")
        idle = self._idle.get(key)
        return idle.pop() if idle else self._make_leased(capabilities, key[0])

    def _make_leased(self, capabilities: Any, principal: str) -> Backend:
        revisions = self._handshake_revisions()
        declared = restrict_to_revision(capabilities, revisions[-1])
        made = Backend(self._target, revisions, capabilities=declared, answer=self._ask_dialogue)
        self._watch(made, principal)
        return made

    async def _ask_dialogue(
        self, backend: Backend, connection: ClientConnection, call: IncomingRequest, params: Any
    ) -> Any:
        dialogue = self._leased.get(backend)
        if dialogue is None:
            raise NotNow("no call of the proxy waits for an answer")
        return await dialogue.ask(connection, call, params)

    def _release(self, key: _Lease, backend: Backend) -> None:
        del self._leased[backend]
        idle = self._idle.setdefault(key, [])
        if backend.connection is not None and sum(map(len, self._idle.values())) < _MAX_IDLE:
            idle.append(backend)
        else:
            self._close_soon(backend)

    # --- tasks -----------------------------------------------------------------------------------------

    @contextmanager
    def task_connection(
        self, task: TaskBehind, principal: Any, capabilities: Mapping[str, Any], session: Connection | None
    ) -> Generator[Backend]:
        """Yield the connection for a task of a client in front, which may not be open yet. Where the server speaks the
        modern era, that is the one of the principal: its tasks belong to no session. Otherwise it is that of the
        client's `session`, and stays open until the task has ended. Without one, the connection has the capabilities of
        the client, if the server may ask it."""
        key = None
        if self.modern:
            backend = self._find_shared(principal)
        elif session is not None and session.close_reason is None and self._has_session(session):
            backend = self._session_backends.get(session) or self._open_session(session, principal)
        elif not _INPUT.isdisjoint(capabilities):
            key = (principal_name(principal), bytes(codec.to_raw(dict(capabilities))))
            backend = self._take_idle(key, capabilities)
            self._leased[backend] = task
        else:
            backend = self._find_shared(principal)
        backend.tasks.add(task)
        try:
            yield backend
        finally:
            backend.tasks.discard(task)
            backend.idle_since = backend.runtime.now()
            if key is not None:
                self._release(key, backend)
            elif backend in self._retired and not backend.tasks:
                self._retired.discard(backend)
                self._close_soon(backend)

    # --- notifications ---------------------------------------------------------------------------------

    def follow(self, name: str, handler: Callable[[Any], object], *, of_principals: bool) -> None:
        """Call a handler with the params of a notification, whichever connection it arrives on: many servers tell only
        the client whose call has changed something. `of_principals`: also on connections of principals."""
        self._followed.append(_Followed(name, handler, of_principals))
        self.catalog.runtime.notifications.on(name, handler)

    def _watch(self, backend: Backend, principal: str) -> None:
        notifications = backend.runtime.notifications
        notifications.on("notifications/tasks/status", partial(_pass_status, backend))
        for name in _PASSED:
            notifications.on(name, partial(self._pass_notification, backend))
        for one in self._followed:
            if one.of_principals or not principal:
                notifications.on(one.name, one.handler)

    def _pass_notification(self, backend: Backend, name: str, params: Any) -> None:
        """Send a notification of the server to the client in front: about its latest call, if it has one."""
        latest = backend.latest_call()
        connection = latest.connection if latest is not None else backend.front
        if connection is None or connection.close_reason is not None:
            return
        if self._pool.shared and latest is not None and latest.call.origin.principal is not None and not backend.front:
            return  # the server does not say for whose call it is
        if latest is not None and isinstance(params, LoggingMessageParams):
            wanted = connection.log_level_of(latest.call)
            if LOGGING_LEVELS.index(params.level) < wanted:
                return
        connection.notify(name, params, about=None if latest is None else latest.call)

    # --- closing -------------------------------------------------------------------------------------------

    def _close_soon(self, backend: Backend) -> None:
        task = asyncio.get_running_loop().create_task(backend.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        backends = [*self._shared.values(), *self._session_backends.values(), *self._leased, *self._retired]
        backends += [backend for idle in self._idle.values() for backend in idle]
        self._session_backends.clear()
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.gather(*(backend.close() for backend in backends), *self._closing, return_exceptions=True)


def _pass_status(backend: Backend, params: TaskStatusParams) -> None:
    """Pass the status message of a task behind to the task in front that follows it."""
    if (task := backend.find_task(params.task_id)) is not None:
        task.note_status(params.status_message)
