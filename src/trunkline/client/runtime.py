"""The working parts of a client: its connection, retries, response cache, known tools and listen request.

All of it runs on the event loop that the client was opened on. Calls from other loops are moved there.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

from msgspec import UNSET

from trunkline.client.cache import CACHEABLE, ResponseCache
from trunkline.client.connection import ClientConnection
from trunkline.client.custom_methods import RequestHandlers
from trunkline.client.known_tools import KnownTools
from trunkline.client.listen import ListenSubscription
from trunkline.client.notifications import NotificationHandlers
from trunkline.client.pagination import fetch_all_pages
from trunkline.client.reconnect import ConnectionSupervisor
from trunkline.client.renewal import StateRequest, renew
from trunkline.client.results import decode_result
from trunkline.client.retry import (
    OnProgress,
    Repeatable,
    RetryBackoff,
    ServerReply,
    always_repeatable,
    is_passing,
    send_with_retry,
)
from trunkline.client.tasks.status import TaskStarted, decode_call_result
from trunkline.client.tasks.watch import TaskChangeWaiters
from trunkline.clock import Clock, LoopClock
from trunkline.config import Settings
from trunkline.errors import ConnectionClosed, MisuseError, OutcomeUnknown, PeerError, RequestTimeout, TrunklineError
from trunkline.facts import Observers
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.custom_methods import is_custom
from trunkline.protocol.inflight import OutgoingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.meta import REFUSAL, TOOL_ERROR
from trunkline.protocol.methods import Side, TimeLimit, find_method
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import (
    CallToolParams,
    CallToolResult,
    Implementation,
    ListToolsResult,
    LoggingLevel,
    PaginatedParams,
    ProgressParams,
    ResourceUpdatedParams,
    Root,
    SetLevelParams,
    SubscribeParams,
    SubscriptionsAcknowledgedParams,
)
from trunkline.rpc.connection import LoopResources
from trunkline.rpc.current_call import time_left
from trunkline.rpc.dispatch import CustomMethod, Dispatcher, Feature
from trunkline.rpc.threads import ThreadPool
from trunkline.transports.channel import Channel, ChannelClosed, Connector, MessageOrigin, MirroringChannel
from trunkline.wire import codec
from trunkline.wire.messages import Notification

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["Callbacks", "ClientDeclaration", "ClientRuntime", "refusal_of", "reports_timeout"]

T = TypeVar("T")
_NO_OPTIONS: Final[Mapping[str, Any]] = {}
_UPDATED: Final = "notifications/resources/updated"
_NOT_OPEN: Final = "the client is not open: `async with client:` or `await client.open()` comes first"
_LOOP_ENDED: Final = "the event loop that this client was opened on has ended"


class HostedFeature(Protocol):
    """Tasks that a client runs for its server."""

    def feature(self) -> Feature: ...
    def close(self) -> None: ...


class Callbacks(Protocol):
    """Answers to the requests of a server: `HostCallbacks`, or those of a proxy."""

    roots: list[Root] | None

    @property
    def tasks(self) -> HostedFeature: ...
    def capabilities(self) -> dict[str, Any]: ...
    def feature(self) -> Feature: ...
    async def close(self) -> None: ...


class ClientDeclaration(NamedTuple):
    """What a client declares to its server, besides the capabilities of its callbacks."""

    info: Implementation
    revisions: tuple[Revision, ...]
    experimental: Mapping[str, Any]
    extensions: Mapping[str, Any]
    profile: "Profile | None" = None
    forwards: bool = False  # requests may have the envelope of another client


class ClientRuntime:
    """State and background work of one client."""

    def __init__(
        self,
        connector: Connector,
        declaration: ClientDeclaration,
        callbacks: Callbacks,
        *,
        settings: Settings,
        observers: Observers,
        clock: Clock | None,
        log_level: LoggingLevel | None,
        default_log_level: LoggingLevel | None,
        on_failed: Callable[[TrunklineError], object] | None,
        on_phase: Callable[[Phase], object] | None,
        on_connected: Callable[[bool], object] = bool,
        listens: bool = True,
    ) -> None:
        """`default_log_level` applies in the modern era, where every request states a level, without a `log_level`.
        `on_connected` is called with each new connection, and with whether it replaces a lost one. Without `listens`,
        the client opens no `subscriptions/listen` request."""
        self.settings = settings
        self.callbacks = callbacks
        self.log_level: LoggingLevel | None = log_level
        self.cache = ResponseCache()
        self.known_tools = KnownTools()
        self.subscriptions: dict[str, None] = {}  # resource URIs, renewed after a reconnect
        self.task_waiters = TaskChangeWaiters()
        self.notifications = NotificationHandlers(settings.max_heard)
        self.request_handlers = RequestHandlers()
        self.clock: Clock | None = None
        self.supervisor: ConnectionSupervisor | None = None
        self.listen_subscription: ListenSubscription | None = None
        self._connector = connector
        self._declaration = declaration
        self._observers = observers
        self._custom_clock = clock
        self._default_log_level: LoggingLevel | None = default_log_level
        self._on_failed = on_failed
        self._on_phase = on_phase
        self._on_connected = on_connected
        self._listens = listens
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tools_reader: asyncio.Task[None] | None = None
        self._register_internal_handlers()

    def _register_internal_handlers(self) -> None:
        self.notifications.on_internal("notifications/tools/list_changed", lambda _: self.known_tools.mark_stale())
        self.notifications.on_internal("notifications/subscriptions/acknowledged", self._on_acknowledged)
        handlers = (self.cache.notification_handlers(), self.task_waiters.notification_handlers())
        for name, handler in (item for table in handlers for item in table.items()):
            self.notifications.on_internal(name, handler)

    # --- state ---------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time on the client's clock; 0.0 before the client is opened."""
        return 0.0 if self.clock is None else self.clock.now()

    @property
    def latest(self) -> ClientConnection | None:
        """The connection that was opened last, usable or not."""
        return None if self.supervisor is None else self.supervisor.latest

    @property
    def session(self) -> Session | None:
        """The session of the latest connection."""
        return None if self.latest is None else self.latest.session

    @property
    def revision(self) -> Revision | None:
        """The negotiated revision."""
        return None if self.session is None else self.session.revision

    @property
    def server_capabilities(self) -> Mapping[str, Any]:
        """The capabilities that the server has declared."""
        negotiated = None if self.session is None else self.session.negotiated
        return {} if negotiated is None else negotiated.server

    @property
    def modern(self) -> bool:
        """Whether the server speaks the modern era; while reconnecting, whether it did before the loss."""
        last = None if self.supervisor is None else self.supervisor.last_ready
        return last is not None and last.modern

    # --- opening and closing -------------------------------------------------------------------

    async def open(self) -> None:
        """Open the connection, or wait until it is open. Called on the client's loop."""
        while self.supervisor is not None and self.supervisor.stopping:
            await self.supervisor.wait_ended()
        if self.supervisor is None or self.supervisor.done:
            self.supervisor = self._make_supervisor()
        await self.supervisor.wait_opened()

    def stop_waiters(self) -> None:
        """End notification readers, tasks that the client hosts for the server, and waits for task changes."""
        self.notifications.close()
        self.callbacks.tasks.close()
        self.task_waiters.close()

    async def close(self) -> None:
        """Close the connection and wait until all of its work has ended."""
        if self.supervisor is not None:
            await self.supervisor.close()
            await self.callbacks.close()
            await self._observers.drain(self.settings.stop_timeout)

    def _make_supervisor(self) -> ConnectionSupervisor:
        loop = self._loop = asyncio.get_running_loop()
        clock = self.clock = self._custom_clock or LoopClock(loop)
        features = (self.callbacks.feature(), self.callbacks.tasks.feature(), self.notifications.feature())
        threads = ThreadPool(loop, self.settings.max_threads)
        shared = LoopResources(Dispatcher(features, self._find_custom), threads, clock, self._observers)
        self.known_tools.mark_stale()
        return ConnectionSupervisor(
            self._connector,
            partial(self._make_connection, shared),
            self._prepare_connection,
            settings=self.settings,
            clock=clock,
            observers=self._observers,
            on_failed=self._on_failed,
            on_phase=self._on_phase,
            on_end=threads.close,
        )

    def _find_custom(self, name: str) -> CustomMethod | None:
        """Return a method outside of the specification that this client handles."""
        if not is_custom(name):
            return None
        return self.request_handlers.find(name) or self.notifications.find_custom(name)

    def _make_connection(
        self,
        shared: LoopResources,
        channel: Channel,
        phase: Phase,
        classify_close: Callable[[ClientConnection, ChannelClosed], Signal],
    ) -> ClientConnection:
        capabilities = self.callbacks.capabilities()
        profile, experimental = self._declaration.profile, self._declaration.experimental
        if profile is not None:
            capabilities = {**dict.fromkeys(sorted(profile.features), _NO_OPTIONS), **capabilities}
            experimental = {profile.capability: _NO_OPTIONS, **experimental}
        if experimental:
            capabilities["experimental"] = experimental
        capabilities["extensions"] = self._declaration.extensions
        session = Session(
            Side.CLIENT,
            info=self._declaration.info,
            capabilities=capabilities,
            revisions=self._declaration.revisions,
            settings=self.settings,
            phase=phase,
            profile=profile,
            find_custom=shared.dispatcher.find_custom_row,
        )
        if isinstance(channel, MirroringChannel):
            channel.set_mirrors(self.known_tools.mirrors)
        connection = ClientConnection(shared, session, channel, classify_close)
        connection.on_authorized = self.cache.clear  # the new token may belong to another user
        return connection

    async def _prepare_connection(self, connection: ClientConnection, reconnected: bool) -> None:
        """Restore the client's state on a new connection: log level, subscriptions, known tools."""
        session, steps = connection.session, list[Coroutine[Any, Any, Any]]()
        self.cache.clear()
        if session.client_envelope is not None:
            session.client_envelope.set_log_level(self.log_level or self._default_log_level)
            session.client_envelope.keeps_given = self._declaration.forwards
            if self._listens:
                steps.append(self._open_listen(connection))
        if self.log_level is not None and session.may_send("logging/setLevel"):
            steps.append(renew(self._log_level_request(self.log_level), connection, self.supervisor))
        if reconnected:
            if session.may_send("resources/subscribe"):
                steps += [
                    renew(self._subscribe_request(uri, connection), connection, self.supervisor)
                    for uri in self.subscriptions
                ]
            self.known_tools.mark_stale()
            if self.known_tools.requested and session.may_send("tools/list"):
                steps.append(self._read_tools(connection))
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, ConnectionClosed):
                raise outcome
            if isinstance(outcome, Exception):
                connection.facts.report_dropped(f"not renewed: {outcome}", "not_renewed")
        if reconnected:
            self._replay_resource_updates(connection, self.subscriptions)
        self._on_connected(reconnected)

    def _log_level_request(self, level: LoggingLevel) -> StateRequest:
        return StateRequest(
            "logging/setLevel", SetLevelParams(level), lambda: self.log_level == level, on_late=lambda: None
        )

    def _subscribe_request(self, uri: str, connection: ClientConnection) -> StateRequest:
        return StateRequest(
            "resources/subscribe",
            SubscribeParams(uri=uri),
            lambda: uri in self.subscriptions,
            on_late=lambda: self._replay_resource_updates(connection, [uri]),
        )

    # --- the client's loop ---------------------------------------------------------------------

    @property
    def on_other_loop(self) -> bool:
        """Whether the client is open on a loop other than the running one."""
        return self.supervisor is not None and not self.supervisor.done and self._loop is not asyncio.get_running_loop()

    async def run_on_own_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop and return its result, from any loop."""
        return await (self.run_from_other_loop(work) if self.on_other_loop else work)

    async def run_from_other_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop, called on another one."""
        own = cast("asyncio.AbstractEventLoop", self._loop)  # set together with the supervisor
        try:
            outcome = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, own))
        except RuntimeError:  # closed; the thread of the loop may close it at any time
            work.close()
            raise MisuseError(_LOOP_ENDED) from None
        try:
            await asyncio.wait([outcome])
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        if outcome.cancelled():
            raise OutcomeUnknown(_LOOP_ENDED)
        return outcome.result()

    def require_supervisor(self) -> ConnectionSupervisor:
        """Return the connection supervisor; raise `MisuseError` if the client was never opened."""
        if self.supervisor is None:
            raise MisuseError(_NOT_OPEN)
        return self.supervisor

    # --- requests ------------------------------------------------------------------------------

    async def request(
        self,
        name: str,
        params: Any,
        *,
        repeatable: Repeatable = always_repeatable,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Send a request, but no tool call, and return its decoded result; that of a fresh cache entry, if there is
        one."""
        supervisor, clock = self.require_supervisor(), self.clock
        if clock is None:
            raise MisuseError(_NOT_OPEN)
        if (inherited := time_left()) is not None:  # the caller is a handler, whose call has a deadline
            timeout = _shortest(name, timeout, inherited, self.settings)
        if asyncio.get_running_loop() is not self._loop:
            work = self.request(name, params, repeatable=repeatable, timeout=timeout, on_progress=on_progress)
            return await self.run_from_other_loop(work)
        if name in CACHEABLE and supervisor.connection is not None:
            cached = self.cache.get(name, params, clock.now())
            if cached is not None:
                return self._decode(name, cached, supervisor.connection, params)
        drop_count = self.cache.drop_count
        try:
            reply = await send_with_retry(
                supervisor,
                clock,
                name,
                params,
                repeatable=repeatable,
                timeout=timeout,
                on_progress=None if on_progress is None else self._progress_callback(supervisor, on_progress),
                send_timeout=timeout is not None and _runs_user_code(name),
            )
        except PeerError:
            if name in CACHEABLE:
                self.cache.drop(name)  # the cursor may belong to an outdated list
            raise
        result = self._decode(name, reply.raw, supervisor.latest, params)
        cacheable = name in CACHEABLE and not reply.rounds and self.revision is Revision.V2026_07_28
        if cacheable and (seconds := read_result_header(reply.raw).fresh_for):
            self.cache.store(name, params, reply.raw, clock.now() + seconds, drop_count=drop_count)
        return result

    async def call_tool(
        self,
        params: CallToolParams,
        *,
        repeatable: Repeatable,
        timeout: float | None,
        on_progress: OnProgress | None,
        on_abandoned: Callable[[OutgoingRequest], None],
    ) -> CallToolResult | TaskStarted:
        """Call a tool as `send_tool_call` does, and decode its result. If that has structured content, the known tools
        are up to date then."""
        due = None if timeout is None else self.now() + timeout
        reply = await self.send_tool_call(
            params, repeatable=repeatable, timeout=timeout, on_progress=on_progress, on_abandoned=on_abandoned
        )
        result = decode_call_result(reply.raw, reply.request, is_task=reply.is_task)
        if refusal_of(result):
            _, result = await self.repeat_refused_call(
                reply, params, repeatable=repeatable, due=due, on_progress=on_progress, on_abandoned=on_abandoned
            )
        if not self.known_tools.fresh:
            await self.wait_for_tools(result, due)
        return result

    async def repeat_refused_call(
        self,
        reply: ServerReply,
        params: CallToolParams,
        *,
        repeatable: Repeatable,
        due: float | None,
        on_progress: OnProgress | None,
        on_abandoned: Callable[[OutgoingRequest], None],
    ) -> tuple[ServerReply, CallToolResult | TaskStarted]:
        """Call a tool again, as long as the server refuses the call for its rate, there is time left and the budget for
        retries allows it. Return the last reply and its result."""
        backoff = RetryBackoff(self.require_supervisor())
        while True:
            result = decode_call_result(reply.raw, reply.request, is_task=reply.is_task)
            left = None if due is None else due - self.now()
            if not await backoff.wait(backoff.delay_after_refusal(refusal_of(result)), left):
                return reply, result
            reply = await self.send_tool_call(
                params,
                repeatable=repeatable,
                timeout=None if due is None else due - self.now(),
                on_progress=on_progress,
                on_abandoned=on_abandoned,
            )

    def send_tool_call(
        self,
        params: CallToolParams,
        *,
        repeatable: Repeatable,
        timeout: float | None,
        on_progress: OnProgress | None,
        on_abandoned: Callable[[OutgoingRequest], None],
    ) -> Coroutine[Any, Any, ServerReply]:
        """Call a tool and return the undecoded reply. Read the tools meanwhile if they may have changed;
        `wait_for_tools` waits for that.

        `on_abandoned` is called with a request whose caller has stopped waiting, and which the server may still answer
        with a task.
        """
        supervisor, clock = self.supervisor, self.clock
        if supervisor is None or clock is None:
            raise MisuseError(_NOT_OPEN)
        if (inherited := time_left()) is not None:  # the caller is a handler, whose call has a deadline
            timeout = _shortest("tools/call", timeout, inherited, self.settings)
        last = supervisor.last_ready
        may_become_task = last.supports_tasks_extension if last is not None and last.modern else params.task is not None
        if asyncio.get_running_loop() is not self._loop:
            work = self._forward_tool_call(
                params, repeatable=repeatable, timeout=timeout, on_progress=on_progress, on_abandoned=on_abandoned
            )
            return self.run_from_other_loop(work)
        if not self.known_tools.fresh:
            self._read_tools_in_background(supervisor)
        return send_with_retry(
            supervisor,
            clock,
            "tools/call",
            params,
            repeatable=repeatable,
            timeout=timeout,
            on_progress=None if on_progress is None else self._progress_callback(supervisor, on_progress),
            refresh_tools=self._refresh_tools,
            on_abandoned=on_abandoned if may_become_task else None,
            send_timeout=timeout is not None,
        )

    async def _forward_tool_call(self, params: CallToolParams, **options: Any) -> ServerReply:
        return await self.send_tool_call(params, **options)

    def _decode(self, name: str, raw: Any, connection: ClientConnection | None, params: Any = None) -> Any:
        """Decode a result; leave out the tools that this client cannot call."""
        result = decode_result(name, raw, params)
        if isinstance(result, ListToolsResult) and connection is not None and connection.mirrors_arguments:
            result.tools = self.known_tools.filter_callable(result.tools)
        return result

    def _progress_callback(
        self, supervisor: ConnectionSupervisor, on_progress: OnProgress
    ) -> Callable[[ProgressParams], None]:
        """Wrap a progress callback; an async one runs in the background."""

        def report(progress: ProgressParams) -> None:
            value = on_progress(progress)
            if inspect.isawaitable(value):
                supervisor.run_in_background(_await(value))

        return report

    async def notify(self, name: str, params: dict[str, Any], timeout: float | None) -> None:
        """Send a notification outside of the specification; wait for a connection, and while the server reads too
        slowly. Raises `MisuseError` for params that cannot be sent."""
        connection = await self.require_supervisor().wait_for_connection(name, timeout)
        try:
            sent = connection.notify(name, params)
        except (TypeError, ValueError, RecursionError) as error:
            raise MisuseError(f"params of {name}: {error}") from error
        if not sent:
            raise MisuseError(f"{name} was not sent: it is too large, or the connection is closing")
        await connection.channel.drain()

    # --- known tools ---------------------------------------------------------------------------

    async def task_support(self, name: str, timeout: float | None) -> str | None:
        """Return `execution.taskSupport` of a tool where clients choose which calls run as tasks (2025-11-25); None
        elsewhere. Waits for a connection."""
        supervisor = self.supervisor
        if supervisor is None:
            return None
        if self.on_other_loop and (supervisor.connection is None or not self.known_tools.fresh):
            return await self.run_from_other_loop(self.task_support(name, timeout))
        connection = supervisor.connection or await supervisor.wait_for_connection(
            "tools/call", timeout or self.settings.work_timeout
        )
        if not connection.supports_tool_tasks:
            return None
        if not self.known_tools.fresh:
            self._read_tools_in_background(supervisor)
            await self._wait_for_tools(supervisor, None)
        known = self.known_tools.by_name.get(name)
        execution = None if known is None else known.tool.execution
        return "forbidden" if execution is None else execution.task_support

    def _read_tools_in_background(self, supervisor: ConnectionSupervisor) -> None:
        self.known_tools.requested = True
        if supervisor.connection is not None and (self._tools_reader is None or self._tools_reader.done()):
            self._tools_reader = supervisor.run_in_background(self._read_tools(supervisor.connection))

    async def wait_for_tools(self, result: CallToolResult | TaskStarted, due: float | None) -> None:
        """Wait until the tools have been read, or until `due`, if a result has content that they describe."""
        if isinstance(result, CallToolResult) and result.structured_content is not UNSET:
            await self.run_on_own_loop(self._wait_for_tools(self.require_supervisor(), due))

    async def _wait_for_tools(self, supervisor: ConnectionSupervisor, due: float | None) -> None:
        """Wait until the tools have been read, or until `due`."""
        if self._tools_reader is not None and not self._tools_reader.done() and not self.known_tools.fresh:
            await supervisor.wait_for([self._tools_reader], due)

    async def _read_tools(self, connection: ClientConnection) -> None:
        """Read the list of tools. If the server refuses, calls work without that knowledge; if it refuses for now, the
        next call reads the list."""
        changes = self.known_tools.changes

        async def page(cursor: str | None) -> ListToolsResult:
            raw = await connection.request("tools/list", PaginatedParams(cursor=cursor))
            return self._decode("tools/list", raw, connection)

        try:
            listed = await fetch_all_pages("tools/list", page, self.settings)
        except ConnectionClosed:
            return
        except TrunklineError as error:
            connection.facts.report_dropped(f"the tools cannot be listed: {error}", "no_catalog")
            if isinstance(error, RequestTimeout) or not is_passing(error):  # a timeout would delay every call
                self.known_tools.fill(None, changes)
        else:
            self.known_tools.fill(listed.tools, changes)

    async def _refresh_tools(self, connection: ClientConnection) -> None:
        """Read the tools again: the server found a call inconsistent with its tool."""
        self.cache.drop("tools/list")
        self.known_tools.mark_stale()
        await self._read_tools(connection)

    # --- subscriptions -------------------------------------------------------------------------

    async def _open_listen(self, connection: ClientConnection) -> None:
        """Open `subscriptions/listen` on a connection of the modern era."""
        subscription = self.listen_subscription = ListenSubscription(
            connection,
            self._subscribed_uris,
            partial(self._on_missed_notifications, connection),
            lambda: self.task_waiters.task_ids,
        )
        if self.supervisor is not None:
            self.supervisor.run_in_background(subscription.keep_open())
        await subscription.open()

    def _subscribed_uris(self) -> Iterable[str]:
        return self.subscriptions

    def _on_acknowledged(self, params: SubscriptionsAcknowledgedParams) -> None:
        if self.listen_subscription is not None:
            self.listen_subscription.on_acknowledged(params)

    def _on_missed_notifications(self, connection: ClientConnection) -> None:
        self.cache.clear()
        self.known_tools.mark_stale()
        self._replay_resource_updates(connection, self.subscriptions)

    def _replay_resource_updates(self, connection: ClientConnection, uris: Iterable[str]) -> None:
        """Report subscribed resources as updated: they may have changed while the client was not listening."""
        updates = [ResourceUpdatedParams(uri=uri) for uri in uris]
        connection.received([Notification(_UPDATED, codec.to_raw(params)) for params in updates], MessageOrigin())

    async def update_listen(self, uri: str, timeout: float | None, *, subscribe: bool) -> bool:
        """Add a resource to the listen request, or remove it; return False where a request of its own does that."""
        if self.on_other_loop:
            return await self.run_from_other_loop(self.update_listen(uri, timeout, subscribe=subscribe))
        supervisor, backoff = self.supervisor, None
        while supervisor is not None:
            connection = await supervisor.wait_for_connection("subscriptions/listen", timeout)
            if not connection.modern or self.listen_subscription is None:
                break
            try:
                await self.listen_subscription.update_resource(uri, timeout, subscribe=subscribe)
            except ConnectionClosed:
                backoff = backoff or RetryBackoff(supervisor)
                if not await backoff.wait(backoff.delay_after_loss(connection), timeout):
                    raise
            else:
                if subscribe:
                    self.subscriptions[uri] = None
                return True
        return False

    def set_request_log_level(self, level: LoggingLevel) -> bool:
        """State the log level in every request from now on; return False where `logging/setLevel` does that."""
        envelope = None if self.session is None else self.session.client_envelope
        if envelope is not None:
            envelope.set_log_level(level)
        return self.modern


def _runs_user_code(name: str) -> bool:
    """Return whether a request runs a handler of the server, which should not outlast the caller."""
    row = find_method(name)
    return row is None or row.time_limit is TimeLimit.WORK


def _shortest(name: str, timeout: float | None, inherited: float, settings: Settings) -> float | None:
    """Return the timeout of a request within the time that is left for the caller's own call; None for the default of
    the method, if that is shorter."""
    row = find_method(name)
    usual = settings.work_timeout if row is None else row.time_limit.seconds(settings)
    if timeout is not None:
        return min(timeout, inherited)
    return inherited if usual is None or inherited < usual else None


def refusal_of(result: "CallToolResult | TaskStarted") -> dict[str, Any]:
    """Return the refusal that a failed result carries; an empty one if there is none."""
    return _failure_details(result, REFUSAL)


def reports_timeout(result: "CallToolResult | TaskStarted") -> bool:
    """Return whether a result says that the tool exceeded its time limit."""
    return _failure_details(result, TOOL_ERROR).get("kind") == "tool_execution_timeout"


def _failure_details(result: "CallToolResult | TaskStarted", key: str) -> dict[str, Any]:
    if not isinstance(result, CallToolResult) or not result.is_error or result.meta is None:
        return {}
    details: Any = result.meta.get(key)
    return cast("dict[str, Any]", details) if isinstance(details, dict) else {}


async def _await(value: Any) -> Any:
    return await value
