"""Server: what people write. Registers functions, puts the parts together, and runs."""

import asyncio
import contextlib
import inspect
import logging as logging_
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack

from trunkline.clock import Clock, LoopClock, WallClock
from trunkline.config import Settings
from trunkline.conversation.dispatch import Dispatcher, Feature
from trunkline.conversation.threads import Threads
from trunkline.errors import MisuseError, RegistrationError
from trunkline.facts import Observer, Observers
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import IDEMPOTENCY
from trunkline.protocol.methods import METHODS
from trunkline.protocol.profiles import ProfileName, profile_of
from trunkline.protocol.types import (
    Empty,
    Icon,
    Implementation,
)
from trunkline.registry.signatures import called, name_of
from trunkline.server.announcer import CHANGES, Announcer
from trunkline.server.connection import Connection, Shared
from trunkline.server.context import Context
from trunkline.server.features import FEATURES
from trunkline.server.listening import Listeners, Listening
from trunkline.server.offer import Offer, Switches
from trunkline.server.options import DirectoryOptions, FileOptions, checked
from trunkline.server.pausing import Pausing
from trunkline.server.rounds import Seals
from trunkline.server.storing import OwnStore
from trunkline.server.tasks.recovering import Recovery
from trunkline.server.tasks.tasks import Tasks
from trunkline.server.updates import Updates
from trunkline.server.watchers import Watch, Watchers
from trunkline.transports.addresses import spelt
from trunkline.transports.channel import Channel, Listener
from trunkline.version import __version__
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.auth.server.gate import ResourceServer
    from trunkline.server.filewatch import FileWatch
    from trunkline.server.keeping import Keeper
    from trunkline.server.ledger import Ledger
    from trunkline.server.lifespan import Lifespan
    from trunkline.server.middleware import Middleware
    from trunkline.server.seal_keys import SealKeys
    from trunkline.stores.store import Store
    from trunkline.transports.http.asgi import App

__all__ = ["Server"]

M = TypeVar("M", bound="Middleware")

_UNSUBSCRIBE: Final = next(row for row in METHODS if row.name == "resources/unsubscribe")


class Server(Pausing):
    """An MCP server: decorate functions, then `run()`."""

    def __init__(
        self,
        name: str,
        *,
        version: str | None = None,
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon] | None = None,
        instructions: str | None = None,
        settings: Settings | None = None,
        auth: "ResourceServer | None" = None,
        store: "Store | None" = None,
        tools: bool | None = None,
        resources: bool | None = None,
        prompts: bool | None = None,
        completions: bool | None = None,
        logging: bool = True,
        subscribe: bool = True,
        list_changed: bool = True,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Any] | None = None,
        cache: Mapping[str, float] | None = None,
        observers: Iterable[Observer] | None = None,
        lifespan: Callable[[Any], Any] | None = None,
        features: Iterable[Feature] = FEATURES,
        compat: ProfileName | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`auth` says who may come in over HTTP, by which tokens: a `ResourceServer`. `store` keeps what has to outlive
        a call: a `SqliteStore`, a `RedisStore`, or by default one in memory; it is the server's own, to open and close.
        `tools`, `resources`, `prompts` and `completions` declare a capability, or not; by default each is declared when
        there is something to offer. `extensions` are declared with their settings, `{}` for none. `cache` says for how
        many seconds clients may keep what they are shown: "tools", "prompts", "resources", "resource_templates" and
        "discover". `observers` replaces the one that logs failures. `lifespan` is an async context manager function of
        the server: entered before the first connection is served, left by `aclose()` and at the end of `run()`;
        handlers find its value at `ctx.lifespan`. `compat="erlmcp"` is for clients that speak as the founding documents
        do."""
        info = Implementation(
            name=name,
            version=version or __version__,
            title=title,
            description=description,
            website_url=website_url,
            icons=list(icons) if icons else None,
        )
        lasting = store is not None and store.lasting
        switches = Switches(tools, resources, prompts, completions, logging, subscribe, list_changed)
        offer = Offer(
            info,
            instructions=instructions,
            settings=settings,
            switches=switches,
            experimental=experimental if not lasting else {IDEMPOTENCY: {}, **(experimental or {})},
            extensions=extensions,
            cache=cache,
            on_change=self._changed,
            profile=profile_of(compat),
        )
        super().__init__(offer, Observers(_default_observers() if observers is None else observers))
        self._auth = auth
        self._store = OwnStore(store, _in_memory)
        self._dispatcher = Dispatcher(features)
        self._middleware: list[Middleware] = []
        self._lifespan = None if lifespan is None else _lifespan(lifespan)
        self._watchers: Watchers[Connection | Listening] = Watchers()
        self._updates = Updates(offer, self._watchers.subscriptions)
        self._on_roots_changed: list[Callable[[Context], Awaitable[None]]] = []
        self._places: list[Listener] = []
        self._listeners = Listeners()
        self._announcer: Announcer | None = None
        self._given_clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._shared: Shared | None = None
        self._ledger: Ledger | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._files: FileWatch | None = None

    # --- being told of what clients do -----------------------------------------------------------

    def on_roots_changed(self, function: Callable[[Context], Awaitable[None]]) -> Callable[[Context], Awaitable[None]]:
        """Calls an async function when a client tells that its roots have changed."""
        self._on_roots_changed.append(function)
        return function

    def on_first_subscriber(self, watch: Watch) -> Watch:
        """Calls a function with a resource's URI when it gets its first subscriber. If it raises, there is none."""
        self._watchers.on_first.append(watch)
        return watch

    def on_last_unsubscribed(self, watch: Watch) -> Watch:
        """Calls a function with a resource's URI when its last subscriber has gone."""
        self._watchers.on_last.append(watch)
        return watch

    # --- files -----------------------------------------------------------------------------------

    def add_file(self, uri: str, path: str | PathLike[str], **options: Unpack[FileOptions]) -> None:
        """Offers a file as a resource, watched while somebody is subscribed."""
        from trunkline.server.files import make_file

        checked("a file", FileOptions, options)
        read = partial(self._read, thread=True)
        self.resources.add(make_file(uri, path, self._offer, read, **options))
        self._file_watch()

    def add_directory(self, uri: str, folder: str | PathLike[str], **options: Unpack[DirectoryOptions]) -> None:
        """Offers the files of a folder, and of those in it, as `scheme://{+path}`; links never lead outside."""
        from trunkline.server.files import make_directory

        checked("a directory", DirectoryOptions, options)
        read = partial(self._read, thread=True)
        self.templates.add(make_directory(uri, folder, self._offer, read, self._file_watch().shown, **options))

    def _file_watch(self) -> "FileWatch":
        from trunkline.server.filewatch import FileWatch

        if self._files is None:
            changed = partial(self._changed, self.resources.kind)
            self._files = FileWatch(self._offer, self._ready, self._updates.send, changed)
            self.on_first_subscriber(self._files.begin)
            self.on_last_unsubscribed(self._files.end)
        return self._files

    # --- going around calls ----------------------------------------------------------------------

    def middleware(self, function: M) -> M:
        """Puts an async function `(call, next)` around every request that runs a handler; the first is outermost."""
        from trunkline.server.middleware import AROUND, surrounded

        if not inspect.iscoroutinefunction(called(function)):
            raise RegistrationError(f"middleware {name_of(function)} must be an async function")
        self._middleware.append(function)
        around = tuple(self._middleware)
        self._dispatcher.surround(AROUND, lambda method, answer: surrounded(method, answer, around))
        return function

    # --- telling clients -------------------------------------------------------------------------

    def forward_logs(self, name: str = "", *, level: int | str = logging_.INFO) -> logging_.Handler:
        """Sends what a logger and those below it log during a call to the client of that call, as log messages.

        The logger lets such records through from then on. Gives back the handler, for `removeHandler`.
        """
        from trunkline.server.logbridge import ClientLogHandler

        self._offer.marks_calls = True
        for connection in self.connections:
            connection.mark_calls()
        logger = logging_.getLogger(name)
        handler = ClientLogHandler(self._offer, level)
        if logger.getEffectiveLevel() > handler.level:
            logger.setLevel(handler.level)
        logger.addHandler(handler)
        return handler

    def notify_updated(self, uri: str) -> None:
        """Tells the subscribers of a resource that it has changed. Callable from any thread."""
        self._post(partial(self._updates.send, uri))

    def notify_list_changed(self, what: Literal["tools", "resources", "prompts"]) -> None:
        """Tells every client that what it is shown in a list has changed, where nothing was added or removed: `allow`
        or `list=` has another answer now. Callable from any thread."""
        name = f"notifications/{what}/list_changed"
        if name not in CHANGES.values():
            why = f"there is no list of {what!r}; there are tools, resources and prompts"
            raise MisuseError(why, kind="invalid_notification_type")
        if self._connections:
            self._post(partial(self._announce, name))

    def _changed(self, kind: str) -> None:
        """A registry has changed."""
        if kind in CHANGES and self._connections:
            self._post(partial(self._announce, CHANGES[kind]))

    def _announce(self, name: str) -> None:
        if self._announcer is not None:
            self._announcer.changed(name)

    def _send_changed(self, name: str) -> None:
        params = Empty()
        frame = Encoded(codec.encode(Notification(name, params)))
        for connection in list(self._connections):
            connection.broadcast(name, frame, params)
        self._listeners.changed(name)

    def _post(self, action: Callable[[], None]) -> None:
        if self._loop is None or threading.get_ident() == self._thread:
            action()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everybody to be told
                self._loop.call_soon_threadsafe(action)

    # --- serving ---------------------------------------------------------------------------------

    def connect(self, channel: Channel) -> Connection:
        """Serves one channel, on the running loop, until it closes. What it gives back is the channel's receiver."""
        if self._lifespan is not None and not self._lifespan.running:
            raise MisuseError("a server with a lifespan is started first: `await server.start()`")
        connection = Connection(self._ready(), channel)
        self._arrived(connection)
        return connection

    def _ready(self) -> Shared:
        loop = asyncio.get_running_loop()
        if self._shared is None or self._loop is not loop:
            if self._connections:
                raise MisuseError("a server serves on one event loop at a time")
            self._health.settle(self.tools.all())
            self._loop = loop
            self._thread = threading.get_ident()
            clock = self._given_clock or LoopClock(loop)
            wall = self._given_clock or WallClock()
            store = self._store.use(wall)
            self._announcer = Announcer(self.settings.list_changed_interval, clock, self._send_changed)
            self._shared = Shared(
                offer=self._offer,
                dispatcher=self._dispatcher,
                threads=Threads(loop, self.settings.max_threads),
                clock=clock,
                observers=self._observers,
                watchers=self._watchers,
                on_roots_changed=self._on_roots_changed,
                departed=self._departed,
                listeners=self._listeners,
                seals=Seals(self.settings, self._seal_keys(store, wall)),
                store=store,
                wall=wall,
                tasks=Tasks(store, wall, self.settings, Recovery),
                keeper=self._keeper(store, wall),
                ledger=self._get_ledger,
                lifespan=None if self._lifespan is None else self._lifespan.value,
            )
        return self._shared

    def _get_ledger(self) -> "Ledger":
        from trunkline.server.ledger import Ledger

        if self._ledger is None:
            shared = self._ready()
            self._ledger = Ledger(shared.store, self.settings, shared.wall, shared.clock)
        return self._ledger

    def _keeper(self, store: "Store", wall: Clock) -> "Keeper | None":
        """Who keeps sessions, if the store outlives the process."""
        if not self._store.lasting:
            return None
        from trunkline.server.keeping import Keeper

        return Keeper(store, self.settings, wall)

    def _seal_keys(self, store: "Store", wall: Clock) -> "SealKeys | None":
        """Keys for states that clients carry, if the store outlives the process and none are set."""
        if not self._store.lasting or self.settings.state_keys:
            return None
        from trunkline.server.seal_keys import SealKeys

        return SealKeys(store, self.name, self.settings.state_lifetime, wall)

    def _departed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if self._files is not None and not self._connections:
            self._files.unheard()
        orphaned = self._watchers.subscriptions.drop(connection)
        if orphaned and self._watchers.on_last and self._loop is not None:
            task = self._loop.create_task(self._watchers.ended(orphaned))
            self._background.add(task)
            task.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: Connection, task: "asyncio.Task[None]") -> None:
        """Watching has ended for one who is gone, which was nobody's request."""
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            call = Running(id="the end of a connection", method=_UNSUBSCRIBE, started=connection.now())
            connection.report_failure(call, "-", error)

    async def start(self) -> None:
        """Opens the store and enters the lifespan, if there is one and it has not been entered. `run()` does that by
        itself."""
        if self._auth is not None and self._auth.strict:
            self._require_access()
        self.crash = None
        self._health.settle(self.tools.all())
        await self._store.open()
        if self._lifespan is not None:
            await self._lifespan.start(self)
        if self._store.lasting:
            await self._ready().seals.load()
        if self._store.lasting and self._offer.task_tools():
            shared = self._ready()
            shared.tasks.watch_over(shared, lasting=True)

    def _require_access(self) -> None:
        """Refuses to start if it was not said of everything who may have it."""
        if silent := self.undeclared():
            raise MisuseError(f"nothing says who may have {', '.join(silent)}; with strict=True scopes= or allow= must")

    # --- ending, stage by stage; `shutdown.py` has the order -----------------------------------------

    async def _unsubscribe(self) -> None:
        for connection in self.connections:
            connection.drain()
        self._listeners.end()
        self._updates.close()
        for place in self._places:
            await place.close()
        for connection in self.connections:
            if connection.kept is None:  # who comes back wants to hear of the same
                await self._watchers.ended(self._watchers.subscriptions.drop(connection))

    async def _drain(self) -> None:
        await asyncio.gather(*(connection.drained() for connection in self.connections))
        if self._ledger is not None:
            await self._ledger.drained()

    async def _hang_up(self) -> None:
        places, self._places = self._places, []
        await asyncio.gather(*(connection.channel.close() for connection in self.connections))
        for place in places:
            await place.gone()

    async def _persist(self) -> None:
        if self._ledger is not None:
            await self._ledger.close()
        if self._shared is not None:
            await self._shared.tasks.close()
            await self._shared.seals.close()
        if self._shared is not None and self._shared.keeper is not None:
            await self._shared.keeper.close()

    async def _let_go(self) -> None:
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._shared is not None and self._announcer is not None:
            self._announcer.close()
            self._shared.threads.close()
        if self._files is not None:
            self._files.close()
        self._loop = self._thread = self._shared = self._announcer = self._ledger = None
        self._paused = None
        self._health.unsettle()
        if self._lifespan is not None:
            await self._lifespan.stop()

    async def _close_store(self) -> None:
        await self._store.close()

    def _situation(self) -> dict[str, Any]:
        return {
            "server": {"name": self.name, "version": self._offer.info.version},
            "capabilities": self._offer.capabilities(),
            "connections": [connection.situation() for connection in self.connections],
        }

    async def listen(self, address: str, *, tls: "SSLContext | None" = None) -> Listener:
        """Waits for clients, until `aclose()`: at `tcp://127.0.0.1:4000`, `http://127.0.0.1:8000/mcp`,
        `unix:///run/server.sock`, or `tls://…` and `https://…` with a context that has the server's certificate. Port 0
        lets the system choose: the listener's address has it."""
        from trunkline.server.run import listener

        await self.start()
        made = await listener(self, address, tls, self._ready().clock, self._auth, keeper=self._ready().keeper)
        self._places.append(made)
        return made

    def asgi(self, *, path: str = "/", identify: "Callable[[dict[str, Any]], Any] | None" = None) -> "App":
        """An ASGI application: Streamable HTTP and WebSocket at a path, HTTP+SSE at /sse beside it. It runs under any
        ASGI server and can be mounted under any path. `identify` gives the principal of a request from what has been
        verified about it, by its ASGI scope: sessions belong to the principal who opened them. A server with `auth=`
        verifies that by itself."""
        from trunkline.server.run import application, gate_at

        if identify is not None and self._auth is not None:
            raise MisuseError("a server with auth= knows who comes by their tokens; identify= is for servers without")
        gate = gate_at(self, path, self._auth, identify)
        return application(
            self, lambda: self._ready().clock, path, gate, self._listeners.end, keeper=lambda: self._ready().keeper
        )

    def run(
        self,
        transport: Literal["stdio", "http", "tcp", "unix"] = "stdio",
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        path: str | PathLike[str] | None = None,
        tls: "SSLContext | None" = None,
    ) -> None:
        """Serves until Ctrl+C or SIGTERM, on stdio also until the other side goes. This is the last line of most
        programs. `host`, `port` and `tls` are for "http" (port 8000, path /mcp) and "tcp", `path` is for "unix"."""
        from trunkline.server.run import run_listening, run_stdio

        match transport:
            case "stdio":
                run_stdio(self)
            case "tcp":
                run_listening(self, f"{'tls' if tls else 'tcp'}://{spelt(host, port or 0)}", tls)
            case "http":
                where = spelt(host, 8000 if port is None else port)
                at = "/" + fspath(path or "mcp").lstrip("/")
                run_listening(self, f"{'https' if tls else 'http'}://{where}{at}", tls)
            case "unix" if path is not None:
                run_listening(self, f"unix://{fspath(path)}", None)
            case "unix":
                raise MisuseError('transport "unix" needs the path of a socket: run("unix", path="/run/server.sock")')
            case _:
                raise MisuseError(f"transport {transport!r} is not one of: stdio, http, tcp, unix")


def _lifespan(make: Callable[[Any], Any]) -> "Lifespan":
    from trunkline.server.lifespan import Lifespan

    return Lifespan(make)


def _in_memory(clock: Clock) -> "Store":
    from trunkline.stores.memory import MemoryStore

    return MemoryStore.ready(clock)


def _default_observers() -> list[Observer]:
    from trunkline.observers.logs import LogObserver

    return [LogObserver()]
