"""Client: what people write. Puts the parts together and keeps the line."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from msgspec import UNSET

from trunkline.client.cache import CACHEABLE, Cache
from trunkline.client.calls import all_pages
from trunkline.client.client_options import KINDS
from trunkline.client.connection import Connection
from trunkline.client.host_callbacks import Answers, Elicit, OpenUrl, RootLike, Sample, root_of
from trunkline.client.listen import Listening
from trunkline.client.notifications import Notices, Reader
from trunkline.client.reconnect import Line
from trunkline.client.results import read
from trunkline.client.retry import Again, OnProgress, ask
from trunkline.client.standing import NOT_OPEN, Pending
from trunkline.client.targets import connector_of, reach_of, shown
from trunkline.client.tasks.status import read_call
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
from trunkline.errors.options import check, check_name
from trunkline.facts import Observer, Observers
from trunkline.protocol.client_envelope import head_of
from trunkline.protocol.extensions import checked
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
from trunkline.rpc.connection import Shared
from trunkline.rpc.dispatch import Dispatcher
from trunkline.rpc.threads import Threads
from trunkline.transports.channel import Channel, Closed, Origin, Repeating
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
        check("client", given, KINDS)
        super().__init__()
        self.settings = settings or Settings()
        self._connector = connector_of(target, self.settings, auth)
        self._info = Implementation(name=name, version=version or __version__, title=title)
        self._revisions = _up_to(revision)
        self._answers = Answers(
            sampling=sampling,
            sampling_tools=sampling_tools,
            elicitation=elicitation,
            open_url=open_url,
            roots=roots,
            reach=reach_of(self._connector, self.settings),
        )
        self._experimental = dict(experimental or {})
        self._extensions = checked(extensions)
        self._notices = Notices(self.settings.max_heard)
        self._notices.on_own("notifications/tools/list_changed", lambda _params: self._catalogue.stale())
        self._notices.on_own("notifications/subscriptions/acknowledged", self._acknowledged)
        self._cache = Cache()
        for heard, told in (*self._cache.handlers().items(), *self._following.handlers().items()):
            self._notices.on_own(heard, told)
        if on_log is not None:
            self._notices.on("notifications/message", on_log)
        self._log_level = log_level
        self._usual_level: LoggingLevel | None = None if on_log is None else "info"  # as servers have it by themselves
        self._on_failed = on_failed
        self._observers = Observers(_default_observers() if observers is None else observers)
        self._given_clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock: Clock | None = None
        self._line: Line | None = None
        self._reading: asyncio.Task[None] | None = None  # the catalogue

    def __repr__(self) -> str:
        spoken = "" if self.revision is None else f", {self.revision}"
        return f"<Client of {shown(self._connector)!r}: {self.phase.name.lower()}{spoken}>"

    # --- opening and closing -------------------------------------------------------------------

    async def open(self) -> Self:
        """Connects, and waits until calls can be made; raises why not. An open client stays as it is."""
        if self._away:
            return await self._at_home(self.open())
        while self._line is not None and self._line.ending:
            await self._line.ended()
        if self._line is None or self._line.over:
            self._line = self._new_line()
        await self._line.opened()
        return self

    async def close(self) -> None:
        """Ends the connection and waits until nothing of it is left. A closed client can be opened again."""
        if self._away:
            with contextlib.suppress(ConnectionClosed):  # the loop that it lived on has ended first
                await self._at_home(self.close())
        elif self._line is not None:
            self._notices.close()
            self._answers.tasks.close()
            self._following.close()
            await self._partings.end(0.0 if self._line.connection is None else self.settings.stop_timeout)
            await self._line.close()
            await self._observers.drain(self.settings.stop_timeout)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def _away(self) -> bool:
        """Whether the line lives on another loop than the one that runs here."""
        return self._line is not None and not self._line.over and self._loop is not asyncio.get_running_loop()

    async def _home(self, work: Coroutine[Any, Any, T]) -> T:
        return await (self._at_home(work) if self._away else work)

    async def _at_home(self, asked: Coroutine[Any, Any, T]) -> T:
        """Does something on the client's own loop, for whoever runs on another."""
        home = cast("asyncio.AbstractEventLoop", self._loop)  # there is one where there is a line
        try:
            outcome = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, home))
        except RuntimeError:  # it is closed, which its own thread may do at any time
            asked.close()
            raise MisuseError(_LOOP_ENDED) from None
        try:
            await asyncio.wait([outcome])
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        if outcome.cancelled():
            raise OutcomeUnknown(_LOOP_ENDED)
        return outcome.result()

    def _new_line(self) -> Line:
        loop = self._loop = asyncio.get_running_loop()
        clock = self._clock = self._given_clock or LoopClock(loop)
        features = (self._answers.feature(), self._answers.tasks.feature(), self._notices.feature())
        shared = Shared(Dispatcher(features), Threads(loop, self.settings.max_threads), clock, self._observers)
        self._catalogue.stale()
        return Line(
            self._connector,
            partial(self._connection, shared),
            self._greet,
            settings=self.settings,
            clock=clock,
            observers=self._observers,
            on_failed=self._on_failed,
            on_end=shared.threads.close,
        )

    def _connection(
        self, shared: Shared, channel: Channel, phase: Phase, meaning: Callable[[Connection, Closed], Signal]
    ) -> Connection:
        capabilities = self._answers.capabilities()
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
        if isinstance(channel, Repeating):
            channel.repeat(self._catalogue.mirrors)
        connection = Connection(shared, session, channel, meaning)
        connection.settled = self._cache.clear  # it may be somebody else who asks from now on
        return connection

    async def _greet(self, connection: Connection, again: bool) -> None:
        """Gives a new connection what the last one had: log level, subscriptions, catalogue."""
        session, wanted = connection.session, list[Coroutine[Any, Any, Any]]()
        self._cache.clear()
        if session.stamp is not None:
            session.stamp.log_from(self._log_level or self._usual_level)
            wanted.append(self._listen(connection))
        if self._log_level is not None and session.may_send("logging/setLevel"):
            wanted.append(connection.request("logging/setLevel", SetLevelParams(self._log_level)))
        if again:
            if session.may_send("resources/subscribe"):
                for uri in self._subscriptions:
                    wanted.append(connection.request("resources/subscribe", SubscribeParams(uri=uri)))
            self._catalogue.stale()
            if self._catalogue.wanted and session.may_send("tools/list"):
                wanted.append(self._read_catalogue(connection))
        for outcome in await asyncio.gather(*wanted, return_exceptions=True):
            if isinstance(outcome, ConnectionClosed):
                raise outcome
            if isinstance(outcome, Exception):
                connection.dropped(f"not renewed: {outcome}", "not_renewed")
        if again:
            self._catch_up(connection)

    def _catch_up(self, connection: Connection) -> None:
        """Tells of all that we are subscribed to: it may have changed while nobody was there to hear of that."""
        changed = [ResourceUpdatedParams(uri=uri) for uri in self._subscriptions]
        connection.received([Notification(_UPDATED, codec.to_raw(params)) for params in changed], Origin())

    async def _listen(self, connection: Connection) -> None:
        """Has a server of the modern era tell us what it can tell, and what we are subscribed to."""
        listening = self._listening = Listening(
            connection, lambda: self._subscriptions, partial(self._missed, connection), lambda: self._following.tasks
        )
        if self._line is not None:
            self._line.beside(listening.keep())
        await listening.begin()

    def _missed(self, connection: Connection) -> None:
        self._cache.clear()
        self._catalogue.stale()
        self._catch_up(connection)

    def _acknowledged(self, params: SubscriptionsAcknowledgedParams) -> None:
        if self._listening is not None:
            self._listening.acknowledged(params)

    async def _listens(self, uri: str, timeout: float | None, *, more: bool) -> bool:
        if self._away:
            return await self._at_home(self._listens(uri, timeout, more=more))
        line, again = self._line, None
        while line is not None:
            connection = await line.usable("subscriptions/listen", timeout)
            if not connection.modern or self._listening is None:
                break
            try:
                await self._listening.watch(uri, timeout, more=more)
            except ConnectionClosed:
                again = again or Again(line)
                if not await again.rest(again.after(connection), timeout):
                    raise
            else:
                if more:
                    self._subscriptions[uri] = None
                return True
        return False

    async def _task_support(self, name: str, timeout: float | None) -> str | None:
        line = self._line
        if line is None:
            return None
        if self._away and (line.connection is None or not self._catalogue.fresh):
            return await self._at_home(self._task_support(name, timeout))
        connection = line.connection or await line.usable("tools/call", timeout or self.settings.work_timeout)
        if not connection.session.has(Side.SERVER, "tasks.requests.tools.call"):
            return None
        if not self._catalogue.fresh:
            self._read_beside(line)
            await self._catalogued(line, None)
        known = self._catalogue.get(name)
        execution = None if known is None else known.tool.execution
        return "forbidden" if execution is None else execution.task_support

    def _log_from(self, level: LoggingLevel) -> bool:
        stamp = None if self._session is None else self._session.stamp
        if stamp is not None:
            stamp.log_from(level)
        return self._speaks_modern()

    # --- asking --------------------------------------------------------------------------------

    async def _ask(
        self,
        name: str,
        params: Any,
        *,
        repeatable: Callable[[Connection], bool] = lambda _: True,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        line, clock = self._line, self._clock
        if line is None or clock is None:
            raise MisuseError(NOT_OPEN)
        if asyncio.get_running_loop() is not self._loop:
            asked = self._ask(name, params, repeatable=repeatable, timeout=timeout, on_progress=on_progress)
            return await self._at_home(asked)
        if line.connection is not None and (kept := self._cache.get(name, params, clock.now())) is not None:
            return self._read(name, kept, line.connection, params)
        told = None if on_progress is None else self._teller(line, on_progress)
        due = None if timeout is None else clock.now() + timeout
        if name == "tools/call" and not self._catalogue.fresh:
            self._read_beside(line)
        drops, renew = self._cache.drops, self._renew if name == "tools/call" else None
        try:
            raw, rounds, asked, is_task = await ask(
                line,
                clock,
                name,
                params,
                repeatable=repeatable,
                timeout=timeout,
                on_progress=told,
                renew=renew,
                unheard=self._disown if self._may_become_task(name, params) else None,
            )
        except PeerError:
            if name in CACHEABLE:
                self._cache.drop(name)  # the cursor may be of a list that is no more
            raise
        called = name == "tools/call"
        answer = read_call(raw, asked, is_task=is_task) if called else self._read(name, raw, line.last, params)
        kept = name in CACHEABLE and not rounds and self.revision is Revision.V2026_07_28
        if kept and (seconds := head_of(raw).fresh_for):
            self._cache.keep(name, params, raw, clock.now() + seconds, drops=drops)
        if isinstance(answer, CallToolResult) and answer.structured_content is not UNSET:
            await self._catalogued(line, due)
        return answer

    def _read(self, name: str, raw: Any, connection: Connection | None, asked: Any = None) -> Any:
        """An answer in its type; of tools, those that can be called from here."""
        answer = read(name, raw, asked)
        if isinstance(answer, ListToolsResult) and connection is not None and connection.repeats:
            answer.tools = self._catalogue.callable(answer.tools)
        return answer

    def _teller(self, line: Line, on_progress: OnProgress) -> Callable[[ProgressParams], None]:
        """Tells a function of progress; what an async one waits for goes on beside the call."""

        def tell(progress: ProgressParams) -> None:
            value = on_progress(progress)
            if inspect.isawaitable(value):
                line.beside(_awaited(value))

        return tell

    # --- the catalogue -------------------------------------------------------------------------

    def _read_beside(self, line: Line) -> None:
        """Has the catalogue read, beside whatever else is being asked."""
        self._catalogue.wanted = True
        if line.connection is not None and (self._reading is None or self._reading.done()):
            self._reading = line.beside(self._read_catalogue(line.connection))

    async def _catalogued(self, line: Line, due: float | None) -> None:
        """Waits until the catalogue has been read, as well as that can be done in time."""
        if self._reading is not None and not self._reading.done() and not self._catalogue.fresh:
            await line.wait_for([self._reading], due)

    async def _read_catalogue(self, connection: Connection) -> None:
        """Reads what tools there are. A server that does not tell gets by without: then nothing is known of them."""
        changes = self._catalogue.changes

        async def page(cursor: str | None) -> ListToolsResult:
            raw = await connection.request("tools/list", PaginatedParams(cursor=cursor))
            return self._read("tools/list", raw, connection)

        try:
            listed = await all_pages("tools/list", page, self.settings)
        except ConnectionClosed:
            return
        except TrunklineError as error:
            connection.dropped(f"the tools cannot be listed: {error}", "no_catalogue")
            self._catalogue.fill(None, changes)
        else:
            self._catalogue.fill(listed.tools, changes)

    async def _renew(self, connection: Connection) -> None:
        """Reads the catalogue anew: what is known of a tool does not fit it any more."""
        self._cache.drop("tools/list")
        self._catalogue.stale()
        await self._read_catalogue(connection)

    # --- being told ----------------------------------------------------------------------------

    def on(self, name: str, handler: Callable[[Any], Any]) -> Callable[[], None]:
        """Calls a function with the params of each notification of that name; gives what ends that.

        It may be async, or plain and quick. What it raises is reported, and harms nobody.
        """
        self._notices.on(name, handler)
        return partial(self._notices.off, name, handler)

    def notifications(self, *names: str) -> Reader:
        """Notifications of these names, or all of them, to be read with `async for` until the client is closed."""
        return self._notices.reader(*names)

    async def set_roots(self, roots: Iterable[RootLike]) -> None:
        """Says anew where the server may look, and tells it. The client must have been made with `roots=`."""
        if self._answers.roots is None:
            raise MisuseError("this client was made without roots; Client(…, roots=[]) offers some later")
        self._answers.roots = [root_of(root) for root in roots]
        connection = None if self._line is None else self._line.connection
        if connection is not None:
            connection.notify("notifications/roots/list_changed")


def _up_to(revision: str | None) -> tuple[Revision, ...]:
    if revision is None:
        return tuple(Revision)
    if revision not in list(Revision):
        raise MisuseError(f"revision= must be one of {', '.join(Revision)}, not {revision!r}")
    return tuple(one for one in Revision if one.value <= revision)


async def _awaited(value: Any) -> Any:
    return await value


def _default_observers() -> list[Observer]:
    from trunkline.observers.logs import LogObserver

    return [LogObserver()]
