"""Attacked servers: real ones, on real sockets, with a manual clock."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvicorn

from trunkline import Context, Server, Settings
from trunkline.auth import ResourceServer
from trunkline.auth.server.verifiers import Verifier
from trunkline.observers.logs import LogObserver
from trunkline.testing import ManualClock, RecordingObserver
from trunkline.transports.addresses import parse_address
from trunkline.transports.channel import Listener

T = TypeVar("T")

EPOCH = 1_800_000_000
QUICK = {"drain_timeout": 0.2}  # calls in flight at the end of a test do not matter


class AttackedServer:
    """A server, its address, and the effects of its tools."""

    def __init__(
        self, settings: Settings, clock: ManualClock | None = None, auth: ResourceServer | None = None
    ) -> None:
        self.clock = clock or ManualClock()
        self.observer = RecordingObserver()
        observers = [LogObserver(), self.observer]
        self.server = Server("attacked", settings=settings, clock=self.clock, auth=auth, observers=observers)
        self.done: list[str] = []  # effects of calls
        self.started: list[str] = []  # calls that wait
        self.gate = asyncio.Event()  # the event that they wait for
        self.port = 0
        self.listener: Listener | None = None
        _add_tools(self)


def _add_tools(place: AttackedServer) -> None:
    @place.server.tool
    def effect(what: str) -> str:
        """Record an effect."""
        place.done.append(what)
        return what

    @place.server.tool
    async def wait(who: str) -> str:
        """Return when the test releases it."""
        place.started.append(who)
        await place.gate.wait()
        return who

    @place.server.tool
    async def begin(ctx: Context) -> None:
        """Report that it has begun, and return when the test releases it."""
        await ctx.progress(1)
        place.started.append("begin")
        await place.gate.wait()

    @place.server.tool
    async def where(who: str, ctx: Context) -> str:
        """Ask the client for its roots."""
        place.started.append(who)
        roots = await ctx.roots()
        return f"{who} at {roots[0].uri}"

    @place.server.tool
    def much(size: int) -> str:
        """Return much text."""
        return "x" * size

    @place.server.tool
    async def flood(size: int, times: int, ctx: Context) -> str:
        """Send much before the response, whether or not the client reads."""
        for _ in range(times):
            ctx.info("x" * size)
            await asyncio.sleep(0)
        return "done"


@asynccontextmanager
async def listening(address: str = "http://127.0.0.1:0/mcp", **settings: Any) -> AsyncIterator[AttackedServer]:
    """A server that listens at an address, on this loop."""
    async with opened(AttackedServer(Settings(**(QUICK | settings))), address) as place:
        yield place


@asynccontextmanager
async def protected(*verifiers: Verifier, settings: Any = None, **options: Any) -> AsyncIterator[AttackedServer]:
    """The same with authentication. The clock starts in the year 2027."""
    clock = ManualClock()
    auth = ResourceServer(*verifiers, now=lambda: EPOCH + clock.now(), **options)
    async with opened(AttackedServer(Settings(**(QUICK | (settings or {}))), clock, auth)) as place:
        yield place


@asynccontextmanager
async def opened(place: AttackedServer, address: str = "http://127.0.0.1:0/mcp") -> AsyncIterator[AttackedServer]:
    """Start the listener."""
    place.listener = await place.server.listen(address)
    if not address.startswith("unix"):
        place.port = parse_address(place.listener.address).port
    try:
        yield place
    finally:
        place.gate.set()
        await place.server.aclose()


class _Uvicorn(uvicorn.Server):
    """uvicorn inside a test: it installs no signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self):
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def behind_uvicorn(identify: Callable[[Any], Any], **settings: Any) -> AsyncIterator[AttackedServer]:
    """A server as an ASGI application with `identify`."""
    place = AttackedServer(Settings(**(QUICK | settings)))
    app: Any = place.server.asgi(path="/mcp", identify=identify)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        place.port = bound.getsockname()[1]
        server = _Uvicorn(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
        running = asyncio.create_task(server.serve(sockets=[bound]))
        await server.ready.wait()
        try:
            yield place
        finally:
            place.gate.set()
            app.close_idle_streams()
            server.should_exit = True
            await running


def user(scope: Any) -> str | None:
    """The caller, as if a proxy in front had verified it."""
    found = dict(scope["headers"]).get(b"x-user")
    return None if found is None else found.decode()


async def while_time_passes(place: AttackedServer, awaited: Awaitable[T], seconds: float) -> T:
    """Await a value while the clock advances by two steps, and no more."""
    coming = asyncio.ensure_future(awaited)
    for _ in range(20):
        place.clock.advance(seconds / 10)
        await asyncio.wait([coming], timeout=0.01)
        if coming.done():
            return coming.result()
    coming.cancel()
    raise AssertionError(f"nothing happened within {seconds:g} s on the clock")
