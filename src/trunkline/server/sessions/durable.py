"""Sessions that outlive the process which held them.

Of a session of the handshake era everything is written down that makes it usable again: what was agreed upon in the
handshake, what its client wants to hear of, whose it is. It is written when it changes, and what a client is told by an
answer is kept before the answer leaves. That a session was used is written every now and then.

A request with the id of a session that this process does not know has it looked up. Its conversation is made what it
was, in this order: it hears of its resources again; what was being worked on when the process died is answered, with
the one thing that is known of it, that its outcome is unknown; what was agreed upon holds; and its time runs.

Where several processes share a store, each session is held by one of them (`holding.py`). Another takes it only when
that one is gone, and reads what is kept of it only then: nothing is written any more by whoever held it before.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakValueDictionary

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import Fenced, Interrupted, NotNow, StoreError, StoreUnavailable, StoreUnusable
from trunkline.facts import HandlerFailed, Observers, RestoreStep
from trunkline.protocol.capabilities import NegotiatedCapabilities
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.methods import METHODS
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import LOGGING_LEVELS, ResourceUpdatedParams
from trunkline.rpc.run_handler import DeferredResult, Work
from trunkline.server.access.owner_id import principal_name
from trunkline.server.sessions.event_log import DurableEventLog
from trunkline.server.sessions.lease import SessionLease
from trunkline.server.sessions.quota import QuotaEntry, SessionQuota, unused_lifetime
from trunkline.server.sessions.record import RecordedCapabilities, SessionMetadata, SessionRecord, read_record
from trunkline.server.sessions.write_batcher import WriteBatcher
from trunkline.stores.store import Delete, Lease, Store, key_of
from trunkline.transports.channel import MessageOrigin
from trunkline.transports.http.session.backend import EXPIRED, Expired, HeldElsewhere, RestoredStreams
from trunkline.transports.http.session.backend import StoredSession as KeptSeam
from trunkline.wire import codec
from trunkline.wire.messages import ErrorResponse, RequestId

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.connection import Connection

__all__ = ["DurableSession", "DurableSessions"]

_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # what our ids look like; nothing else is looked up
_RETENTION_FACTOR: Final = (
    2  # times the time that a session may be unused: for so long it can be told that it has expired
)
_REQUEST_IDS_PER_PROCESS: Final = 1 << 20  # ids of requests of ours that one process may use up; no two use the same
_UPDATED: Final = "notifications/resources/updated"
_SUBSCRIBE: Final = next(row for row in METHODS if row.name == "resources/subscribe")
_PAGE_SIZE: Final = 500
_UNLIMITED_TTL: Final = 20 * 365 * 86400.0  # seconds that a session is held which never expires


def _not_now_error() -> NotNow:
    return NotNow("the store is unavailable, so the session cannot be changed; try again later")


def _raise_not_now_if_unavailable(write: "asyncio.Future[Any]") -> "asyncio.Future[None]":
    """A future for when something is kept; it raises `NotNow` if the store is unavailable."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(_: "asyncio.Future[Any]") -> None:
        error = write.exception()
        if told.done():
            return
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(_not_now_error() if isinstance(error, StoreUnavailable) else error)
            told.exception()  # the call may have ended meanwhile

    write.add_done_callback(settle)
    return told


class DurableSession:
    """One session."""

    def __init__(
        self,
        ident: str,
        lease: SessionLease,
        batcher: WriteBatcher,
        settings: Settings,
        wall: Clock,
        *,
        quota: SessionQuota,
    ) -> None:
        self.connection: Connection | None = None  # who holds it now
        self.owner = ""  # the principal, in letters
        self.dropping = False  # for good: nobody finds it any more
        self.lease = lease
        lease.on_taken = self._handle_taken
        self._ident = ident
        self._key_prefix = lease.key
        self._record_key = f"{self._key_prefix}/record"
        self._settings = settings
        self._wall = wall
        self._batcher = batcher
        self._quota = quota
        self._quota_entry: QuotaEntry | None = None  # among those of its principal
        self._used = False  # nothing but its handshake was posted in it
        self._unused_lifetime = unused_lifetime(settings)
        self._created = wall.now()
        self._generation = 0
        self._previous_record: SessionRecord | None = None  # what another process has left
        self._taken_callback: Callable[[], None] | None = None  # that yet another has taken it
        self._change_lock = asyncio.Lock()  # of changes that requests ask for
        self._ending_subscriptions: set[str] = set()  # subscriptions that end when it is kept that they have
        self.events = DurableEventLog(lease, batcher, settings, self._expires_at)

    def _expires_at(self) -> float | None:
        ttl = self._settings.session_ttl
        if not self._used and self._unused_lifetime is not None:
            return self._wall.now() + self._unused_lifetime
        return None if ttl is None else self._wall.now() + _RETENTION_FACTOR * ttl

    # --- counting ------------------------------------------------------------------------------

    async def claim_quota(self, principal: Any) -> bool:
        """Counts it among the sessions of a principal, if there may be one more."""
        self._quota_entry = self._quota.entry(self._ident, principal_name(principal))
        return self._quota_entry is None or await self._quota_entry.add()

    # --- holding -------------------------------------------------------------------------------

    def on_taken_over(self, callback: Callable[[], None]) -> None:
        """Names who is told when another process has taken it."""
        self._taken_callback = callback
        if self.lease.ended:  # meanwhile
            callback()

    def _handle_taken(self) -> None:
        self.events.fence()
        self.connection = None
        if self._taken_callback is not None:
            self._taken_callback()

    async def confirm_lease(self) -> bool:
        """Whether this process still holds it."""
        return await self.lease.confirm()

    async def release(self) -> None:
        """Leaves it to whoever finds it next."""
        self.events.close()
        await self.lease.release()

    # --- writing -------------------------------------------------------------------------------

    def touch(self) -> None:
        """It was used now: that is written down soon, and it is held for longer."""
        self._used = True
        self.write_soon()
        self.lease.renew()
        if self._quota_entry is not None:
            self._quota_entry.renew()

    def write_soon(self) -> None:
        """It has changed: it is written down as it is, soon."""
        if (connection := self._negotiated_connection) is not None:
            self._batcher.put(
                self.lease, self._record_key, codec.to_json(self._build_record(connection)), self._expires_at()
            )

    @property
    def _negotiated_connection(self) -> "Connection | None":
        """The conversation, if there is one to come back to."""
        connection = self.connection
        return None if connection is None or connection.session.negotiated is None else connection

    def _build_record(self, connection: "Connection") -> SessionRecord:
        session, ttl = connection.session, self._settings.session_ttl
        agreed = session.negotiated or NegotiatedCapabilities({}, {})
        return SessionRecord(
            id=self._ident,
            created_at=self._created,
            last_accessed=self._wall.now(),
            timeout_ms=None if ttl is None else round(ttl * 1000),
            metadata=SessionMetadata(
                principal=self.owner,
                revision=session.effective_revision.value,
                ready=session.phase is not Phase.INITIALIZING,
                client=session.peer,
                log_level=LOGGING_LEVELS[connection.log_level],
                generation=self._generation,
                stream=self.events.newest_stream,
                event=self.events.last_event,
            ),
            capabilities=RecordedCapabilities(dict(agreed.server), dict(agreed.client)),
            subscriptions=[
                uri
                for uri in connection.shared.subscription_hooks.subscriptions.uris(connection)
                if uri not in self._ending_subscriptions
            ],
        )

    def _begin_write(self) -> "asyncio.Future[Any] | None":
        """What is done when it is kept as it is now; None if there is nothing to be kept."""
        if (connection := self._negotiated_connection) is None:
            return None
        return self._batcher.put_or_fail(
            self.lease, self._record_key, codec.to_json(self._build_record(connection)), self._expires_at()
        )

    async def write(self) -> None:
        """Waits until it is kept as it is now."""
        if (keeping := self._begin_write()) is not None:
            await asyncio.shield(keeping)
        elif self.lease.ended:
            raise Fenced(self._key_prefix, 0)

    def reply_after_write(self, reply: Any) -> Work:
        """An answer, once what it says is kept. If the store is unavailable, `NotNow` is answered instead."""
        keeping = self._begin_write()
        return reply if keeping is None else DeferredResult(_raise_not_now_if_unavailable(keeping), reply)

    async def unsubscribe(self, uri: str, end: Callable[[], Awaitable[object]]) -> None:
        """End a subscription when it is kept that there is none: until then, its client may not miss an update. Raise
        `NotNow` if the store is unavailable."""

        async def do() -> bool:
            connection = self.connection
            if connection is None or uri not in connection.shared.subscription_hooks.subscriptions.uris(connection):
                return False
            self._ending_subscriptions.add(uri)
            return True

        async def undo() -> None:
            self._ending_subscriptions.discard(uri)

        async with self._change_lock:
            if await self._apply_change(do, undo):
                self._ending_subscriptions.discard(uri)
                await end()

    async def change(self, do: Callable[[], Awaitable[bool]], undo: Callable[[], Awaitable[object]]) -> None:
        """Change the session, and wait until that is kept; `do` returns whether there is anything to change. If it
        cannot be kept, undo it, so that the answer agrees with what is in force; raise `NotNow` if the store is
        unavailable. Changes of one session do not overlap."""
        async with self._change_lock:
            await self._apply_change(do, undo)

    async def _apply_change(self, do: Callable[[], Awaitable[bool]], undo: Callable[[], Awaitable[object]]) -> bool:
        """Make a change and keep it, or undo it; return whether there was anything to change."""
        try:
            if not await do():
                return False
            await self.write()
        except BaseException as error:
            if isinstance(error, StoreUnavailable | asyncio.CancelledError):
                await self._undo(undo)
            self.write_soon()  # half of it may be done; and the store may have kept it all the same
            if isinstance(error, StoreUnavailable):
                raise _not_now_error() from error
            raise
        return True

    async def _undo(self, undo: Callable[[], Awaitable[object]]) -> None:
        try:
            await undo()
        except Exception as error:  # noqa: BLE001 - of a watcher; the client is told that it may try again
            if self.connection is not None:
                self.connection.facts.report_crash("-", error)

    @property
    def pending_writes(self) -> "asyncio.Future[None] | None":
        """What is done when all that has changed is kept; None if it is."""
        return self._batcher.pending_writes(self.lease)

    async def delete(self) -> None:
        """Keeps nothing of it any more."""
        self.connection = None
        self.dropping = True
        self.events.close()
        try:
            if (unsettled := self.pending_writes) is not None:
                await asyncio.wait([unsettled])
            while page := await self.lease.store.scan(f"{self._key_prefix}/", limit=_PAGE_SIZE):
                await self.lease.commit([Delete(item.key) for item in page])
            await self.lease.release()
            if self._quota_entry is not None:
                await self._quota_entry.remove()
        finally:
            self.dropping = False

    # --- going on ------------------------------------------------------------------------------

    def load_record(self, record: SessionRecord) -> None:
        """Another process has held it, and this is how it left it."""
        self._previous_record = record
        self._used = True
        self._created = record.created_at
        self.owner = record.metadata.principal
        self._generation = record.metadata.generation + 1
        self._quota_entry = self._quota.entry(self._ident, self.owner)

    async def restore(self, principal: Any) -> RestoredStreams | None:
        """Makes its conversation what it was; None if it cannot be read what that is."""
        connection, record = self.connection, self._previous_record
        if connection is None or record is None:
            raise StoreUnavailable("the session has ended meanwhile")
        meta = record.metadata
        try:
            streams, pending = await self.events.load(meta.stream, meta.event)
        except StoreUnusable as error:
            connection.facts.report_crash("-", error)
            return None
        connection.restore(
            Revision(meta.revision),
            NegotiatedCapabilities(record.capabilities.server, record.capabilities.client),
            meta.client,
            complete=meta.ready,
        )
        connection.session.last_id = self._generation * _REQUEST_IDS_PER_PROCESS
        await self._restore_subscriptions(connection, record.subscriptions, principal)
        await self._fail_pending_requests(connection, pending)
        connection.log_level = LOGGING_LEVELS.index(meta.log_level)
        connection.facts.emit(RestoreStep, step="RestoreCapabilities")
        await self.write()
        if self._quota_entry is not None:
            self._quota_entry.renew()
        connection.facts.emit(RestoreStep, step="StartMonitoring")
        return RestoredStreams(streams, self.events.newest_stream, self.events.delivered)

    async def _restore_subscriptions(self, connection: "Connection", uris: Sequence[str], principal: Any) -> None:
        call = IncomingRequest(
            id="going on", method=_SUBSCRIBE, started=connection.now(), origin=MessageOrigin(principal)
        )
        connection.last_call = call
        for uri in uris:
            try:
                if await self._may_subscribe(connection, call, uri):
                    await connection.shared.subscription_hooks.subscribe(uri, connection)
                    connection.notify(_UPDATED, ResourceUpdatedParams(uri=uri))  # nobody watched meanwhile
            except Exception as error:  # noqa: BLE001 - a watcher's; the others go on
                connection.facts.report_failure(call, "-", error)
        connection.facts.emit(RestoreStep, step="RestoreSubscriptions")

    async def _may_subscribe(self, connection: "Connection", call: IncomingRequest, uri: str) -> bool:
        """Whether who comes back may still have a resource."""
        from trunkline.server.access.enforcement import is_permitted

        access = connection.catalog.access_rule_of(uri)
        if access is None:
            return True
        connection.track_current_call()  # who calls later may be somebody with less rights
        return await is_permitted(connection, call, access)

    async def _fail_pending_requests(self, connection: "Connection", pending: dict[int, Sequence[RequestId]]) -> None:
        """Ends the streams of what was being worked on."""
        error = connection.session.error_object(Interrupted("the server was restarted while it worked on this request"))
        for stream, requests in pending.items():
            await self.events.load_stream(stream)
            for request in requests:
                self.events.append(stream, codec.encode(ErrorResponse(request, error)), None)
            self.events.end(stream)
        connection.facts.emit(RestoreStep, step="ReplayPending")


class DurableSessions:
    """Keeps the sessions of a server."""

    def __init__(
        self, store: Store, settings: Settings, wall: Clock, observers: Observers, cluster: "Cluster | None" = None
    ) -> None:
        """`crew` are the others that share the store, if there can be any."""
        self._store = store
        self._observers = observers
        self._batcher = WriteBatcher(partial(self._report_failure, "what is kept of sessions"))
        self._quota = SessionQuota(store, settings, wall)
        self._settings = settings
        self._wall = wall
        self._sessions: WeakValueDictionary[str, DurableSession] = WeakValueDictionary()
        self._unshared_leases: WeakValueDictionary[str, SessionLease] = (
            WeakValueDictionary()
        )  # where there are no others
        self._drop_tasks: set[asyncio.Task[None]] = set()
        self._cluster = cluster
        if cluster is not None:
            cluster.on_evicted(self._lose_leases)
            cluster.on_missed(self._check_lease_holders)

    def create(self, ident: str) -> DurableSession:
        """A session that a client is about to open."""
        return self._create(ident, None)

    def delete_later(self, stored: KeptSeam) -> None:
        """A session has ended by itself. Soon nothing of it is kept any more."""
        dropping = asyncio.get_running_loop().create_task(self._drop(stored))
        self._drop_tasks.add(dropping)
        dropping.add_done_callback(self._drop_tasks.discard)

    async def _drop(self, session: KeptSeam) -> None:
        with contextlib.suppress(StoreError):  # what is left of it expires
            await session.delete()

    def _create(self, ident: str, lease: Lease | None) -> DurableSession:
        holding = SessionLease(key_of("session", ident), self._store, self._cluster, self._ttl, lease)
        if self._cluster is None:
            holding = self._unshared_leases.setdefault(ident, holding)
        kept = DurableSession(ident, holding, self._batcher, self._settings, self._wall, quota=self._quota)
        self._sessions[ident] = kept
        return kept

    @property
    def _ttl(self) -> float:
        ttl = self._settings.session_ttl
        return _UNLIMITED_TTL if ttl is None else _RETENTION_FACTOR * ttl

    @property
    def lease_valid_until(self) -> float:
        """Until when no other process can have taken what this one holds."""
        return inf if self._cluster is None else self._cluster.lease_valid_until

    def _lose_leases(self) -> None:
        """This process was taken for dead, and others may hold what it held."""
        for kept in list(self._sessions.values()):
            kept.lease.lose()

    def _check_lease_holders(self) -> None:
        """This process may have another name than before."""
        for kept in list(self._sessions.values()):
            kept.lease.check_holder()

    def attach(self, connection: "Connection", ident: str) -> DurableSession | None:
        """What is kept of the session that a connection is for."""
        kept = self._sessions.get(ident)
        if kept is not None:
            kept.connection = connection
        return kept

    def connection_of(self, ident: str) -> "Connection | None":
        """The connection that a session has in this process, if it has one."""
        kept = self._sessions.get(ident)
        return None if kept is None else kept.connection

    @property
    def urgent_writes(self) -> "asyncio.Future[None] | None":
        """What is done when all that clients have yet to hear of, in whatever session, is kept; None if it is."""
        return self._batcher.urgent_writes

    async def acquire(
        self, ident: str, principal: Any
    ) -> DurableSession | Literal[Expired.EXPIRED] | HeldElsewhere | None:
        """A session of that principal's that another process has held, or does."""
        if not _SESSION_ID.fullmatch(ident):
            return None
        found = await self._read_record(ident, principal)
        if not isinstance(found, SessionRecord):
            return found
        if self._cluster is None:
            return self._resume(ident, None, found)
        lease = await self._acquire_lease(key_of("session", ident), self._cluster)
        if not isinstance(lease, Lease):
            return lease
        found = await self._read_record(ident, principal)  # as it is now that nobody else can change it
        if not isinstance(found, SessionRecord):
            await self._store.release(lease)
            return found
        if lease.holder != self._cluster.name:  # that one was declared dead meanwhile
            return await self.acquire(ident, principal)
        return self._resume(ident, lease, found)

    async def _read_record(self, ident: str, principal: Any) -> SessionRecord | Literal[Expired.EXPIRED] | None:
        """What is kept of a session of that principal's."""
        item = await self._store.get(f"{key_of('session', ident)}/record")
        held = self._sessions.get(ident)
        if item is None or (held is not None and held.dropping):
            return None
        try:
            record = read_record(item.value)
        except StoreUnusable as error:
            self._report_failure("a kept session", error)
            return None
        if record.id != ident or record.metadata.principal != principal_name(principal):
            return None
        ttl = self._settings.session_ttl
        if ttl is not None and self._wall.now() - record.last_accessed >= ttl:
            return EXPIRED
        return record

    async def _acquire_lease(self, key: str, cluster: "Cluster") -> Lease | HeldElsewhere:
        """The right to a session, or who has it and is not gone."""
        given = await self._store.acquire(key, cluster.name, self._ttl)
        if not isinstance(given, Lease) and await cluster.evict_if_dead(given.holder):
            given = await self._store.acquire(key, cluster.name, self._ttl, over=given.token)
        return given if isinstance(given, Lease) else HeldElsewhere(given.holder)

    def _resume(self, ident: str, lease: Lease | None, record: SessionRecord) -> DurableSession:
        kept = self._create(ident, lease)
        kept.load_record(record)
        return kept

    def _report_failure(self, operation: str, error: BaseException) -> None:
        if self._observers.hear_failures:
            at = asyncio.get_running_loop().time()
            self._observers.on(
                HandlerFailed(connection=0, at=at, request=None, method=operation, reference="-", error=error)
            )

    async def close(self) -> None:
        """Writes what is left to be written."""
        await self._batcher.close()
        if self._drop_tasks:
            await asyncio.wait(self._drop_tasks)
        await self._quota.close()
