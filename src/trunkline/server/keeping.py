"""Sessions that outlive the process which held them.

Of a session of the handshake era everything is written down that makes it usable again: what was agreed upon in the
handshake, what its client wants to hear of, whose it is. It is written when it changes, and what a client is told by an
answer is kept before the answer leaves. That a session was used is written every now and then.

A request with the id of a session that this process does not know has it looked up. Its conversation is made what it
was, in this order: it hears of its resources again; what was being worked on when the process died is answered, with
the one thing that is known of it, that its outcome is unknown; what was agreed upon holds; and its time runs.
"""

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakValueDictionary

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.conversation.drive import After, Work
from trunkline.errors import InternalError, StoreUnavailable, StoreUnusable
from trunkline.facts import HandlerFailed, Observers, RestoreStep
from trunkline.protocol.capabilities import Negotiated
from trunkline.protocol.inflight import Running
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.methods import METHODS
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import LOGGING_LEVELS, ResourceUpdatedParams
from trunkline.server.gathering import Gathering
from trunkline.server.kept_events import KeptEvents
from trunkline.server.records import Agreed, Metadata, SessionRecord, read_record
from trunkline.server.rounds import named
from trunkline.stores.store import Delete, Store, key_of
from trunkline.transports.channel import Origin
from trunkline.transports.http.keeper import EXPIRED, Expired, Revived
from trunkline.wire import codec
from trunkline.wire.messages import ErrorResponse, RequestId

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["Keeper", "KeptSession"]

_OURS: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # what our ids look like; nothing else is looked up
_REMEMBERED: Final = 2  # times the time that a session may be unused: for so long it can be told that it has expired
_REQUESTS: Final = 1 << 20  # ids of requests of ours that one process may use up; no two use the same
_UPDATED: Final = "notifications/resources/updated"
_SUBSCRIBE: Final = next(row for row in METHODS if row.name == "resources/subscribe")
_PAGE: Final = 500


class Interrupted(InternalError):
    """What is said of a request whose answer died with the process that worked on it."""

    kind = "outcome_unknown"

    def __init__(self) -> None:
        super().__init__("the server was restarted while it worked on this request: whether it was done is not known")


class KeptSession:
    """One session."""

    def __init__(self, ident: str, store: Store, gathering: Gathering, settings: Settings, wall: Clock) -> None:
        self.connection: Connection | None = None  # who holds it now
        self.owner = ""  # the principal, in letters
        self.ending = False  # for good: nobody finds it any more
        self._ident = ident
        self._home = key_of("session", ident)
        self._key = f"{self._home}/record"
        self._store = store
        self._settings = settings
        self._wall = wall
        self._gathering = gathering
        self._created = wall.now()
        self._generation = 0
        self._found: SessionRecord | None = None  # what another process has left
        self.events = KeptEvents(self._home, store, gathering, settings, self._expires)

    def _expires(self) -> float | None:
        ttl = self._settings.session_ttl
        return None if ttl is None else self._wall.now() + _REMEMBERED * ttl

    # --- writing -------------------------------------------------------------------------------

    def touch(self) -> None:
        """It was used now, or has changed: it is written down as it is, soon."""
        if (connection := self._standing) is not None:
            self._gathering.put(self._key, codec.to_json(self._record(connection)), self._expires())

    @property
    def _standing(self) -> "Connection | None":
        """The conversation, if there is one to come back to."""
        connection = self.connection
        return None if connection is None or connection.session.negotiated is None else connection

    def _record(self, connection: "Connection") -> SessionRecord:
        session, ttl = connection.session, self._settings.session_ttl
        agreed = session.negotiated or Negotiated({}, {})
        return SessionRecord(
            id=self._ident,
            created_at=self._created,
            last_accessed=self._wall.now(),
            timeout_ms=None if ttl is None else round(ttl * 1000),
            metadata=Metadata(
                principal=self.owner,
                revision=session.spoken.value,
                ready=session.phase is not Phase.INITIALIZING,
                client=session.peer,
                log_level=LOGGING_LEVELS[connection.log_level],
                generation=self._generation,
                stream=self.events.newest,
                event=self.events.last,
            ),
            capabilities=Agreed(dict(agreed.server), dict(agreed.client)),
            subscriptions=connection.shared.watchers.subscriptions.uris(connection),
        )

    def _keep(self) -> "asyncio.Future[Any] | None":
        """What is done when it is kept as it is now; None if there is nothing to be kept."""
        if (connection := self._standing) is None:
            return None
        return self._gathering.keep(self._key, codec.to_json(self._record(connection)), self._expires())

    async def keep(self) -> None:
        """Waits until it is kept as it is now."""
        if (keeping := self._keep()) is not None:
            await asyncio.shield(keeping)

    def kept(self, answer: Any) -> Work:
        """An answer, once what it says is kept."""
        keeping = self._keep()
        return answer if keeping is None else After(keeping, answer)

    @property
    def unsettled(self) -> "asyncio.Future[None] | None":
        """What is done when all that has changed is kept; None if it is."""
        return self._gathering.unsettled(self._home)

    async def drop(self) -> None:
        """Keeps nothing of it any more."""
        self.connection = None
        self.ending = True
        self.events.close()
        try:
            if (unsettled := self.unsettled) is not None:
                await asyncio.wait([unsettled])
            while page := await self._store.scan(f"{self._home}/", limit=_PAGE):
                await self._store.commit([Delete(item.key) for item in page])
        finally:
            self.ending = False

    # --- going on ------------------------------------------------------------------------------

    def found(self, record: SessionRecord) -> None:
        """Another process has held it, and this is how it left it."""
        self._found = record
        self._created = record.created_at
        self.owner = record.metadata.principal
        self._generation = record.metadata.generation + 1

    async def revive(self, principal: Any) -> Revived | None:
        """Makes its conversation what it was; None if it cannot be read what that is."""
        connection, record = self.connection, self._found
        if connection is None or record is None:
            raise StoreUnavailable("the session has ended meanwhile")
        meta = record.metadata
        try:
            streams, pending = await self.events.load(meta.stream, meta.event)
        except StoreUnusable as error:
            connection.report_crash("-", error)
            return None
        connection.restore(
            Revision(meta.revision),
            Negotiated(record.capabilities.server, record.capabilities.client),
            meta.client,
            complete=meta.ready,
        )
        connection.session.last_id = self._generation * _REQUESTS
        await self._subscribe(connection, record.subscriptions, principal)
        await self._answer(connection, pending)
        connection.log_level = LOGGING_LEVELS.index(meta.log_level)
        connection.tell(RestoreStep, step="RestoreCapabilities")
        await self.keep()
        connection.tell(RestoreStep, step="StartMonitoring")
        return Revived(streams, self.events.newest, self.events.read)

    async def _subscribe(self, connection: "Connection", uris: Sequence[str], principal: Any) -> None:
        call = Running(id="going on", method=_SUBSCRIBE, started=connection.now(), origin=Origin(principal))
        connection.last_call = call
        for uri in uris:
            try:
                if await self._may_hear(connection, call, uri):
                    await connection.shared.watchers.started(uri, connection)
                    connection.notify(_UPDATED, ResourceUpdatedParams(uri=uri))  # nobody watched meanwhile
            except Exception as error:  # noqa: BLE001 - a watcher's; the others go on
                connection.report_failure(call, "-", error)
        connection.tell(RestoreStep, step="RestoreSubscriptions")

    async def _may_hear(self, connection: "Connection", call: Running, uri: str) -> bool:
        """Whether who comes back may still have a resource."""
        from trunkline.server.admission import may_have

        access = connection.offer.rule_of(uri)
        if access is None:
            return True
        connection.mark_calls()  # who calls later may be somebody with less rights
        return await may_have(connection, call, access)

    async def _answer(self, connection: "Connection", pending: dict[int, Sequence[RequestId]]) -> None:
        """Ends the streams of what was being worked on."""
        error = connection.session.error_object(Interrupted())
        for stream, requests in pending.items():
            await self.events.recall(stream)
            for request in requests:
                self.events.append(stream, codec.encode(ErrorResponse(request, error)), None)
            self.events.end(stream)
        connection.tell(RestoreStep, step="ReplayPending")


class Keeper:
    """Keeps the sessions of a server."""

    def __init__(self, store: Store, settings: Settings, wall: Clock, observers: Observers) -> None:
        self._store = store
        self._observers = observers
        self._gathering = Gathering(store, partial(self._report, "what is kept of sessions"))
        self._settings = settings
        self._wall = wall
        self._held: WeakValueDictionary[str, KeptSession] = WeakValueDictionary()

    def opened(self, ident: str) -> KeptSession:
        """A session that a client is about to open."""
        kept = self._held[ident] = KeptSession(ident, self._store, self._gathering, self._settings, self._wall)
        return kept

    def held_by(self, connection: "Connection", ident: str) -> KeptSession | None:
        """What is kept of the session that a connection is for."""
        kept = self._held.get(ident)
        if kept is not None:
            kept.connection = connection
        return kept

    def connection_of(self, ident: str) -> "Connection | None":
        """The connection that a session has in this process, if it has one."""
        kept = self._held.get(ident)
        return None if kept is None else kept.connection

    @property
    def news(self) -> "asyncio.Future[None] | None":
        """What is done when all that clients have yet to hear of, in whatever session, is kept; None if it is."""
        return self._gathering.urgent

    async def find(self, ident: str, principal: Any) -> KeptSession | Literal[Expired.EXPIRED] | None:
        """A session of that principal's that another process has held."""
        if not _OURS.fullmatch(ident):
            return None
        item = await self._store.get(f"{key_of('session', ident)}/record")
        held = self._held.get(ident)
        if item is None or (held is not None and held.ending):
            return None
        try:
            record = read_record(item.value)
        except StoreUnusable as error:
            self._report("a kept session", error)
            return None
        if record.id != ident or record.metadata.principal != named(principal):
            return None
        ttl = self._settings.session_ttl
        if ttl is not None and self._wall.now() - record.last_accessed >= ttl:
            return EXPIRED
        kept = self.opened(ident)
        kept.found(record)
        return kept

    def _report(self, what: str, error: BaseException) -> None:
        if self._observers.hear_failures:
            at = asyncio.get_running_loop().time()
            self._observers.on(
                HandlerFailed(connection=0, at=at, request=None, method=what, reference="-", error=error)
            )

    async def close(self) -> None:
        """Writes what is left to be written."""
        await self._gathering.close()
