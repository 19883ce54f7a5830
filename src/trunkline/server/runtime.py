"""What a server has open while it serves: who is on the line, what they hear of, what is kept for them.

All of it is made on one event loop, when it is first needed, and ended there, stage by stage; `shutdown.py` has the
order. Then a server can serve again, on another loop if need be.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec import Struct

from trunkline.clock import Clock, LoopClock, WallClock
from trunkline.errors import MisuseError
from trunkline.facts import HandlerFailed, Observers
from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import METHODS
from trunkline.protocol.types import Empty
from trunkline.rpc.dispatch import Dispatcher
from trunkline.rpc.threads import Threads
from trunkline.server.catalog import Offer
from trunkline.server.connection import Connection, KeptConnection, Shared
from trunkline.server.connections import Peers
from trunkline.server.input.multi_round import Seals
from trunkline.server.limits.tool_limits import Predicates
from trunkline.server.notifications.debounce import CHANGES, Announcer
from trunkline.server.notifications.listen import Listeners, Listening
from trunkline.server.notifications.resource_updates import Updates
from trunkline.server.notifications.subscription_hooks import Watchers
from trunkline.server.server_store import OwnStore
from trunkline.server.tasks.recovery import Recovery
from trunkline.server.tasks.service import Tasks
from trunkline.transports.channel import Channel, Listener
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Crew
    from trunkline.server.cluster.notifications import News
    from trunkline.server.files.watch import FileWatch
    from trunkline.server.health_checks import Checks
    from trunkline.server.idempotency.ledger import Ledger
    from trunkline.server.input.state_keys import SealKeys
    from trunkline.server.lifespan import Lifespan
    from trunkline.server.limits.shared_semaphore import Slots
    from trunkline.server.sessions.durable import Keeper
    from trunkline.stores.store import Store

__all__ = ["Parts", "Serving"]

_log: Final = logging.getLogger("trunkline")
_LISTS: Final = frozenset(CHANGES.values())
_UNSUBSCRIBE: Final = next(row for row in METHODS if row.name == "resources/unsubscribe")


class Parts(Struct, frozen=True):
    """What a server is made of, for as long as there is one."""

    offer: Offer
    observers: Observers
    dispatcher: Dispatcher
    store: OwnStore
    health: Predicates
    lifespan: "Lifespan | None" = None
    clock: Clock | None = None


class Carrying(Protocol):
    """What goes between this process and others, on behalf of clients."""

    async def drained(self) -> None:
        """Waits until all that others answer is answered."""
        ...

    async def close(self) -> None:
        """Ends it."""
        ...


class Serving:
    """A server at work."""

    def __init__(self, parts: Parts, end: Callable[[], object]) -> None:
        """`end` has the server end in good order, soon."""
        self._parts = parts
        self._offer = parts.offer
        self._health = parts.health
        self._end = end
        self.peers = Peers()
        self.watchers: Watchers[Connection | Listening] = Watchers()
        self.updates = Updates(parts.offer, self.watchers.subscriptions)
        self.listeners = Listeners()
        self.on_roots_changed: list[Callable[[Any], Awaitable[None]]] = []
        self.places: list[Listener] = []
        self.files: FileWatch | None = None
        self.carrying: Carrying | None = None
        self._announcer: Announcer | None = None
        self._spreader: Announcer | None = None  # to other processes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._shared: Shared | None = None
        self._ledger: Ledger | None = None
        self._checks: Checks | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._stopping: set[asyncio.Task[Any]] = set()  # work of calls that was cancelled

    # --- beginning -------------------------------------------------------------------------------

    async def start(self, server: Any) -> None:
        """Opens the store and enters the lifespan, if it has not been entered, until the server ends."""
        lifespan = self._parts.lifespan
        undo = None if lifespan is None else lifespan.users.start()
        try:
            await self._begin(server)
        except BaseException:
            if undo is not None:
                undo()
            raise

    async def attach(self, server: Any, client: object) -> None:
        """Does the same for a client in this process, until that is detached."""
        if self._parts.lifespan is not None:
            self._parts.lifespan.users.add(client)
        try:
            await self._begin(server)
        except BaseException:
            await self.detach(client)
            raise

    async def detach(self, client: object) -> None:
        """Leave the lifespan if that was the last that used it, once no handler runs any more. A task that is at work
        is not waited for here: then it is left later."""
        lifespan = self._parts.lifespan
        if lifespan is None:
            return
        lifespan.users.remove(client)
        if lifespan.users.any or not lifespan.running:
            return
        leaving = asyncio.create_task(self._leave_lifespan(lifespan))
        self._background.add(leaving)
        leaving.add_done_callback(self._background.discard)
        if self._shared is None or not self._shared.tasks.at_work:
            await asyncio.shield(leaving)

    async def _leave_lifespan(self, lifespan: "Lifespan") -> None:
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=self._offer.settings.stage_timeout)
        if self._ledger is not None:
            await self._ledger.drained()
        if self._shared is not None:
            await self._shared.tasks.drained()
        if lifespan.users.any:
            return
        try:
            await lifespan.stop()
        except Exception as error:  # noqa: BLE001 - reported: no client is at fault
            self._report(error, "the lifespan")

    def _report(self, error: Exception, what: str) -> None:
        observers, now = self._parts.observers, asyncio.get_running_loop().time()
        if observers.hear_failures:
            observers.on(HandlerFailed(connection=0, at=now, request=None, method=what, reference="-", error=error))

    def _stopped(self, work: Any) -> None:
        """The work of a call is cancelled, and may need a while to end."""
        if isinstance(work, asyncio.Task):
            task = cast("asyncio.Task[Any]", work)
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _begin(self, server: Any) -> None:
        parts, offer = self._parts, self._offer
        self._health.settle(offer.tools.all())
        await parts.store.open()
        if parts.lifespan is not None:
            await parts.lifespan.start(server)
        if parts.store.lasting:
            shared = self.ready()
            await self._load_secrets(shared)
            if shared.crew is not None:
                await shared.crew.join()
        if parts.store.lasting and offer.task_tools():
            shared = self.ready()
            shared.tasks.watch_over(shared, lasting=True)

    async def _load_secrets(self, shared: Shared) -> None:
        """Read what all processes on the store know: the keys of states, and that of cursors, so that any process goes
        on with a list that another has begun."""
        from trunkline.server.shared_secret import common_secret

        await shared.seals.load()
        self._offer.share_cursors(await common_secret(shared.store, self._offer.info.name, "cursor"))

    def _reload_secrets(self) -> None:
        """Agree with the other processes again, after the store has lost its data."""
        if self._loop is not None and self._shared is not None:
            task = self._loop.create_task(self._load_secrets(self._shared))
            self._background.add(task)
            task.add_done_callback(self._reloaded)

    def _reloaded(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.warning("keys of states and cursors could not be read again: %s; restart this process", error)

    def connect(self, channel: Channel) -> Connection:
        """Serves one channel."""
        lifespan = self._parts.lifespan
        if lifespan is not None and not lifespan.running:
            raise MisuseError("a server with a lifespan is started first: `await server.start()`")
        shared = self.ready()
        news = shared.news
        connection = Connection(shared, channel) if news is None else KeptConnection(shared, channel, news)
        self.peers.arrived(connection)
        return connection

    def ready(self) -> Shared:
        """What connections have in common, on the running loop."""
        loop = asyncio.get_running_loop()
        if self._shared is None or self._loop is not loop:
            if self.peers:
                raise MisuseError("a server serves on one event loop at a time")
            self._shared = self._open(loop)
        return self._shared

    def _open(self, loop: asyncio.AbstractEventLoop) -> Shared:
        parts, settings = self._parts, self._offer.settings
        self._health.settle(self._offer.tools.all())
        self._loop = loop
        self._thread = threading.get_ident()
        clock = parts.clock or LoopClock(loop)
        wall = parts.clock or WallClock()
        store = parts.store.use(wall)
        crew = self._crew(store, clock, wall)
        keeper = self._keeper(store, wall, crew)
        self._announcer = Announcer(settings.list_changed_interval, clock, self._send_changed)
        return Shared(
            offer=self._offer,
            dispatcher=parts.dispatcher,
            threads=Threads(loop, settings.max_threads),
            clock=clock,
            observers=parts.observers,
            watchers=self.watchers,
            on_roots_changed=self.on_roots_changed,
            departed=self._departed,
            left=self._left,
            connect=self.connect,
            listeners=self.listeners,
            seals=Seals(settings, self._seal_keys(store, wall)),
            store=store,
            wall=wall,
            tasks=Tasks(store, wall, settings, Recovery),
            keeper=keeper,
            crew=crew,
            news=self._tidings(keeper, crew, clock),
            ledger=self._get_ledger,
            slots=self._slots(store, wall),
            lifespan=lambda: None if parts.lifespan is None else parts.lifespan.value,
            stopped=self._stopped,
        )

    def checks(self) -> "Checks":
        """The health checks that `/readyz` runs."""
        from trunkline.server.health_checks import Checks

        if self._checks is None:
            self._checks = Checks(self._health.named)
        return self._checks

    def _get_ledger(self) -> "Ledger":
        from trunkline.server.idempotency.ledger import Ledger

        if self._ledger is None:
            shared = self.ready()
            self._ledger = Ledger(shared.store, self._offer.settings, shared.wall, shared.clock)
        return self._ledger

    def _keeper(self, store: "Store", wall: Clock, crew: "Crew | None") -> "Keeper | None":
        """Who keeps sessions, if the store outlives the process."""
        if not self._parts.store.lasting:
            return None
        from trunkline.server.sessions.durable import Keeper

        return Keeper(store, self._offer.settings, wall, self._parts.observers, crew)

    def _crew(self, store: "Store", clock: Clock, wall: Clock) -> "Crew | None":
        """The processes that share the store, if it has a way to them."""
        bus = store.bus() if self._parts.store.lasting else None
        if bus is None:
            return None
        from trunkline.server.cluster.cluster import Crew

        seconds = self._offer.settings.process_lease
        return Crew(store, bus, seconds=seconds, clock=clock, wall=wall, observers=self._parts.observers)

    def _slots(self, store: "Store", wall: Clock) -> "Slots | None":
        """Turns at tools that may be called only so often at once, if others can share the store."""
        if not self._parts.store.lasting:
            return None
        from trunkline.server.limits.shared_semaphore import Slots

        return Slots(store, wall, self._offer.info.name, self._offer.settings.process_lease)

    def _tidings(self, keeper: "Keeper | None", crew: "Crew | None", clock: Clock) -> "News | None":
        """What is new for clients, where it is kept or others have to hear of it."""
        if keeper is None:
            return None
        from trunkline.server.cluster.notifications import News

        news = News(keeper, crew, self._heard)
        if crew is not None:
            self._spreader = Announcer(self._offer.settings.list_changed_interval, clock, news.tell)
            crew.on_missed(partial(self._missed, crew))
            crew.on_store_reset(self._reload_secrets)
            crew.on_deposed(self.listeners.end)  # so that clients ask again what they want to hear of
        return news

    def _seal_keys(self, store: "Store", wall: Clock) -> "SealKeys | None":
        """Keys for states that clients carry, if the store outlives the process and none are set."""
        settings = self._offer.settings
        if not self._parts.store.lasting or settings.state_keys:
            return None
        from trunkline.server.input.state_keys import SealKeys

        return SealKeys(store, self._offer.info.name, settings.state_lifetime, wall)

    # --- telling ---------------------------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """Does something on the loop, whichever thread this is; at once if there is no loop yet."""
        if self._shared is None or threading.get_ident() == self._thread:
            action()
        else:
            self._shared.threads.post(action)  # so that it is done before the answer of whoever asks for it here

    def changed(self, kind: str) -> None:
        """A registry has changed."""
        if kind in CHANGES:
            self.announce(CHANGES[kind])

    def announce(self, name: str) -> None:
        """Tells everybody, soon, what that notification says. Callable from any thread."""
        self.announce_here(name)
        if self._spreader is not None:
            self.post(partial(self._spreader.changed, name))

    def announce_here(self, name: str) -> None:
        """Tells those who are clients of this process. Callable from any thread."""
        if self.peers:
            self.post(partial(self._announce, name))

    def _announce(self, name: str) -> None:
        if self._announcer is not None:
            self._announcer.changed(name)

    def updated(self, uri: str) -> None:
        """A resource has changed: everybody is told who wants to know."""
        self.updates.send(uri)
        if self._shared is not None and self._shared.news is not None:
            self._shared.news.tell(uri)

    def _heard(self, piece: str) -> None:
        """Another process tells what is new."""
        if piece in _LISTS:
            self.announce_here(piece)
        else:
            self.updates.send(piece)

    def _missed(self, crew: "Crew") -> None:
        """Whatever other processes have told may not have been heard, if there are any."""
        if crew.alone:
            return
        for piece in (*self.watchers.subscriptions.wanted(), *_LISTS):
            self._heard(piece)

    def _send_changed(self, name: str) -> None:
        params = Empty()
        frame = Encoded(codec.encode(Notification(name, params)))
        for connection in self.peers:
            connection.broadcast(name, frame, params)
        self.listeners.changed(name)

    # --- those who go ------------------------------------------------------------------------------

    def _left(self, connection: Connection) -> None:
        """A client ends its conversation in good order. Where nobody else can come, that is the end of the server."""
        self._stop_watching(connection)
        if connection.channel.info.sole:
            self._end()
        else:
            self._in_background(connection.loop.create_task(connection.leave()), connection)

    def _departed(self, connection: Connection) -> None:
        self.peers.departed(connection)
        if self.files is not None and not self.peers:
            self.files.unheard()
        self._stop_watching(connection)

    def _stop_watching(self, connection: Connection) -> None:
        orphaned = self.watchers.subscriptions.drop(connection)
        if orphaned and self.watchers.on_last and self._loop is not None:
            self._in_background(self._loop.create_task(self.watchers.ended(orphaned)), connection)

    def _in_background(self, task: "asyncio.Task[Any]", connection: Connection) -> None:
        self._background.add(task)
        task.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: Connection, task: "asyncio.Task[Any]") -> None:
        """What was done for one who goes has ended, which was nobody's request."""
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            call = Running(id="the end of a connection", method=_UNSUBSCRIBE, started=connection.now())
            connection.report_failure(call, "-", error)

    # --- ending, stage by stage --------------------------------------------------------------------

    async def unsubscribe(self) -> None:
        """Takes nobody new, and tells nobody of changes any more."""
        for connection in self.peers:
            connection.drain()
        self.listeners.end()
        self.updates.close()
        for place in self.places:
            await place.close()
        for connection in self.peers:
            if connection.kept is None:  # who comes back wants to hear of the same
                await self.watchers.ended(self.watchers.subscriptions.drop(connection))

    async def drain(self) -> None:
        """Waits until what is under way is done."""
        await asyncio.gather(*(connection.drained() for connection in self.peers))
        if self.carrying is not None:
            await self.carrying.drained()
        if self._ledger is not None:
            await self._ledger.drained()
        if self._shared is not None:
            await self._shared.tasks.drained()

    async def hang_up(self) -> None:
        """Closes every line."""
        places, self.places = self.places, []
        await asyncio.gather(*(connection.hang_up() for connection in self.peers))
        for place in places:
            await place.gone()
        carrying, self.carrying = self.carrying, None
        if carrying is not None:
            await carrying.close()

    async def persist(self) -> None:
        """Writes down what is to outlive the process."""
        if self._ledger is not None:
            await self._ledger.close()
        if self._shared is not None:
            await self._shared.tasks.close()
            if self._shared.slots is not None:
                await self._shared.slots.close()
            await self._shared.seals.close()
        if self._shared is not None and self._shared.keeper is not None:
            await self._shared.keeper.close()
        if self._shared is not None and self._shared.crew is not None:
            await self._shared.crew.leave()

    async def let_go(self) -> None:
        """Ends what is left, and the lifespan."""
        await asyncio.gather(*self._background, return_exceptions=True)
        for announcer in (self._announcer, self._spreader):
            if announcer is not None:
                announcer.close()
        if self._shared is not None:
            self._shared.threads.close()
            if self._shared.crew is not None:
                await self._shared.crew.close()
        if self.files is not None:
            self.files.close()
        self._loop = self._thread = self._shared = self._announcer = self._spreader = self._ledger = None
        self.peers.forget_pause()
        self._health.unsettle()
        if self._checks is not None:
            self._checks.close()
        if self._parts.lifespan is not None:
            self._parts.lifespan.users.end()
            await self._parts.lifespan.stop()

    async def close_store(self) -> None:
        """Keeps nothing any more."""
        await self._parts.store.close()

    def situation(self) -> dict[str, Any]:
        """What a crash dump tells of the server."""
        info = self._offer.info
        return {
            "server": {"name": info.name, "version": info.version},
            "capabilities": self._offer.capabilities(),
            "connections": [connection.situation() for connection in self.peers],
        }
