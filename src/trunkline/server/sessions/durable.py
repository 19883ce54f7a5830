"""Durable sessions: handshake-era sessions that outlive the process that serves them.

The session record holds all that another process needs to continue the session: the negotiated revision and
capabilities, the subscriptions, the log level and the principal. It is written when it changes, and a reply that
confirms a change leaves only after the change is stored. The time of last use is written now and then.

If a request names a session that this process does not hold, `DurableSessions.acquire` reads its record.
`DurableSession.restore` then rebuilds the session in this order: restore the subscriptions; answer the requests that
were in progress when the previous process died with an error, because their outcome is unknown; restore the negotiated
capabilities; start the session's expiry.

If several processes share a store, one of them holds the lease of a session (`lease.py`). Another process takes the
session over only after the holder has departed, and reads the record only after it has the lease, so the previous
holder cannot write any more.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from weakref import WeakValueDictionary

from msgspec import UNSET

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import Fenced, Interrupted, NotNow, StoreError, StoreUnavailable, StoreUnusable
from trunkline.facts import RestoreStep
from trunkline.protocol.capabilities import NegotiatedCapabilities
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import METHODS
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import LOGGING_LEVELS, Implementation, ResourceUpdatedParams
from trunkline.rpc.run_handler import DeferredResult, Work
from trunkline.server.access.owner_id import principal_name
from trunkline.server.call_peer import ConnectedPeer
from trunkline.server.sessions.event_log import DurableEventLog
from trunkline.server.sessions.lease import SessionLease, follow
from trunkline.server.sessions.quota import SessionQuota, unused_lifetime
from trunkline.server.sessions.record import RecordedCapabilities, SessionMetadata, SessionRecord, read_record
from trunkline.server.sessions.write_batcher import WriteBatcher
from trunkline.stores.store import Delete, Held, Lease, Store, key_of
from trunkline.transports.channel import MessageOrigin
from trunkline.transports.http.session.backend import EXPIRED, Expired, HeldElsewhere, RestoredStreams
from trunkline.transports.http.session.backend import StoredSession as KeptSeam
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, ErrorResponse, RequestId

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster

__all__ = ["DurableSession", "DurableSessions", "SessionConnection"]

_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # form of our session ids; the store is not asked about others
_RETENTION_FACTOR: Final = 2  # times `session_ttl`: life of a record, so that an expired session is recognised
# request ids reserved for each process that holds the session, so that no two use the same
_REQUEST_IDS_PER_PROCESS: Final = 1 << 20
_UPDATED: Final = "notifications/resources/updated"
_SUBSCRIBE: Final = next(row for row in METHODS if row.name == "resources/subscribe")
_PAGE_SIZE: Final = 500
_UNLIMITED_TTL: Final = 20 * 365 * 86400.0  # seconds: lease of a session that never expires


def _ended_during_restore() -> StoreUnavailable:
    return StoreUnavailable("the session ended while it was being restored; try again")


def _not_now_error() -> NotNow:
    return NotNow("the store is unavailable, so the session cannot be changed; try again later")


def _to_not_now(error: BaseException | None) -> BaseException | None:
    return _not_now_error() if isinstance(error, StoreUnavailable) else error


class SessionConnection(ConnectedPeer, Protocol):
    """Connection that serves a durable session: the state that the session stores and restores."""

    log_level: int
    last_call: IncomingRequest | None

    @property
    def session(self) -> Session: ...

    def subscribed_uris(self) -> list[str]: ...
    async def subscribe(self, uri: str) -> bool: ...
    def follow_caller(self) -> None: ...
    def broadcast(self, name: str, frame: Encoded, params: Any) -> None: ...
    def restore(
        self,
        revision: Revision,
        agreed: NegotiatedCapabilities,
        client: Implementation | None,
        *,
        complete: bool,
        profile: str | None = None,
    ) -> None: ...


class DurableSession:
    """A session whose state is stored while this process holds its lease."""

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
        self.connection: SessionConnection | None = None  # the connection that serves it
        self.owner = ""  # the principal as text
        self.dropping = False  # its data is being deleted, so lookups do not find it
        self.lease = lease
        lease.on_taken = self._handle_taken
        self._ident = ident
        self._settings = settings
        self._wall = wall
        self._batcher = batcher
        self._quota = quota
        self._quota_key: str | None = None  # of its entry in the quota of its principal
        self._used = False  # False until a message after the handshake arrives
        self._unused_lifetime = unused_lifetime(settings)
        self._created = wall.now()
        self._generation = 0
        self._previous_record: SessionRecord | None = None  # record that the previous holder has left
        self._taken_callback: Callable[[], None] | None = None  # called when another process has taken the session over
        self._change_lock = asyncio.Lock()  # held during a change that a request makes
        self._ending_subscriptions: set[str] = set()  # subscriptions that end once a record without them is stored
        self.events = DurableEventLog(lease, batcher, settings, self._expires_at)

    def _expires_at(self) -> float | None:
        ttl = self._settings.session_ttl
        if not self._used and self._unused_lifetime is not None:
            return self._wall.now() + self._unused_lifetime
        return None if ttl is None else self._wall.now() + _RETENTION_FACTOR * ttl

    # --- quota ---------------------------------------------------------------------------------

    async def claim_quota(self, principal: Any) -> bool:
        """Count the session against the quota of a principal. Return False if the quota is used up."""
        self._quota_key = self._quota.key_of_entry(self._ident, principal_name(principal))
        return self._quota_key is None or await self._quota.add(self._quota_key)

    # --- lease ---------------------------------------------------------------------------------

    def on_taken_over(self, callback: Callable[[], None]) -> None:
        """Set the callback for the moment when another process takes the session over. It runs at once if that has
        happened already."""
        self._taken_callback = callback
        if self.lease.ended:
            callback()

    def _handle_taken(self) -> None:
        self.events.fence()
        self.connection = None
        if self._taken_callback is not None:
            self._taken_callback()

    async def confirm_lease(self) -> bool:
        """Return whether this process still holds the lease."""
        return await self.lease.confirm()

    async def release(self) -> None:
        """Release the lease, so that another process can acquire the session."""
        self.events.close()
        await self.lease.release()

    # --- writing -------------------------------------------------------------------------------

    def touch(self) -> None:
        """Note that the session was used: write its record soon, and renew its lease and its quota entry."""
        self._used = True
        self.write_soon()
        self.lease.renew()
        if self._quota_key is not None:
            self._quota.renew(self._quota_key)

    def write_soon(self) -> None:
        """Write the record soon, without waiting for it."""
        self._write_with(self._batcher.put)

    def _write_with(self, write: Callable[..., "asyncio.Future[Any]"]) -> "asyncio.Future[Any] | None":
        """Write the record with a function of the write batcher. Return None if there is nothing to write, because the
        handshake has not been negotiated or the connection is closed."""
        connection = self.connection
        if connection is None or connection.session.negotiated is None:
            return None
        value = codec.to_json(self._build_record(connection))
        return write(self.lease, f"{self.lease.key}/record", value, self._expires_at())

    def _build_record(self, connection: SessionConnection) -> SessionRecord:
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
                profile=UNSET if session.profile is None else session.profile.name,
                log_level=LOGGING_LEVELS[connection.log_level],
                generation=self._generation,
                stream=self.events.newest_stream,
                event=self.events.last_event,
            ),
            capabilities=RecordedCapabilities(dict(agreed.server), dict(agreed.client)),
            subscriptions=[uri for uri in connection.subscribed_uris() if uri not in self._ending_subscriptions],
        )

    async def write(self) -> None:
        """Write the record and wait until it is stored. Raise `Fenced` if this process has lost the session."""
        if (write := self._write_with(self._batcher.put_or_fail)) is not None:
            await asyncio.shield(write)
        elif self.lease.ended:
            raise Fenced(self.lease.key, 0)

    def reply_after_write(self, reply: Any) -> Work:
        """Return a reply that leaves once the record is stored. If the store is unavailable, the reply is `NotNow`
        instead."""
        write = self._write_with(self._batcher.put_or_fail)
        return reply if write is None else DeferredResult(follow(write, _to_not_now), reply)

    async def unsubscribe(self, uri: str, end: Callable[[], Awaitable[object]]) -> None:
        """End a subscription after a record without it is stored; until then the client may not miss an update. Raise
        `NotNow` if the store is unavailable."""

        async def do() -> bool:
            connection = self.connection
            if connection is None or uri not in connection.subscribed_uris():
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
        """Change the session and wait until the change is stored; `do` returns whether there is anything to change. If
        the change cannot be stored, undo it, so that the reply agrees with the state in force. Raise `NotNow` if the
        store is unavailable. Changes of one session do not overlap."""
        async with self._change_lock:
            await self._apply_change(do, undo)

    async def _apply_change(self, do: Callable[[], Awaitable[bool]], undo: Callable[[], Awaitable[object]]) -> bool:
        """Make a change and store it, or undo it. Return whether there was anything to change."""
        try:
            if not await do():
                return False
            await self.write()
        except BaseException as error:
            if isinstance(error, StoreUnavailable | asyncio.CancelledError):
                await self._undo(undo)
            self.write_soon()  # the change may be half done, and the store may have written it despite the error
            if isinstance(error, StoreUnavailable):
                raise _not_now_error() from error
            raise
        return True

    async def _undo(self, undo: Callable[[], Awaitable[object]]) -> None:
        try:
            await undo()
        except Exception as error:  # noqa: BLE001 - from a subscription hook; the client learns that it may try again
            if self.connection is not None:
                self.connection.facts.report_crash("-", error)

    @property
    def pending_writes(self) -> "asyncio.Future[None] | None":
        """Future that is done when all changes so far are stored; None if they are."""
        return self._batcher.pending_writes(self.lease)

    async def delete(self) -> None:
        """Delete all data of the session, and release its lease and its quota entry."""
        self.connection = None
        self.dropping = True
        self.events.close()
        try:
            if (pending := self.pending_writes) is not None:
                await asyncio.wait([pending])
            while page := await self.lease.store.scan(f"{self.lease.key}/", limit=_PAGE_SIZE):
                await self.lease.commit([Delete(item.key) for item in page])
            await self.lease.release()
            if self._quota_key is not None:
                await self._quota.remove(self._quota_key)
        finally:
            self.dropping = False

    # --- restoring ------------------------------------------------------------------------------

    def load_record(self, record: SessionRecord) -> None:
        """Take over the record of the previous holder."""
        self._previous_record = record
        self._used = True
        self._created = record.created_at
        self.owner = record.metadata.principal
        self._generation = record.metadata.generation + 1
        self._quota_key = self._quota.key_of_entry(self._ident, self.owner)

    async def restore(self, principal: Any) -> RestoredStreams | None:
        """Rebuild the session from its record. Return None if its event log cannot be read."""
        connection, record = self.connection, self._previous_record
        if connection is None or record is None:
            raise _ended_during_restore()
        meta = record.metadata
        try:
            streams, pending = await self.events.load(meta.stream, meta.event)
        except StoreUnusable as error:
            connection.facts.report_crash("-", error)
            return None
        if not connection.session.allows(Signal.RECV_INITIALIZE):
            raise _ended_during_restore()
        connection.restore(
            Revision(meta.revision),
            NegotiatedCapabilities(record.capabilities.server, record.capabilities.client),
            meta.client,
            complete=meta.ready,
            profile=meta.profile or None,
        )
        connection.session.last_id = self._generation * _REQUEST_IDS_PER_PROCESS
        await self._restore_subscriptions(connection, record.subscriptions, principal)
        await self._fail_pending_requests(connection, pending)
        connection.log_level = LOGGING_LEVELS.index(meta.log_level)
        connection.facts.emit(RestoreStep, step="RestoreCapabilities")
        await self.write()
        if self._quota_key is not None:
            self._quota.renew(self._quota_key)
        connection.facts.emit(RestoreStep, step="StartMonitoring")
        return RestoredStreams(streams, self.events.newest_stream, self.events.delivered)

    async def _restore_subscriptions(self, connection: SessionConnection, uris: Sequence[str], principal: Any) -> None:
        call = IncomingRequest(
            id="going on", method=_SUBSCRIBE, started=connection.now(), origin=MessageOrigin(principal)
        )
        connection.last_call = call
        for uri in uris:
            try:
                if await self._may_subscribe(connection, call, uri):
                    await connection.subscribe(uri)
                    # updates may have been missed since the last holder died
                    connection.notify(_UPDATED, ResourceUpdatedParams(uri=uri))
            except Exception as error:  # noqa: BLE001 - from a subscription hook; the other subscriptions are restored
                connection.facts.report_failure(call, "-", error)
        connection.facts.emit(RestoreStep, step="RestoreSubscriptions")

    async def _may_subscribe(self, connection: SessionConnection, call: IncomingRequest, uri: str) -> bool:
        """Return whether the principal may still read a resource."""
        from trunkline.server.access.enforcement import is_permitted

        access = connection.catalog.access_rule_of(uri)
        if access is None:
            return True
        connection.follow_caller()  # a later caller of this session may have fewer rights
        return await is_permitted(connection, call, access)

    async def _fail_pending_requests(
        self, connection: SessionConnection, pending: dict[int, Sequence[RequestId]]
    ) -> None:
        """Answer the requests that were in progress with an error, and end their streams."""
        error = connection.session.error_object(Interrupted("the server was restarted while it worked on this request"))
        for stream, requests in pending.items():
            await self.events.load_stream(stream)
            for request in requests:
                self.events.append(stream, codec.encode(ErrorResponse(request, error)), None)
            self.events.end(stream)
        connection.facts.emit(RestoreStep, step="ReplayPending")


class DurableSessions:
    """The durable sessions of a server."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        wall: Clock,
        report_failure: Callable[[BaseException, str], None],
        cluster: "Cluster | None" = None,
    ) -> None:
        """`report_failure` reports an error, and what failed, to the observers. `cluster` is None if no other process
        can share the store."""
        self._store = store
        self._report_failure = report_failure
        self.batcher = WriteBatcher(lambda error: report_failure(error, "writing session data"))
        self._quota = SessionQuota(store, settings, wall)
        self._settings = settings
        self._wall = wall
        self._sessions: WeakValueDictionary[str, DurableSession] = WeakValueDictionary()
        # By session id, where no other process can share the store.
        self._unshared_leases: WeakValueDictionary[str, SessionLease] = WeakValueDictionary()
        self._drop_tasks: set[asyncio.Task[None]] = set()
        self._cluster = cluster
        self.membership = None if cluster is None else cluster.membership
        if cluster is not None:
            cluster.on_evicted(self._lose_leases)
            cluster.on_missed(self._check_lease_holders)

    @property
    def held_count(self) -> int:
        """The number of sessions whose lease this process holds."""
        return sum(not session.lease.ended for session in self._sessions.values())

    def delete_later(self, stored: KeptSeam) -> None:
        """Delete the data of an ended session in the background."""
        dropping = asyncio.get_running_loop().create_task(self._drop(stored))
        self._drop_tasks.add(dropping)
        dropping.add_done_callback(self._drop_tasks.discard)

    async def _drop(self, session: KeptSeam) -> None:
        with contextlib.suppress(StoreError):  # the remaining data expires
            await session.delete()

    def create(self, ident: str, lease: Lease | None = None, record: SessionRecord | None = None) -> DurableSession:
        """Create a session: for an `initialize` request, or from the record of one that another process has held, and
        under its lease."""
        session_lease = SessionLease(key_of("session", ident), self._store, self._cluster, self._ttl, lease)
        if self._cluster is None:
            session_lease = self._unshared_leases.setdefault(ident, session_lease)
        session = DurableSession(ident, session_lease, self.batcher, self._settings, self._wall, quota=self._quota)
        if record is not None:
            session.load_record(record)
        self._sessions[ident] = session
        return session

    @property
    def _ttl(self) -> float:
        ttl = self._settings.session_ttl
        return _UNLIMITED_TTL if ttl is None else _RETENTION_FACTOR * ttl

    def _lose_leases(self) -> None:
        """Give up all sessions, after this process was evicted: peers may hold them now."""
        for session in list(self._sessions.values()):
            session.lease.lose()

    def _check_lease_holders(self) -> None:
        """Give up the sessions held under a previous name of this process."""
        for session in list(self._sessions.values()):
            session.lease.check_holder()

    def attach(self, connection: SessionConnection, ident: str) -> DurableSession | None:
        """Return the session that a connection serves, with the connection attached to it."""
        session = self._sessions.get(ident)
        if session is not None:
            session.connection = connection
        return session

    def connection_of(self, ident: str) -> SessionConnection | None:
        """Return the connection that serves a session in this process, if any."""
        session = self._sessions.get(ident)
        return None if session is None else session.connection

    async def acquire(
        self, ident: str, principal: Any
    ) -> DurableSession | Literal[Expired.EXPIRED] | HeldElsewhere | None:
        """Acquire a session of a principal that another process has held. Return `Elsewhere` if another process holds
        it, `EXPIRED` or None if there is no such session."""
        if not _SESSION_ID.fullmatch(ident):
            return None
        record = await self._read_record(ident, principal)
        if not isinstance(record, SessionRecord):
            return record
        if self._cluster is None:
            return self.create(ident, record=record)
        lease = await self._cluster.acquire(key_of("session", ident), self._ttl)
        if isinstance(lease, Held):
            return HeldElsewhere(lease.holder)
        record = await self._read_record(ident, principal)  # read again, now that no other process can change it
        if not isinstance(record, SessionRecord):
            await self._store.release(lease)
            return record
        if not self._cluster.is_own_name(lease.holder):  # this process was evicted while it read
            return await self.acquire(ident, principal)
        return self.create(ident, lease, record)

    async def _read_record(self, ident: str, principal: Any) -> SessionRecord | Literal[Expired.EXPIRED] | None:
        """Read the record of a session of a principal."""
        item = await self._store.get(f"{key_of('session', ident)}/record")
        held = self._sessions.get(ident)
        if item is None or (held is not None and held.dropping):
            return None
        try:
            record = read_record(item.value)
        except StoreUnusable as error:
            self._report_failure(error, "reading a session record")
            return None
        if record.id != ident or record.metadata.principal != principal_name(principal):
            return None
        ttl = self._settings.session_ttl
        if ttl is not None and self._wall.now() - record.last_accessed >= ttl:
            return EXPIRED
        return record

    async def close(self) -> None:
        """Wait until all pending writes are stored."""
        await self.batcher.close()
        if self._drop_tasks:
            await asyncio.wait(self._drop_tasks)
        await self._quota.close()
