"""Runtime state of a server: connections, subscriptions, and the services that connections share.

The runtime creates these services on one event loop, when they are first needed, and closes them there in stages (see
`shutdown.py` for the order). Afterwards the server can serve again, also on another loop.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec import Struct

from trunkline.clock import Clock, LoopClock, WallClock
from trunkline.errors import MisuseError
from trunkline.facts import HandlerFailed, Observers
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
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.cluster.notifications import ClusterNotifications
    from trunkline.server.files.watch import FileWatcher
    from trunkline.server.health_checks import HealthChecks
    from trunkline.server.idempotency.ledger import Ledger
    from trunkline.server.input.multi_round import StateSealers
    from trunkline.server.input.state_keys import StateKeyRing
    from trunkline.server.lifespan import Lifespan
    from trunkline.server.limits.shared_semaphore import SharedSemaphores
    from trunkline.server.notifications.listen import ListenStream, ListenStreams
    from trunkline.server.notifications.resource_updates import ResourceUpdates
    from trunkline.server.notifications.subscription_hooks import SubscriptionHooks
    from trunkline.server.routes import Routes
    from trunkline.server.sessions.durable import DurableSessions
    from trunkline.server.tasks.service import TaskService
    from trunkline.stores.store import Store

__all__ = ["ServerComponents", "ServerRuntime"]

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
        self._lazy_subscription_hooks: SubscriptionHooks[Connection | ListenStream] | None = None
        self._lazy_resource_updates: ResourceUpdates | None = None
        self._lazy_listen_streams: ListenStreams | None = None
        self.on_roots_changed: list[Callable[[Any], Awaitable[None]]] = []
        self.listeners: list[Listener] = []
        self.file_watch: FileWatcher | None = None
        self.forwarder: RequestForwarding | None = None
        self.routes: Routes | None = None  # custom routes, once they are used
        self._local_announcer: Announcer | None = None
        self._cluster_announcer: Announcer | None = None  # announces to other processes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._shared: SharedServices | None = None
        self._ledger: Ledger | None = None
        self._tasks: TaskService | None = None
        self._state_tokens: StateSealers | None = None
        self._health_checks: HealthChecks | None = None
        self._background_tasks: set[asyncio.Task[Any]] = set()
        self._cancelled_work: set[asyncio.Task[Any]] = set()  # tasks of cancelled calls that have not ended yet

    # --- made on first use -----------------------------------------------------------------------

    @property
    def subscription_hooks(self) -> "SubscriptionHooks[Connection | ListenStream]":
        """The resource subscriptions of all clients, and their hooks."""
        if self._lazy_subscription_hooks is None:
            from trunkline.server.notifications.subscription_hooks import SubscriptionHooks

            self._lazy_subscription_hooks = SubscriptionHooks()
        return self._lazy_subscription_hooks

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

    # --- starting --------------------------------------------------------------------------------

    async def start(self, server: Any) -> None:
        """Open the store and enter the lifespan, unless that has happened; both stay open until shutdown."""
        lifespan = self._components.lifespan
        undo = None if lifespan is None else lifespan.users.mark_started()
        try:
            await self._open_store_and_join(server)
        except BaseException:
            if undo is not None:
                undo()
            raise

    async def attach(self, server: Any, client: object) -> None:
        """Do the same for a client in this process, until `detach`."""
        if self._components.lifespan is not None:
            self._components.lifespan.users.add(client)
        try:
            await self._open_store_and_join(server)
        except BaseException:
            await self.detach(client)
            raise

    async def detach(self, client: object) -> None:
        """Exit the lifespan if this was its last user, once no handler runs. While a task runs, exit it later in the
        background."""
        lifespan = self._components.lifespan
        if lifespan is None:
            return
        lifespan.users.remove(client)
        if lifespan.users.in_use or not lifespan.running:
            return
        leaving = asyncio.create_task(self._leave_lifespan(lifespan))
        self._background_tasks.add(leaving)
        leaving.add_done_callback(self._background_tasks.discard)
        if self._tasks is None or not self._tasks.running_count:
            await asyncio.shield(leaving)

    async def _leave_lifespan(self, lifespan: "Lifespan") -> None:
        if self._cancelled_work:
            await asyncio.wait(self._cancelled_work, timeout=self._catalog.settings.stage_timeout)
        if self._ledger is not None:
            await self._ledger.drain()
        if self._tasks is not None:
            await self._tasks.drain()
        if lifespan.users.in_use:
            return
        try:
            await lifespan.stop()
        except Exception as error:  # noqa: BLE001 - reported to observers: no client caused it
            self._report_failure(error, "the lifespan")

    def _report_failure(self, error: Exception, what: str) -> None:
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
        if components.lifespan is not None:
            await components.lifespan.start(server)
        if components.store.lasting:
            shared = self.get_services()
            await self._load_secrets(shared)
            if shared.cluster is not None:
                await shared.cluster.join()
        if components.store.lasting and catalog.task_tools():
            shared = self.get_services()
            shared.tasks.start_recovery(shared, lasting=True)

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
        lifespan = self._components.lifespan
        if lifespan is not None and not lifespan.running:
            raise MisuseError("a server with a lifespan is started first: `await server.start()`")
        connection = self._make_connection(self.get_services(), channel)
        self.connections.add(connection)
        return connection

    @staticmethod
    def _make_connection(services: SharedServices, channel: Channel) -> Connection:
        if services.cluster_notifications is None:
            return Connection(services, channel)
        from trunkline.server.durable_connection import DurableConnection

        return DurableConnection(services, channel)

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
        self._thread = threading.get_ident()
        clock = components.clock or LoopClock(loop)
        wall = components.clock or WallClock()
        get_store = cache(partial(components.store.get_open, wall))
        configured = None if components.store.configured is None else get_store()
        lasting = configured if components.store.lasting else None
        cluster = self._make_cluster(lasting, clock, wall)
        durable_sessions = self._make_durable_sessions(lasting, wall, cluster)
        self._local_announcer = Announcer(settings.list_changed_interval, clock, self._broadcast_list_changed)
        return SharedServices(
            catalog=self._catalog,
            dispatcher=components.dispatcher,
            threads=ThreadPool(loop, settings.max_threads),
            clock=clock,
            observers=components.observers,
            get_subscription_hooks=lambda: self.subscription_hooks,
            on_roots_changed=self.on_roots_changed,
            owner=self,
            get_listen_streams=lambda: self.listen_streams,
            get_state_tokens=cache(partial(self._make_state_tokens, lasting, wall)),
            get_store=get_store,
            wall_clock=wall,
            get_tasks=self._lazy_tasks(get_store, wall, cluster),
            durable_sessions=durable_sessions,
            cluster=cluster,
            cluster_notifications=self._make_notification_fanout(durable_sessions, cluster, clock),
            get_ledger=self._get_ledger,
            shared_semaphores=self._make_shared_semaphores(lasting, wall, cluster),
            get_lifespan_value=lambda: None if components.lifespan is None else components.lifespan.value,
        )

    def health_checks(self) -> "HealthChecks":
        """Return the health checks that `/readyz` runs."""
        from trunkline.server.health_checks import HealthChecks

        if self._health_checks is None:
            self._health_checks = HealthChecks(self._health.by_name)
        return self._health_checks

    def _lazy_tasks(
        self, get_store: "Callable[[], Store]", wall_clock: Clock, cluster: "Cluster | None"
    ) -> "Callable[[], TaskService]":
        """Return a function that makes the task service of these services on its first call. It never makes one for
        later services, so a late callback after shutdown cannot start the runtime again."""
        made: TaskService | None = None

        def get_tasks() -> "TaskService":
            nonlocal made
            if made is None:
                from trunkline.server.tasks.recovery import TaskRecovery
                from trunkline.server.tasks.service import TaskService

                settings = self._catalog.settings
                made = self._tasks = TaskService(get_store(), wall_clock, settings, TaskRecovery, cluster)
            return made

        return get_tasks

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

        return DurableSessions(store, self._catalog.settings, wall_clock, self._components.observers, cluster)

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
        if self._shared is None or threading.get_ident() == self._thread:
            action()
        else:
            self._shared.threads.post(action)  # runs before the reply of a handler on this thread

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

    def resource_updated(self, uri: str) -> None:
        """Notify the subscribers of a resource, in all processes."""
        self.resource_updates.send(uri)
        if self._shared is not None and self._shared.cluster_notifications is not None:
            self._shared.cluster_notifications.publish(uri)

    def _on_remote_change(self, change: str) -> None:
        """Pass on a change that another process has announced."""
        if change in _LIST_CHANGED:
            self.announce_locally(change)
        else:
            self.resource_updates.send(change)

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
        for connection in self.connections:
            connection.drain()
        self.end_listen_streams()
        if self._lazy_resource_updates is not None:
            self._lazy_resource_updates.close()
        for place in self.listeners:
            await place.close()
        hooks = self._lazy_subscription_hooks
        for connection in self.connections:
            if hooks is not None and connection.durable_session is None:  # a durable session keeps its subscriptions
                await hooks.release_unused(hooks.subscriptions.drop(connection))

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
        places, self.listeners = self.listeners, []
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
        if self._state_tokens is not None:
            await self._state_tokens.close()
            self._state_tokens = None
        if self._shared is not None and self._shared.durable_sessions is not None:
            await self._shared.durable_sessions.close()
        if self._shared is not None and self._shared.cluster is not None:
            await self._shared.cluster.leave()

    async def release_resources(self) -> None:
        """Shutdown stage: close the remaining services and exit the lifespan."""
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        for announcer in (self._local_announcer, self._cluster_announcer):
            if announcer is not None:
                announcer.close()
        if self._shared is not None:
            self._shared.threads.close()
            if self._shared.cluster is not None:
                await self._shared.cluster.close()
        if self.file_watch is not None:
            self.file_watch.close()
        self._loop = self._thread = self._shared = self._local_announcer = self._cluster_announcer = self._ledger = None
        self._tasks = None
        self.connections.clear_pause()
        self._health.relax_names()
        if self._health_checks is not None:
            self._health_checks.close()
        if self._components.lifespan is not None:
            self._components.lifespan.users.mark_ended()
            await self._components.lifespan.stop()

    async def close_store(self) -> None:
        """Close the store."""
        await self._components.store.close()

    def snapshot(self) -> dict[str, Any]:
        """Describe the server for a crash dump."""
        info = self._catalog.info
        return {
            "server": {"name": info.name, "version": info.version},
            "capabilities": self._catalog.capabilities(),
            "connections": [connection.snapshot() for connection in self.connections],
        }
