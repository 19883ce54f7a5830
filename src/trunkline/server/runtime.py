"""Runtime state of a server: connections, subscriptions, and the services that connections share.

The runtime creates these services on one event loop, when they are first needed, and closes them there in stages (see
`shutdown.py` for the order). Afterwards the server can serve again, also on another loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec import Struct

from trunkline.clock import Clock, LoopClock, WallClock
from trunkline.errors import MisuseError
from trunkline.facts import ChildChanged, HandlerFailed, Observers, TaskEnded
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import METHODS
from trunkline.protocol.types import Empty
from trunkline.rpc.dispatch import Dispatcher
from trunkline.rpc.threads import ThreadPool
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection, SharedServices
from trunkline.server.connections import ConnectionSet
from trunkline.server.limits.tool_limits import HealthPredicates
from trunkline.server.notifications.debounce import LIST_CHANGED_METHODS, Announcer
from trunkline.server.server_store import ServerStore
from trunkline.transports.channel import Channel, Listener
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from trunkline.protocol.tasks import TaskRecord
    from trunkline.receipts.options import Receipts
    from trunkline.receipts.writer import ReceiptWriter
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.cluster.notifications import ClusterNotifications
    from trunkline.server.files.watch import FileWatcher
    from trunkline.server.idempotency.ledger import Ledger
    from trunkline.server.input.multi_round import StateSealers
    from trunkline.server.input.state_keys import StateKeyRing
    from trunkline.server.introspection.gauges import Reading
    from trunkline.server.introspection.metrics import ServerMetrics
    from trunkline.server.introspection.process_state import ServerState
    from trunkline.server.introspection.slow_calls import SlowCallReport
    from trunkline.server.lifespan import Lifespan, LifespanUsers
    from trunkline.server.limits.rate_limits import RateLimits
    from trunkline.server.limits.shared_semaphore import SharedSemaphores
    from trunkline.server.notifications.listen import ListenStream, ListenStreams
    from trunkline.server.notifications.resource_updates import ResourceUpdates
    from trunkline.server.notifications.subscription_hooks import SubscriptionHooks
    from trunkline.server.notifications.update_relay import UpdateRelay
    from trunkline.server.processes.pool import ProcessPool
    from trunkline.server.resilience.circuit_breaker import CircuitBreakers
    from trunkline.server.resilience.health_monitor import HealthMonitor
    from trunkline.server.routes import Routes
    from trunkline.server.sessions.durable import DurableSessions
    from trunkline.server.tasks.service import TaskService
    from trunkline.stores.store import Store
    from trunkline.supervision.supervisor import ChildStatus, Supervisor
    from trunkline.supervision.worker_channel import WorkerChannel

__all__ = ["MountedServer", "ServerComponents", "ServerRuntime"]

_log: Final = logging.getLogger("trunkline")
_LIST_CHANGED: Final = frozenset(LIST_CHANGED_METHODS.values())
_UNSUBSCRIBE: Final = next(row for row in METHODS if row.name == "resources/unsubscribe")


class ServerComponents(Struct, frozen=True):
    """Parts of a server that live as long as the server itself, across restarts of its runtime."""

    catalog: ServerCatalog
    observers: Observers
    dispatcher: Dispatcher
    store: ServerStore
    health: HealthPredicates
    lifespan: "Lifespan | None" = None
    clock: Clock | None = None
    receipts: "Receipts | None" = None
    metrics: "ServerMetrics | None" = None


class MountedServer(Struct, frozen=True, eq=False):
    """A mounted server, as the runtime of its parent uses it."""

    server: Any  # for its lifespan
    runtime: "ServerRuntime"
    shutdown: Callable[[], Awaitable[object]]


class UpdateForwarder(Protocol):
    """Passes the changes of a mounted server on to its parent. Callable from any thread."""

    def publish_update(self, uri: str, meta: bytes | None) -> None:
        """Publish to the parent's other processes that a resource has changed."""
        ...

    def relist(self, name: str, *, everywhere: bool) -> None:
        """Announce that a list has changed although no entry has."""
        ...


class RequestForwarding(Protocol):
    """Forwarder of requests between processes, as far as shutdown is concerned."""

    async def drained(self) -> None:
        """Wait until all forwarded requests have a response."""
        ...

    async def close(self) -> None:
        """Close the forwarder."""
        ...


class ServerRuntime:
    """State of a server while it serves, with the shutdown stages that close it."""

    def __init__(self, components: ServerComponents, begin_shutdown: Callable[[], object]) -> None:
        """`begin_shutdown` starts an orderly shutdown of the server and returns at once."""
        self._components = components
        self._catalog = components.catalog
        self._health = components.health
        self._begin_shutdown = begin_shutdown
        self.connections = ConnectionSet()
        self.mounts: list[MountedServer] = []
        self._unmounted: list[MountedServer] = []  # while this server served: their calls may still run
        self.released = False  # it was shut down, and not used since
        self.forwarders: list[UpdateForwarder] = []  # to the servers that this one is mounted in
        self._lazy_users: LifespanUsers | None = None
        self._lazy_subscription_hooks: SubscriptionHooks[Connection | ListenStream | UpdateRelay] | None = None
        self._lazy_resource_updates: ResourceUpdates | None = None
        self._lazy_breakers: CircuitBreakers | None = None
        self._breaker_binding: tuple[Clock, Clock, Store | None] | None = None  # while serving
        self._lazy_listen_streams: ListenStreams | None = None
        self.on_roots_changed: list[Callable[[Any], Awaitable[None]]] = []
        self.on_stopping: list[Callable[[], object]] = []  # called once, when a shutdown begins
        self.listeners: list[Listener] = []
        self._supervisor: Supervisor | None = None  # made with the first listener
        self.worker_channel: WorkerChannel | None = None  # of a worker process
        self.file_watch: FileWatcher | None = None
        self.forwarder: RequestForwarding | None = None
        self.routes: Routes | None = None  # custom routes, once they are used
        self._local_announcer: Announcer | None = None
        self._cluster_announcer: Announcer | None = None  # announces to other processes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared: SharedServices | None = None
        self._ledger: Ledger | None = None
        self._tasks: TaskService | None = None
        self._state_tokens: StateSealers | None = None
        self._health_monitor: HealthMonitor | None = None
        self._runs_checks = False  # from `start` on
        self._processes: ProcessPool | None = None
        self._slow_calls: SlowCallReport | None = None
        self._receipts: ReceiptWriter | None = None  # while serving
        self._opening_receipts: asyncio.Task[ReceiptWriter] | None = None
        self._background_tasks: set[asyncio.Task[Any]] = set()
        self._cancelled_work: set[asyncio.Task[Any]] = set()  # tasks of cancelled calls that have not ended yet

    @property
    def name(self) -> str:
        """The name of the server."""
        return self._catalog.info.name

    # --- made on first use -----------------------------------------------------------------------

    @property
    def subscription_hooks(self) -> "SubscriptionHooks[Connection | ListenStream | UpdateRelay]":
        """The resource subscriptions of all clients, and their hooks."""
        if self._lazy_subscription_hooks is None:
            from trunkline.server.notifications.subscription_hooks import SubscriptionHooks

            self._lazy_subscription_hooks = SubscriptionHooks()
        return self._lazy_subscription_hooks

    @property
    def users(self) -> "LifespanUsers":
        """The users that keep the lifespans of this server and of mounted ones entered."""
        if self._lazy_users is None:
            from trunkline.server.lifespan import LifespanUsers

            self._lazy_users = LifespanUsers()
        return self._lazy_users

    @property
    def breakers(self) -> "CircuitBreakers":
        """The circuit breakers of the server."""
        if self._lazy_breakers is None:
            from trunkline.server.resilience.circuit_breaker import CircuitBreakers

            components = self._components
            self._lazy_breakers = CircuitBreakers(self._catalog.info.name, components.clock, components.observers)
            if self._breaker_binding is not None:
                self._lazy_breakers.bind(*self._breaker_binding)
        return self._lazy_breakers

    @property
    def resource_updates(self) -> "ResourceUpdates":
        """The sender of `resources/updated`."""
        if self._lazy_resource_updates is None:
            from trunkline.server.notifications.resource_updates import ResourceUpdates

            self._lazy_resource_updates = ResourceUpdates(self._catalog, self.subscription_hooks.subscriptions)
        return self._lazy_resource_updates

    @property
    def listen_streams(self) -> "ListenStreams":
        """The open `subscriptions/listen` requests."""
        if self._lazy_listen_streams is None:
            from trunkline.server.notifications.listen import ListenStreams

            self._lazy_listen_streams = ListenStreams()
        return self._lazy_listen_streams

    def get_processes(self) -> "ProcessPool":
        """Return the processes for tools that compute. Called on the loop."""
        if self._processes is None:
            from trunkline.server.processes.pool import ProcessPool

            tracer = self._components.observers.tracer
            self._processes = ProcessPool(self._catalog.settings.max_processes, tracer)
        return self._processes

    # --- supervision -----------------------------------------------------------------------------

    @property
    def supervisor(self) -> "Supervisor":
        """The supervisor of the listeners and of background work. It runs until the server shuts down."""
        if self._supervisor is None:
            from trunkline.supervision.restart_policy import RestartPolicy
            from trunkline.supervision.supervisor import Supervisor

            policy, clock = RestartPolicy.for_children(self._catalog.settings), self.get_services().clock
            self._supervisor = Supervisor("server", policy=policy, clock=clock, on_change=self._on_child_changed)
        self._supervisor.start()
        return self._supervisor

    def supervise_listener(self, name: str, listener: Listener) -> None:
        """Keep a listener open until it is closed or the server shuts down."""
        from trunkline.server.supervised_listener import SupervisedListener

        taken = [status.name.rpartition("/")[2] for status in self.supervisor.describe().children]
        number = next(number for number in count(1) if _numbered(name, number) not in taken)
        child = SupervisedListener(listener)
        self.supervisor.add(_numbered(name, number), child, restart="transient", stop_timeout=None)

    async def release_child(self, name: str) -> None:
        """Stop a child of the supervisor and forget it, if there is one of that name."""
        if self._supervisor is not None and self._supervisor.has(name):
            await self._supervisor.remove(name)
            if not self._supervisor.describe().children:  # it belongs to this loop, the server may move to another
                supervisor, self._supervisor = self._supervisor, None
                await supervisor.stop()

    def _on_child_changed(self, status: "ChildStatus") -> None:
        observers = self._components.observers
        if observers:
            observers.on(
                ChildChanged(
                    connection=0,
                    at=status.since,
                    name=status.name,
                    kind=status.kind,
                    state=status.state.value,
                    failure=status.last_failure,
                )
            )

    # --- starting --------------------------------------------------------------------------------

    async def start(self, server: Any) -> None:
        """Open the store and enter the lifespan, unless that has happened; both stay open until shutdown."""
        undo = self.users.mark_started() if self._has_lifespans else None
        try:
            await self._open_store_and_join(server)
        except BaseException:
            if undo is not None:
                undo()
            raise
        self._runs_checks = True
        self.start_health_checks()
        self._report_slow_calls()
        if (metrics := self._components.metrics) is not None:
            from trunkline.server.introspection.gauges import read_totals  # imported here: for metrics only

            metrics.start(self._read_gauges, partial(read_totals, self._components.observers))

    def start_health_checks(self) -> None:
        """Run health checks on their intervals, once the server is started. Callable from any thread."""
        if self._runs_checks and any(check.interval is not None for check in self._health.by_name.values()):
            self.post(self.health_monitor().start)

    def _report_slow_calls(self) -> None:
        limit = self._catalog.settings.slow_call
        if limit is not None and self._slow_calls is None:
            from trunkline.server.introspection.slow_calls import SlowCallReport

            self._slow_calls = SlowCallReport(limit, lambda: self.connections)
            self._slow_calls.start()

    async def attach(self, server: Any, client: object) -> None:
        """Do the same for a client in this process, until `detach`."""
        if self._has_lifespans:
            self.users.add(client)
        try:
            await self._open_store_and_join(server)
        except BaseException:
            await self.detach(client)
            raise

    async def detach(self, client: object) -> None:
        """Exit the lifespans if this was their last user, once no handler runs. While a task runs, exit them later in
        the background."""
        if not self._has_lifespans:
            return
        self.users.remove(client)
        if self.users.in_use:
            return
        leaving = asyncio.create_task(self._leave_after_drain())
        self._background_tasks.add(leaving)
        leaving.add_done_callback(self._background_tasks.discard)
        if self._tasks is None or not self._tasks.runners:
            await asyncio.shield(leaving)

    async def _leave_after_drain(self) -> None:
        if self._cancelled_work:
            await asyncio.wait(self._cancelled_work, timeout=self._catalog.settings.stage_timeout)
        if self._ledger is not None:
            await self._ledger.drain()
        if self._tasks is not None:
            await self._tasks.drain()
        if not self.users.in_use:
            await self.leave_lifespans()

    def run_in_background(self, work: Callable[[], Awaitable[object]], what: str) -> None:
        """Run an async function on the loop, if there is one. Observers receive what it raises, as the failure of
        `what`. Callable from any thread."""
        if self._loop is not None:
            self.post(partial(self._start_in_background, work, what))

    def _start_in_background(self, work: Callable[[], Awaitable[object]], what: str) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - reported to observers: no client caused it
                self._report_failure(error, what)

        task = asyncio.get_running_loop().create_task(run())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def _report_failure(self, error: BaseException, what: str) -> None:
        observers, now = self._components.observers, asyncio.get_running_loop().time()
        if observers.hear_failures:
            observers.on(HandlerFailed(connection=0, at=now, request=None, method=what, reference="-", error=error))

    def on_call_cancelled(self, work: Any) -> None:
        """Remember cancelled work of a call until it has ended; cleanup may take a while."""
        if isinstance(work, asyncio.Task):
            task = cast("asyncio.Task[Any]", work)
            self._cancelled_work.add(task)
            task.add_done_callback(self._cancelled_work.discard)

    async def _open_store_and_join(self, server: Any) -> None:
        components, catalog = self._components, self._catalog
        self._health.enforce_names(catalog.tools.all())
        await components.store.open()
        if components.receipts is not None and self._receipts is None:
            await self._open_receipts(components.receipts)
        await self.enter_lifespans(server)
        if components.store.lasting:
            shared = self.get_services()
            await self._load_secrets(shared)
            if shared.cluster is not None:
                await shared.cluster.join()
        if components.store.lasting and catalog.task_tools():
            self.get_services().tasks.start_recovery()

    # --- lifespans, of this server and of mounted ones -------------------------------------------

    @property
    def _has_lifespans(self) -> bool:
        return self._components.lifespan is not None or bool(self.mounts)

    @property
    def lifespans_running(self) -> bool:
        """Whether the lifespans of this server and of mounted ones are entered on the running loop."""
        own = self._components.lifespan
        return (own is None or own.running) and all(mounted.runtime.lifespans_running for mounted in self.mounts)

    @property
    def lifespan_value(self) -> Any:
        """The value of the server's lifespan; None without one."""
        own = self._components.lifespan
        return None if own is None else own.value

    async def enter_lifespans(self, server: Any) -> None:
        """Enter the lifespan of this server, then those of mounted ones, unless they are entered."""
        if self._components.lifespan is not None:
            await self._components.lifespan.start(server)
        for mounted in self.mounts:
            mounted.runtime.users.add(self)
            await mounted.runtime.enter_lifespans(mounted.server)

    async def leave_lifespans(self) -> None:
        """Exit the lifespans of mounted servers that have no other user, then that of this server. Observers receive
        what exiting raises."""
        for mounted in reversed(self.mounts):
            mounted.runtime.users.remove(self)
            if not mounted.runtime.users.in_use:
                await mounted.runtime.leave_lifespans()
        if self._components.lifespan is not None:
            try:
                await self._components.lifespan.stop()
            except Exception as error:  # noqa: BLE001 - reported to observers: no client caused it
                self._report_failure(error, "the lifespan")

    def mount(self, mounted: MountedServer) -> None:
        """Enter the lifespans of a mounted server with those of this one. Raises `MisuseError` if this server is in use
        and they are not entered."""
        if self._shared is not None and not mounted.runtime.lifespans_running:
            raise MisuseError(
                f"server {mounted.runtime.name!r} has a lifespan, and its parent serves: `await` its `start()` first"
            )
        self.mounts.append(mounted)
        mounted.runtime.released = False
        if self._breaker_binding is not None:
            mounted.runtime.bind_breakers(*self._breaker_binding)

    def unmount(self, mounted: MountedServer) -> None:
        """Undo `mount`. If this server is in use, the lifespans stay entered until its shutdown."""
        self.mounts.remove(mounted)
        if self._shared is not None:
            self._unmounted = [*(each for each in self._unmounted if not each.runtime.released), mounted]

    async def _load_secrets(self, shared: SharedServices) -> None:
        """Load the secrets that all processes on the store share: the keys of request states, and the cursor key, so
        that each process can continue a list that another one began."""
        from trunkline.server.shared_secret import get_shared_secret

        await shared.state_tokens.load()
        self._catalog.use_shared_cursor_key(await get_shared_secret(shared.store, self._catalog.info.name, "cursor"))

    def _reload_secrets(self) -> None:
        """Agree on the secrets with the other processes again, after the store has lost its data."""
        if self._loop is not None and self._shared is not None:
            task = self._loop.create_task(self._load_secrets(self._shared))
            self._background_tasks.add(task)
            task.add_done_callback(self._secrets_reloaded)

    def _secrets_reloaded(self, task: "asyncio.Task[None]") -> None:
        self._background_tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.warning("cannot reload the keys of request states and cursors: %s; restart this process", error)

    def connect(self, channel: Channel) -> Connection:
        """Serve one channel; return its connection."""
        if self._has_lifespans and not self.lifespans_running:
            raise MisuseError("a server with a lifespan is started first: `await server.start()`")
        connection = Connection(self.get_services(), channel)
        self.connections.add(connection)
        return connection

    def get_services(self) -> SharedServices:
        """Return the services that connections on the running loop share; create them on first use."""
        loop = asyncio.get_running_loop()
        if self._shared is None or self._loop is not loop:
            if self.connections:
                raise MisuseError("a server serves on one event loop at a time; shut it down before serving on another")
            self._tasks = None
            self._shared = self._make_services(loop)
        return self._shared

    def _make_services(self, loop: asyncio.AbstractEventLoop) -> SharedServices:
        components, settings = self._components, self._catalog.settings
        self._health.enforce_names(self._catalog.tools.all())
        self._loop = loop
        self.released = False
        clock = components.clock or LoopClock(loop)
        wall = components.clock or WallClock()
        get_store = cache(partial(components.store.get_open, wall))
        configured = None if components.store.configured is None else get_store()
        lasting = configured if components.store.lasting else None
        cluster = self._make_cluster(lasting, clock, wall)
        durable_sessions = self._make_durable_sessions(lasting, wall, cluster)
        notifications = self._make_notification_fanout(durable_sessions, cluster, clock)
        self._local_announcer = Announcer(settings.list_changed_interval, clock, self._broadcast_list_changed)
        self.bind_breakers(clock, wall, lasting)
        services = SharedServices(
            catalog=self._catalog,
            dispatcher=components.dispatcher,
            threads=ThreadPool(loop, settings.max_threads),
            clock=clock,
            observers=components.observers,
            receipts=self._get_receipts(),
            reply_gate=None if notifications is None else notifications.reply_gate,
            get_subscription_hooks=lambda: self.subscription_hooks,
            on_roots_changed=self.on_roots_changed,
            owner=self,
            get_listen_streams=lambda: self.listen_streams,
            get_state_tokens=cache(partial(self._make_state_tokens, lasting, wall)),
            get_store=get_store,
            wall_clock=wall,
            get_tasks=cache(lambda: self._make_tasks(services)),
            durable_sessions=durable_sessions,
            cluster=cluster,
            cluster_notifications=notifications,
            get_ledger=self._get_ledger,
            shared_semaphores=self._make_shared_semaphores(lasting, wall, cluster),
            get_lifespan_value=lambda: self.lifespan_value,
            get_breakers=lambda: self.breakers,
            get_rate_limits=cache(partial(self._make_rate_limits, clock, wall, lasting)),
        )
        return services

    def bind_breakers(self, clock: Clock, wall_clock: Clock, store: "Store | None") -> None:
        """Let the circuit breakers, also of mounted servers, use the clocks and the store of a server that serves."""
        self._breaker_binding = (clock, wall_clock, store)
        if self._lazy_breakers is not None:
            self._lazy_breakers.bind(clock, wall_clock, store)
        for mounted in self.mounts:
            if mounted.runtime._shared is None:
                mounted.runtime.bind_breakers(clock, wall_clock, store)

    def health_monitor(self) -> "HealthMonitor":
        """Return the health monitor."""
        from trunkline.server.resilience.health_monitor import HealthMonitor

        if self._health_monitor is None:
            components = self._components
            self._health_monitor = HealthMonitor(
                self._health.by_name,
                lambda: self.get_services().clock,
                components.store.writable,
                lambda: self._lazy_breakers or (),
                lambda: None if self._shared is None else self._shared.cluster,
                observers=components.observers,
                get_children=lambda: None if self._supervisor is None else self._supervisor.describe(),
            )
        return self._health_monitor

    def _make_tasks(self, services: SharedServices) -> "TaskService":
        """Make the task service of these services. It never belongs to later services, so a late callback after
        shutdown cannot start the runtime again."""
        from trunkline.server.tasks.recovery import TaskRecovery
        from trunkline.server.tasks.service import TaskService

        self._tasks = TaskService(services, TaskRecovery, on_ended=self._make_task_recorder())
        return self._tasks

    def _make_task_recorder(self) -> "Callable[[TaskRecord], None] | None":
        """Return the function that records the end of a task; None for a server without receipts whose observers do
        not want it."""
        report = self._report_task_end if self._components.observers.want(TaskEnded) else None
        if self._receipts is None:
            return report
        from trunkline.server.call_receipts import record_task_end

        write = partial(record_task_end, self._receipts)
        if report is None:
            return write

        def record(task: "TaskRecord") -> None:
            write(task)
            report(task)

        return record

    def _report_task_end(self, task: "TaskRecord") -> None:
        self._components.observers.on(
            TaskEnded(
                connection=0,
                at=self.get_services().clock.now(),
                task=task.task_id,
                state=task.state.value,
                seconds=task.updated_at - task.created_at,
            )
        )

    def _get_ledger(self) -> "Ledger":
        from trunkline.server.idempotency.ledger import Ledger

        if self._ledger is None:
            shared = self.get_services()

            async def find_task(owner: str, task_id: str) -> "TaskRecord | None":
                stored = await shared.tasks.repository.find(owner, task_id)
                return None if stored is None else stored.record

            self._ledger = Ledger(
                shared.store, self._catalog.settings, shared.wall_clock, shared.clock, find_task, cluster=shared.cluster
            )
        return self._ledger

    def _make_durable_sessions(
        self, store: "Store | None", wall_clock: Clock, cluster: "Cluster | None"
    ) -> "DurableSessions | None":
        """Make the session storage if there is a store that outlives the process."""
        if store is None:
            return None
        from trunkline.server.sessions.durable import DurableSessions

        return DurableSessions(store, self._catalog.settings, wall_clock, self._report_failure, cluster)

    def _make_cluster(self, store: "Store | None", clock: Clock, wall_clock: Clock) -> "Cluster | None":
        """Make the cluster of processes that share the store, if the store has a bus."""
        bus = None if store is None else store.bus()
        if store is None or bus is None:
            return None
        from trunkline.server.cluster.cluster import Cluster

        seconds = self._catalog.settings.process_lease
        return Cluster(
            store, bus, lease_ttl=seconds, clock=clock, wall=wall_clock, observers=self._components.observers
        )

    def _make_shared_semaphores(
        self, store: "Store | None", wall_clock: Clock, cluster: "Cluster | None"
    ) -> "SharedSemaphores | None":
        """Make the semaphores for tools with a concurrency limit across processes, if processes share the store."""
        if store is None or cluster is None:
            return None
        from trunkline.server.limits.shared_semaphore import SharedSemaphores

        name, process_lease = self._catalog.info.name, self._catalog.settings.process_lease
        return SharedSemaphores(store, wall_clock, name, cluster, process_lease)

    def _make_rate_limits(self, clock: Clock, wall_clock: Clock, store: "Store | None") -> "RateLimits":
        """Make the rate limits; processes that share a store share them."""
        from trunkline.server.limits.rate_limits import RateLimits

        catalog, observers = self._catalog, self._components.observers
        return RateLimits(
            catalog.settings,
            catalog.info.name,
            clock=clock,
            wall_clock=wall_clock,
            store=store,
            observers=observers,
        )

    def _make_notification_fanout(
        self, durable_sessions: "DurableSessions | None", cluster: "Cluster | None", clock: Clock
    ) -> "ClusterNotifications | None":
        """Make the fan-out of change notifications to durable sessions and other processes."""
        if durable_sessions is None:
            return None
        from trunkline.server.cluster.notifications import ClusterNotifications

        notifications = ClusterNotifications(durable_sessions, cluster, self._on_remote_change)
        if cluster is not None:
            self._cluster_announcer = Announcer(
                self._catalog.settings.list_changed_interval, clock, notifications.publish
            )
            cluster.on_missed(partial(self._on_missed_messages, cluster))
            cluster.on_store_reset(self._reload_secrets)
            cluster.on_evicted(self.end_listen_streams)  # clients then subscribe again
        return notifications

    def _make_state_tokens(self, store: "Store | None", wall_clock: Clock) -> "StateSealers":
        """Make the sealers of request states."""
        from trunkline.server.input.multi_round import StateSealers

        self._state_tokens = StateSealers(self._catalog.settings, self._make_state_keys(store, wall_clock))
        return self._state_tokens

    def _make_state_keys(self, store: "Store | None", wall_clock: Clock) -> "StateKeyRing | None":
        """Make the stored keys for request states, if the store outlives the process and no keys are configured."""
        settings = self._catalog.settings
        if store is None or settings.state_keys:
            return None
        from trunkline.server.input.state_keys import StateKeyRing

        return StateKeyRing(store, self._catalog.info.name, settings.state_lifetime, wall_clock)

    # --- notifying -------------------------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """Run an action on the loop, from any thread; at once if no loop is in use yet."""
        shared = self._shared  # another thread may release it
        if shared is None:
            action()
        else:
            shared.threads.run_on_loop(action)  # an action of a handler on a thread runs before its reply is sent

    def registry_changed(self, kind: str) -> None:
        """Announce that the list of a registry has changed."""
        if kind in LIST_CHANGED_METHODS:
            self.announce(LIST_CHANGED_METHODS[kind])

    def announce(self, name: str) -> None:
        """Send a list_changed notification, debounced, to the clients of all processes. Callable from any thread."""
        self.announce_locally(name)
        if self._cluster_announcer is not None:
            self.post(partial(self._cluster_announcer.announce, name))

    def announce_locally(self, name: str) -> None:
        """Send a list_changed notification, debounced, to the clients of this process. Callable from any thread."""
        if self.connections:
            self.post(partial(self._announce_on_loop, name))

    def _announce_on_loop(self, name: str) -> None:
        if self._local_announcer is not None:
            self._local_announcer.announce(name)

    def relist(self, name: str, *, everywhere: bool) -> None:
        """Announce that a list has changed although no entry has: to the clients of all processes with `everywhere`,
        else of this one, and to those of the servers that this one is mounted in. Callable from any thread."""
        (self.announce if everywhere else self.announce_locally)(name)
        for forwarder in self.forwarders:
            forwarder.relist(name, everywhere=everywhere)

    def resource_updated(self, uri: str, meta: bytes | None) -> None:
        """Notify the subscribers of a resource, in all processes. `meta` is the encoded metadata of the update."""
        self.resource_updates.send(uri, meta)
        self.publish_update(uri, meta)

    def publish_update(self, uri: str, meta: bytes | None) -> None:
        """Notify the subscribers of a resource in other processes."""
        if self._shared is not None and self._shared.cluster_notifications is not None:
            self._shared.cluster_notifications.publish(uri, meta)
        for forwarder in self.forwarders:
            forwarder.publish_update(uri, meta)

    def _on_remote_change(self, change: str, meta: bytes | None = None) -> None:
        """Pass on a change that another process has announced."""
        if change in _LIST_CHANGED:
            self.announce_locally(change)
        else:
            self.resource_updates.send(change, meta)

    def _on_missed_messages(self, cluster: "Cluster") -> None:
        """Announce every change that other processes may have sent while messages were lost."""
        if cluster.alone:
            return
        for piece in (*self.subscription_hooks.subscriptions.subscribed_uris(), *_LIST_CHANGED):
            self._on_remote_change(piece)

    def _broadcast_list_changed(self, name: str) -> None:
        params = Empty()
        frame = Encoded(codec.encode(Notification(name, params)))
        for connection in self.connections:
            connection.broadcast(name, frame, params)
        if self._lazy_listen_streams is not None:
            self._lazy_listen_streams.notify_list_changed(name)

    # --- closed connections ----------------------------------------------------------------------------

    def on_client_shutdown(self, connection: Connection) -> None:
        """End the session of a client that sent `shutdown`. If its connection is the only one possible, as on stdio,
        shut the server down."""
        self._drop_subscriptions(connection)
        if connection.channel.info.sole_peer:
            self._begin_shutdown()
        else:
            self._track_background(connection.loop.create_task(connection.end_session()), connection)

    def on_connection_closed(self, connection: Connection) -> None:
        """Forget a connection and its subscriptions."""
        self.connections.discard(connection)
        if self.file_watch is not None and not self.connections:
            self.file_watch.unwatch_folders()
        self._drop_subscriptions(connection)

    def _drop_subscriptions(self, connection: Connection) -> None:
        hooks = self._lazy_subscription_hooks
        orphaned = None if hooks is None else hooks.subscriptions.drop(connection)
        if hooks is not None and orphaned and hooks.on_last and self._loop is not None:
            self._track_background(self._loop.create_task(hooks.release_unused(orphaned)), connection)

    def end_listen_streams(self, connection: Connection | None = None) -> None:
        """End the open `subscriptions/listen` requests of a connection, or of all."""
        if self._lazy_listen_streams is not None:
            self._lazy_listen_streams.end(connection)

    def _track_background(self, task: "asyncio.Task[Any]", connection: Connection) -> None:
        self._background_tasks.add(task)
        task.add_done_callback(partial(self._background_done, connection))

    def _background_done(self, connection: Connection, task: "asyncio.Task[Any]") -> None:
        """Report the error of a background task; it belongs to no request."""
        self._background_tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            call = IncomingRequest(id="the end of a connection", method=_UNSUBSCRIBE, started=connection.now())
            connection.facts.report_failure(call, "-", error)

    # --- stages of shutdown ------------------------------------------------------------------

    async def unsubscribe_resources(self) -> None:
        """Shutdown stage: close the listeners and stop sending change notifications."""
        self._call_on_stopping()
        for connection in self.connections:
            connection.drain()
        self.end_listen_streams()
        if self._lazy_resource_updates is not None:
            self._lazy_resource_updates.close()
        if self._supervisor is not None:
            await self._supervisor.stop()
        for place in self.listeners:  # those of a worker, whose supervisor is another process
            await place.close()
        hooks = self._lazy_subscription_hooks
        for connection in self.connections:
            if hooks is not None and connection.durable_session is None:  # a durable session keeps its subscriptions
                await hooks.release_unused(hooks.subscriptions.drop(connection))

    def _call_on_stopping(self) -> None:
        callbacks, self.on_stopping = self.on_stopping, []
        for callback in callbacks:
            callback()

    async def drain(self) -> None:
        """Shutdown stage: wait until all running work has ended."""
        await asyncio.gather(*(connection.wait_drained() for connection in self.connections))
        if self.routes is not None:
            await self.routes.drain()
        if self.forwarder is not None:
            await self.forwarder.drained()
        if self._ledger is not None:
            await self._ledger.drain()
        if self._tasks is not None:
            await self._tasks.drain()

    async def close_transports(self) -> None:
        """Shutdown stage: close every connection."""
        self._call_on_stopping()
        places, self.listeners = self.listeners, []
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.stop()
        for place in places:  # a crash has left them open
            await place.close()
        await asyncio.gather(*(connection.close() for connection in self.connections))
        for place in places:
            await place.wait_closed()
        carrying, self.forwarder = self.forwarder, None
        if carrying is not None:
            await carrying.close()

    async def persist(self) -> None:
        """Shutdown stage: write the state that outlives the process."""
        if self._ledger is not None:
            await self._ledger.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._shared is not None and self._shared.shared_semaphores is not None:
            await self._shared.shared_semaphores.close()
        if self._lazy_breakers is not None:
            await self._lazy_breakers.close()
        if self._state_tokens is not None:
            await self._state_tokens.close()
            self._state_tokens = None
        if self._shared is not None and self._shared.durable_sessions is not None:
            await self._shared.durable_sessions.close()
        if self._shared is not None and self._shared.cluster is not None:
            await self._shared.cluster.leave()

    async def release_resources(self) -> None:
        """Shutdown stage: shut down mounted servers without other users, close the remaining services and exit the
        lifespan."""
        unmounted, self._unmounted = self._unmounted, []
        for mounted in reversed([*self.mounts, *unmounted]):
            mounted.runtime.users.remove(self)
            if not (mounted.runtime.connections or mounted.runtime.users.in_use):
                await mounted.shutdown()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        for announcer in (self._local_announcer, self._cluster_announcer):
            if announcer is not None:
                announcer.close()
        processes, self._processes = self._processes, None
        if processes is not None:
            await processes.close()
        if self._shared is not None:
            self._shared.threads.close()
            if self._shared.cluster is not None:
                await self._shared.cluster.close()
        if self.file_watch is not None:
            self.file_watch.close()
        if self._catalog.sampling is not None:
            await self._catalog.sampling.close()
        self._loop = self._shared = self._local_announcer = self._cluster_announcer = self._ledger = None
        self._tasks = self._breaker_binding = None
        self.connections.clear_pause()
        self._health.relax_names()
        self._stop_monitoring()
        if self._lazy_users is not None:
            self._lazy_users.mark_ended()
        self.released = True
        if self._components.lifespan is not None:
            await self._components.lifespan.stop()

    def _stop_monitoring(self) -> None:
        """Stop what `start` has started on timers."""
        self._runs_checks = False
        if self._health_monitor is not None:
            self._health_monitor.close()
        if self._slow_calls is not None:
            self._slow_calls.stop()
            self._slow_calls = None
        if self._components.metrics is not None:
            self._components.metrics.stop()

    async def close_store(self) -> None:
        """Close the store, and the receipts of all that used it."""
        receipts, self._receipts = self._receipts, None
        try:
            await self._components.store.close()
        finally:
            if receipts is not None:
                await asyncio.to_thread(receipts.close)

    async def _open_receipts(self, options: "Receipts") -> None:
        """Begin a chain of receipts; concurrent callers share it."""
        from trunkline.receipts.writer import ReceiptWriter  # imported here: few servers write receipts

        opening = self._opening_receipts
        if opening is None:
            work = asyncio.to_thread(ReceiptWriter, options, self._catalog.info.name)
            opening = self._opening_receipts = asyncio.create_task(work)
        try:
            self._receipts = await asyncio.shield(opening)  # a cancelled caller must not cancel the others
        finally:
            if opening.done():
                self._opening_receipts = None

    def _get_receipts(self) -> "ReceiptWriter | None":
        if self._components.receipts is not None and self._receipts is None:
            raise MisuseError("a server with receipts is started first: `await server.start()`")
        return self._receipts

    def describe(self) -> "ServerState":
        """Return the state of the server for its control socket. Called on the loop."""
        from trunkline.server.introspection.process_state import describe_server

        shared, components = self._shared, self._components
        return describe_server(
            self._catalog.info,
            [place.address for place in self.listeners],
            self.connections,
            store=components.store.configured,
            cluster=None if shared is None else shared.cluster,
            worker=self.worker_channel,
            tree=None if self._supervisor is None else self._supervisor.describe(),
            now=0.0 if shared is None else shared.clock.now(),
            observers=components.observers,
            threads=None if shared is None else shared.threads,
            processes=self._processes,
            receipts=self._receipts,
            tasks=() if self._tasks is None else self._tasks.runners,
            breakers=self._lazy_breakers or (),
            subscriptions=self._count_subscriptions,
        )

    def _read_gauges(self) -> "Iterator[Reading]":
        """Return the gauges of the server. Called on the loop."""
        from trunkline.server.introspection.gauges import read_gauges

        shared, streams = self._shared, self._lazy_listen_streams
        return read_gauges(
            self.connections,
            observers=self._components.observers,
            cluster=None if shared is None else shared.cluster,
            threads=None if shared is None else shared.threads,
            processes=self._processes,
            receipts=self._receipts,
            tasks=() if self._tasks is None else self._tasks.runners,
            breakers=self._lazy_breakers or (),
            durable_sessions=None if shared is None else shared.durable_sessions,
            listen_streams=0 if streams is None else streams.count,
        )

    def _count_subscriptions(self, connection: Connection) -> int:
        hooks = self._lazy_subscription_hooks
        return 0 if hooks is None else len(hooks.subscriptions.uris(connection))

    def snapshot(self) -> dict[str, Any]:
        """Describe the server for a crash dump."""
        info = self._catalog.info
        return {
            "server": {"name": info.name, "version": info.version},
            "capabilities": self._catalog.capabilities(),
            "connections": [connection.snapshot() for connection in self.connections],
        }


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"
