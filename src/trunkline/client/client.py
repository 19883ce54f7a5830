"""Client: what people write. Puts the parts together and keeps the line."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from msgspec import UNSET

from trunkline.client.cache import CACHEABLE, ResponseCache
from trunkline.client.calls import fetch_all_pages
from trunkline.client.client_options import OPTION_KINDS
from trunkline.client.connection import ClientConnection
from trunkline.client.host_callbacks import Elicit, HostCallbacks, OpenUrl, RootLike, Sample, to_root
from trunkline.client.listen import ListenSubscription
from trunkline.client.notifications import NotificationHandlers, NotificationReader
from trunkline.client.reconnect import ConnectionSupervisor
from trunkline.client.results import decode_result
from trunkline.client.retry import OnProgress, RetryBackoff, send_with_retry
from trunkline.client.standing import NOT_OPEN, Pending
from trunkline.client.targets import allowed_reach, display_name, make_connector
from trunkline.client.tasks.status import decode_call_result
from trunkline.client.tasks.tasking import Tasking
from trunkline.clock import Clock, LoopClock
from trunkline.config import Settings
from trunkline.errors import (
    ConnectionClosed,
    MisuseError,
    OutcomeUnknown,
    PeerError,
    TrunklineError,
)
from trunkline.errors.options import check_name, check_options
from trunkline.facts import Observer, Observers
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.extensions import validate_extensions
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import (
    CallToolResult,
    Implementation,
    ListToolsResult,
    LoggingLevel,
    LoggingMessageParams,
    PaginatedParams,
    ProgressParams,
    ResourceUpdatedParams,
    SetLevelParams,
    SubscribeParams,
    SubscriptionsAcknowledgedParams,
)
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.rpc.connection import LoopResources
from trunkline.rpc.dispatch import Dispatcher
from trunkline.rpc.threads import ThreadPool
from trunkline.transports.channel import Channel, ChannelClosed, MessageOrigin, MirroringChannel
from trunkline.version import __version__
from trunkline.wire import codec
from trunkline.wire.messages import Notification

if TYPE_CHECKING:
    from trunkline.transports.http.client.credentials import Auth

__all__ = ["Client", "Pending"]

T = TypeVar("T")
_UPDATED: Final = "notifications/resources/updated"
_LOOP_ENDED: Final = "the event loop that this client was opened on has ended"


class Client(Tasking):
    """An MCP client: `async with Client(target) as client`.

    The target is a command (a list, or one text), a script, `tcp://host:port`, `unix:///path`, or a `Server` in this
    process. The connection belongs to a task of its own, so a client may be opened and closed from anywhere, as often
    as one likes.
    """

    def __init__(
        self,
        target: Any,
        *,
        auth: "Auth | None" = None,
        name: str = "trunkline",
        version: str | None = None,
        title: str | None = None,
        settings: Settings | None = None,
        revision: str | None = None,
        sampling: Sample | None = None,
        sampling_tools: bool = False,
        elicitation: Elicit | None = None,
        open_url: OpenUrl | None = None,
        roots: Iterable[RootLike] | None = None,
        on_log: Callable[[LoggingMessageParams], Any] | None = None,
        log_level: LoggingLevel | None = None,
        on_failed: Callable[[TrunklineError], object] | None = None,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Mapping[str, Any]] | None = None,
        observers: Iterable[Observer] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`auth` proves who we are to a server on the web: a token, or a way to get some, such as
        `trunkline.auth.OAuth()`. `revision` is the newest to be spoken. `sampling`, `elicitation`, `open_url` and
        `roots` answer what the server asks; what is not given is not offered. `on_failed` is told when a line that was
        lost will not be made again."""
        given = {
            "version": version,
            "title": title,
            "settings": settings,
            "sampling": sampling,
            "sampling_tools": sampling_tools,
            "elicitation": elicitation,
            "open_url": open_url,
            "roots": roots,
            "on_log": on_log,
            "log_level": log_level,
            "on_failed": on_failed,
            "experimental": experimental,
            "extensions": extensions,
            "observers": observers,
            "clock": clock,
        }
        check_name("a client", name, 'name="my-app"')
        check_options("client", given, OPTION_KINDS)
        super().__init__()
        self.settings = settings or Settings()
        self._connector = make_connector(target, self.settings, auth)
        self._info = Implementation(name=name, version=version or __version__, title=title)
        self._revisions = _revisions_up_to(revision)
        self._callbacks = HostCallbacks(
            sampling=sampling,
            sampling_tools=sampling_tools,
            elicitation=elicitation,
            open_url=open_url,
            roots=roots,
            reach=allowed_reach(self._connector, self.settings),
        )
        self._experimental = dict(experimental or {})
        self._extensions = validate_extensions(extensions)
        self._notifications = NotificationHandlers(self.settings.max_heard)
        self._notifications.on_internal(
            "notifications/tools/list_changed", lambda _params: self._known_tools.mark_stale()
        )
        self._notifications.on_internal("notifications/subscriptions/acknowledged", self._on_acknowledged)
        self._cache = ResponseCache()
        for heard, told in (
            *self._cache.notification_handlers().items(),
            *self._task_waiters.notification_handlers().items(),
        ):
            self._notifications.on_internal(heard, told)
        if on_log is not None:
            self._notifications.on("notifications/message", on_log)
        self._log_level = log_level
        self._default_log_level: LoggingLevel | None = (
            None if on_log is None else "info"
        )  # as servers have it by themselves
        self._on_failed = on_failed
        self._observers = Observers(_default_observers() if observers is None else observers)
        self._custom_clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock: Clock | None = None
        self._supervisor: ConnectionSupervisor | None = None
        self._tools_reader: asyncio.Task[None] | None = None  # the catalogue

    def __repr__(self) -> str:
        spoken = "" if self.revision is None else f", {self.revision}"
        return f"<Client of {display_name(self._connector)!r}: {self.phase.name.lower()}{spoken}>"

    # --- opening and closing -------------------------------------------------------------------

    async def open(self) -> Self:
        """Connects, and waits until calls can be made; raises why not. An open client stays as it is."""
        if self._on_other_loop:
            return await self._run_from_other_loop(self.open())
        while self._supervisor is not None and self._supervisor.stopping:
            await self._supervisor.wait_ended()
        if self._supervisor is None or self._supervisor.done:
            self._supervisor = self._make_supervisor()
        await self._supervisor.wait_opened()
        return self

    async def close(self) -> None:
        """Ends the connection and waits until nothing of it is left. A closed client can be opened again."""
        if self._on_other_loop:
            with contextlib.suppress(ConnectionClosed):  # the loop that it lived on has ended first
                await self._run_from_other_loop(self.close())
        elif self._supervisor is not None:
            self._notifications.close()
            self._callbacks.tasks.close()
            self._task_waiters.close()
            await self._cancellations.finish(0.0 if self._supervisor.connection is None else self.settings.stop_timeout)
            await self._supervisor.close()
            await self._observers.drain(self.settings.stop_timeout)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def _on_other_loop(self) -> bool:
        """Whether the line lives on another loop than the one that runs here."""
        return (
            self._supervisor is not None and not self._supervisor.done and self._loop is not asyncio.get_running_loop()
        )

    async def _run_on_own_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return await (self._run_from_other_loop(work) if self._on_other_loop else work)

    async def _run_from_other_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something on the client's own loop, for whoever runs on another."""
        home = cast("asyncio.AbstractEventLoop", self._loop)  # there is one where there is a line
        try:
            outcome = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))
        except RuntimeError:  # it is closed, which its own thread may do at any time
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

    def _make_supervisor(self) -> ConnectionSupervisor:
        loop = self._loop = asyncio.get_running_loop()
        clock = self._clock = self._custom_clock or LoopClock(loop)
        features = (self._callbacks.feature(), self._callbacks.tasks.feature(), self._notifications.feature())
        shared = LoopResources(
            Dispatcher(features), ThreadPool(loop, self.settings.max_threads), clock, self._observers
        )
        self._known_tools.mark_stale()
        return ConnectionSupervisor(
            self._connector,
            partial(self._make_connection, shared),
            self._prepare_connection,
            settings=self.settings,
            clock=clock,
            observers=self._observers,
            on_failed=self._on_failed,
            on_end=shared.threads.close,
        )

    def _make_connection(
        self,
        shared: LoopResources,
        channel: Channel,
        phase: Phase,
        classify_close: Callable[[ClientConnection, ChannelClosed], Signal],
    ) -> ClientConnection:
        capabilities = self._callbacks.capabilities()
        if self._experimental:
            capabilities["experimental"] = self._experimental
        capabilities["extensions"] = {TASKS_EXTENSION: {}, **self._extensions}
        session = Session(
            Side.CLIENT,
            info=self._info,
            capabilities=capabilities,
            revisions=self._revisions,
            settings=self.settings,
            phase=phase,
        )
        if isinstance(channel, MirroringChannel):
            channel.repeat(self._known_tools.mirrors)
        connection = ClientConnection(shared, session, channel, classify_close)
        connection.on_authorized = self._cache.clear  # it may be somebody else who asks from now on
        return connection

    async def _prepare_connection(self, connection: ClientConnection, reconnected: bool) -> None:
        """Gives a new connection what the last one had: log level, subscriptions, catalogue."""
        session, wanted = connection.session, list[Coroutine[Any, Any, Any]]()
        self._cache.clear()
        if session.client_envelope is not None:
            session.client_envelope.set_log_level(self._log_level or self._default_log_level)
            wanted.append(self._open_listen(connection))
        if self._log_level is not None and session.may_send("logging/setLevel"):
            wanted.append(connection.request("logging/setLevel", SetLevelParams(self._log_level)))
        if reconnected:
            if session.may_send("resources/subscribe"):
                for uri in self._subscriptions:
                    wanted.append(connection.request("resources/subscribe", SubscribeParams(uri=uri)))
            self._known_tools.mark_stale()
            if self._known_tools.requested and session.may_send("tools/list"):
                wanted.append(self._read_tools(connection))
        for outcome in await asyncio.gather(*wanted, return_exceptions=True):
            if isinstance(outcome, ConnectionClosed):
                raise outcome
            if isinstance(outcome, Exception):
                connection.facts.report_dropped(f"not renewed: {outcome}", "not_renewed")
        if reconnected:
            self._replay_resource_updates(connection)

    def _replay_resource_updates(self, connection: ClientConnection) -> None:
        """Tells of all that we are subscribed to: it may have changed while nobody was there to hear of that."""
        changed = [ResourceUpdatedParams(uri=uri) for uri in self._subscriptions]
        connection.received([Notification(_UPDATED, codec.to_raw(params)) for params in changed], MessageOrigin())

    async def _open_listen(self, connection: ClientConnection) -> None:
        """Has a server of the modern era tell us what it can tell, and what we are subscribed to."""
        listening = self._listen_subscription = ListenSubscription(
            connection,
            lambda: self._subscriptions,
            partial(self._on_missed_notifications, connection),
            lambda: self._task_waiters.task_ids,
        )
        if self._supervisor is not None:
            self._supervisor.run_in_background(listening.keep_open())
        await listening.open()

    def _on_missed_notifications(self, connection: ClientConnection) -> None:
        self._cache.clear()
        self._known_tools.mark_stale()
        self._replay_resource_updates(connection)

    def _on_acknowledged(self, params: SubscriptionsAcknowledgedParams) -> None:
        if self._listen_subscription is not None:
            self._listen_subscription.on_acknowledged(params)

    async def _update_listen(self, uri: str, timeout: float | None, *, subscribe: bool) -> bool:
        if self._on_other_loop:
            return await self._run_from_other_loop(self._update_listen(uri, timeout, subscribe=subscribe))
        line, again = self._supervisor, None
        while line is not None:
            connection = await line.wait_for_connection("subscriptions/listen", timeout)
            if not connection.modern or self._listen_subscription is None:
                break
            try:
                await self._listen_subscription.update_resource(uri, timeout, subscribe=subscribe)
            except ConnectionClosed:
                again = again or RetryBackoff(line)
                if not await again.wait(again.delay_after_loss(connection), timeout):
                    raise
            else:
                if subscribe:
                    self._subscriptions[uri] = None
                return True
        return False

    async def _task_support(self, name: str, timeout: float | None) -> str | None:
        line = self._supervisor
        if line is None:
            return None
        if self._on_other_loop and (line.connection is None or not self._known_tools.fresh):
            return await self._run_from_other_loop(self._task_support(name, timeout))
        connection = line.connection or await line.wait_for_connection(
            "tools/call", timeout or self.settings.work_timeout
        )
        if not connection.session.has_capability(Side.SERVER, "tasks.requests.tools.call"):
            return None
        if not self._known_tools.fresh:
            self._read_tools_in_background(line)
            await self._wait_for_tools(line, None)
        known = self._known_tools.get(name)
        execution = None if known is None else known.tool.execution
        return "forbidden" if execution is None else execution.task_support

    def _set_request_log_level(self, level: LoggingLevel) -> bool:
        stamp = None if self._session is None else self._session.client_envelope
        if stamp is not None:
            stamp.set_log_level(level)
        return self._speaks_modern()

    # --- asking --------------------------------------------------------------------------------

    async def _request(
        self,
        name: str,
        params: Any,
        *,
        repeatable: Callable[[ClientConnection], bool] = lambda _: True,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        line, clock = self._supervisor, self._clock
        if line is None or clock is None:
            raise MisuseError(NOT_OPEN)
        if asyncio.get_running_loop() is not self._loop:
            asked = self._request(name, params, repeatable=repeatable, timeout=timeout, on_progress=on_progress)
            return await self._run_from_other_loop(asked)
        if line.connection is not None and (kept := self._cache.get(name, params, clock.now())) is not None:
            return self._decode(name, kept, line.connection, params)
        told = None if on_progress is None else self._progress_callback(line, on_progress)
        due = None if timeout is None else clock.now() + timeout
        if name == "tools/call" and not self._known_tools.fresh:
            self._read_tools_in_background(line)
        drops, renew = self._cache.drop_count, self._refresh_tools if name == "tools/call" else None
        try:
            raw, rounds, asked, is_task = await send_with_retry(
                line,
                clock,
                name,
                params,
                repeatable=repeatable,
                timeout=timeout,
                on_progress=told,
                refresh_tools=renew,
                on_abandoned=self._abandon_call if self._may_become_task(name, params) else None,
            )
        except PeerError:
            if name in CACHEABLE:
                self._cache.drop(name)  # the cursor may be of a list that is no more
            raise
        called = name == "tools/call"
        answer = (
            decode_call_result(raw, asked, is_task=is_task) if called else self._decode(name, raw, line.latest, params)
        )
        kept = name in CACHEABLE and not rounds and self.revision is Revision.V2026_07_28
        if kept and (seconds := read_result_header(raw).fresh_for):
            self._cache.store(name, params, raw, clock.now() + seconds, drop_count=drops)
        if isinstance(answer, CallToolResult) and answer.structured_content is not UNSET:
            await self._wait_for_tools(line, due)
        return answer

    def _decode(self, name: str, raw: Any, connection: ClientConnection | None, params: Any = None) -> Any:
        """An answer in its type; of tools, those that can be called from here."""
        answer = decode_result(name, raw, params)
        if isinstance(answer, ListToolsResult) and connection is not None and connection.mirrors_arguments:
            answer.tools = self._known_tools.filter_callable(answer.tools)
        return answer

    def _progress_callback(
        self, supervisor: ConnectionSupervisor, on_progress: OnProgress
    ) -> Callable[[ProgressParams], None]:
        """Tells a function of progress; what an async one waits for goes on beside the call."""

        def tell(progress: ProgressParams) -> None:
            value = on_progress(progress)
            if inspect.isawaitable(value):
                supervisor.run_in_background(_await(value))

        return tell

    # --- the catalogue -------------------------------------------------------------------------

    def _read_tools_in_background(self, supervisor: ConnectionSupervisor) -> None:
        """Has the catalogue read, beside whatever else is being asked."""
        self._known_tools.requested = True
        if supervisor.connection is not None and (self._tools_reader is None or self._tools_reader.done()):
            self._tools_reader = supervisor.run_in_background(self._read_tools(supervisor.connection))

    async def _wait_for_tools(self, supervisor: ConnectionSupervisor, due: float | None) -> None:
        """Waits until the catalogue has been read, as well as that can be done in time."""
        if self._tools_reader is not None and not self._tools_reader.done() and not self._known_tools.fresh:
            await supervisor.wait_for([self._tools_reader], due)

    async def _read_tools(self, connection: ClientConnection) -> None:
        """Reads what tools there are. A server that does not tell gets by without: then nothing is known of them."""
        changes = self._known_tools.changes

        async def page(cursor: str | None) -> ListToolsResult:
            raw = await connection.request("tools/list", PaginatedParams(cursor=cursor))
            return self._decode("tools/list", raw, connection)

        try:
            listed = await fetch_all_pages("tools/list", page, self.settings)
        except ConnectionClosed:
            return
        except TrunklineError as error:
            connection.facts.report_dropped(f"the tools cannot be listed: {error}", "no_catalogue")
            self._known_tools.fill(None, changes)
        else:
            self._known_tools.fill(listed.tools, changes)

    async def _refresh_tools(self, connection: ClientConnection) -> None:
        """Reads the catalogue anew: what is known of a tool does not fit it any more."""
        self._cache.drop("tools/list")
        self._known_tools.mark_stale()
        await self._read_tools(connection)

    # --- being told ----------------------------------------------------------------------------

    def on(self, name: str, handler: Callable[[Any], Any]) -> Callable[[], None]:
        """Calls a function with the params of each notification of that name; gives what ends that.

        It may be async, or plain and quick. What it raises is reported, and harms nobody.
        """
        self._notifications.on(name, handler)
        return partial(self._notifications.off, name, handler)

    def notifications(self, *names: str) -> NotificationReader:
        """Notifications of these names, or all of them, to be read with `async for` until the client is closed."""
        return self._notifications.open_reader(*names)

    async def set_roots(self, roots: Iterable[RootLike]) -> None:
        """Says anew where the server may look, and tells it. The client must have been made with `roots=`."""
        if self._callbacks.roots is None:
            raise MisuseError("this client was made without roots; Client(…, roots=[]) offers some later")
        self._callbacks.roots = [to_root(root) for root in roots]
        connection = None if self._supervisor is None else self._supervisor.connection
        if connection is not None:
            connection.notify("notifications/roots/list_changed")


def _revisions_up_to(revision: str | None) -> tuple[Revision, ...]:
    if revision is None:
        return tuple(Revision)
    if revision not in list(Revision):
        raise MisuseError(f"revision= must be one of {', '.join(Revision)}, not {revision!r}")
    return tuple(one for one in Revision if one.value <= revision)


async def _await(value: Any) -> Any:
    return await value


def _default_observers() -> list[Observer]:
    from trunkline.observers.logs import LogObserver

    return [LogObserver()]
