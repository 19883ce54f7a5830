"""The lifespan of a server."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Annotated, Any

import pytest
from tests.limits import PATIENCE
from tests.processes import StdioPeer

from trunkline import BlockingClient, Client, Context, Depends, Server, Settings
from trunkline.errors import ConnectionClosed, MisuseError, TransportError
from trunkline.facts import HandlerFailed
from trunkline.testing import RawPeer, RecordingObserver


class LifespanServer:
    """A server with a lifespan, and the events of it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.tasks: list[object] = []
        self.on_left: Callable[[], object] = lambda: None
        self.server = Server("t", observers=[], lifespan=self.lifespan)

        @self.server.tool
        async def tool(ctx: Context) -> str:
            self.log.append("tool")
            return ctx.lifespan["name"]

    @asynccontextmanager
    async def lifespan(self, server: Server) -> AsyncIterator[dict[str, str]]:
        self.log.append(f"enter {server.name}")
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        try:
            yield {"name": "pool"}
        finally:
            await asyncio.sleep(0)
            self.tasks.append(asyncio.current_task())
            self.log.append("leave")
            self.on_left()

    async def call(self) -> str:
        async with RawPeer(self.server) as peer:
            await peer.initialize()
            return (await peer.result("tools/call", {"name": "tool"}))["structuredContent"]["result"]


async def test_lifespan_surrounds_all_connections() -> None:
    held = LifespanServer()
    assert await asyncio.gather(held.call(), held.call()) == ["pool", "pool"]
    assert held.log == ["enter t", "tool", "tool"]
    await held.server.aclose()
    assert held.log == ["enter t", "tool", "tool", "leave"]
    assert held.tasks[0] is held.tasks[1]
    await held.server.aclose()
    assert held.log[-2:] == ["tool", "leave"]


# --- clients in the same process -------------------------------------------------------------------------


async def test_lifespan_exits_with_the_last_local_client() -> None:
    held = LifespanServer()
    async with Client(held.server) as first:
        async with Client(held.server) as second:
            assert (await second.call_tool("tool")).data == "pool"
        assert held.log == ["enter t", "tool"]
        assert (await first.call_tool("tool")).data == "pool"
    assert held.log == ["enter t", "tool", "tool", "leave"]
    assert held.tasks[0] is held.tasks[1]


async def test_lifespan_is_entered_again_for_the_next_client() -> None:
    held = LifespanServer()
    client = Client(held.server)
    for _ in range(2):
        async with client:
            assert (await client.call_tool("tool")).data == "pool"
    assert held.log == ["enter t", "tool", "leave"] * 2


async def test_concurrent_clients_never_have_two_lifespans() -> None:
    held = LifespanServer()

    async def visit() -> None:
        for _ in range(5):
            async with Client(held.server) as client:
                assert (await client.call_tool("tool")).data == "pool"

    await asyncio.gather(visit(), visit(), visit())
    runs = [event for event in held.log if event != "tool"]
    assert runs == ["enter t", "leave"] * (len(runs) // 2)


def test_blocking_client_exits_the_lifespan() -> None:
    held = LifespanServer()
    for _ in range(2):
        with BlockingClient(held.server) as client:
            assert client.call_tool("tool").data == "pool"
    assert held.log == ["enter t", "tool", "leave"] * 2


@pytest.mark.parametrize("first", [True, False])
async def test_started_server_keeps_its_lifespan_without_clients(first: bool) -> None:
    held = LifespanServer()
    if first:
        await held.server.start()
    async with Client(held.server) as client:
        await client.call_tool("tool")
        if not first:
            await held.server.listen("tcp://127.0.0.1:0")
    assert held.log == ["enter t", "tool"]
    await held.server.aclose()
    assert held.log == ["enter t", "tool", "leave"]


async def test_server_closed_under_its_clients_exits_once() -> None:
    held = LifespanServer()
    async with Client(held.server, settings=Settings(auto_reconnect=False)):
        await held.server.aclose()
        assert held.log == ["enter t", "leave"]
    assert held.log == ["enter t", "leave"]


async def test_exit_error_is_reported_and_harms_no_client() -> None:
    observer = RecordingObserver()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        raise ValueError("leaving")

    server = Server("t", observers=[observer], lifespan=lifespan)
    for _ in range(2):
        async with Client(server) as client:
            assert client.server_info.name == "t"
    failures = [fact for fact in observer.facts if isinstance(fact, HandlerFailed)]
    assert [(fact.method, str(fact.error)) for fact in failures] == [("the lifespan", "leaving")] * 2


async def test_cancelled_handler_ends_before_the_lifespan() -> None:
    held, begun = LifespanServer(), asyncio.Event()

    @held.server.tool
    async def slow() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            held.log.append("tidied up")

    async with Client(held.server) as client:
        calling = asyncio.create_task(client.call_tool("slow"))
        await begun.wait()
    await asyncio.wait([calling])
    assert isinstance(calling.exception(), ConnectionClosed)
    assert held.log == ["enter t", "tidied up", "leave"]


async def test_running_task_keeps_the_lifespan() -> None:
    held, go_on, left = LifespanServer(), asyncio.Event(), asyncio.Event()

    @held.server.tool(task=True)
    async def long(ctx: Context) -> str:
        await go_on.wait()
        held.log.append(f"used {ctx.lifespan['name']}")
        return "done"

    held.on_left = left.set
    async with Client(held.server) as client:
        await client.start_tool("long")
    assert held.log == ["enter t"]
    go_on.set()
    await asyncio.wait_for(left.wait(), PATIENCE)
    assert held.log == ["enter t", "used pool", "leave"]


async def test_failed_start_for_a_client_leaves_nothing_behind() -> None:
    faults, log = [ValueError("busy"), None], list[str]()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        if (fault := faults.pop(0)) is not None:
            raise fault
        yield
        log.append("left")

    server = Server("t", lifespan=lifespan)
    with pytest.raises(TransportError, match="busy"):
        async with Client(server):
            pass
    async with Client(server):
        pass
    assert log == ["left"]


# --- restarts --------------------------------------------------------------------------------------------


async def test_closed_server_can_start_again() -> None:
    held = LifespanServer()
    for _ in range(2):
        assert await held.call() == "pool"
        await held.server.aclose()
    assert held.log == ["enter t", "tool", "leave"] * 2


def test_server_can_start_on_another_loop() -> None:
    held = LifespanServer()
    for _ in range(2):
        assert asyncio.run(held.call()) == "pool"
    assert held.log == ["enter t", "tool", "leave"] * 2


async def test_connect_before_start_raises() -> None:
    held = LifespanServer()
    with pytest.raises(MisuseError, match=r"await server\.start"):
        RawPeer(held.server).open()
    await held.server.start()
    RawPeer(held.server).open()
    await held.server.aclose()


async def test_generator_function_is_a_lifespan() -> None:
    log: list[str] = []

    async def lifespan(server: Server) -> AsyncIterator[int]:
        yield 7
        log.append("left")

    server = Server("t", lifespan=lifespan)

    @server.tool
    async def tool(ctx: Context) -> int:
        return ctx.lifespan

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "tool"}))["structuredContent"] == {"result": 7}
    await server.aclose()
    assert log == ["left"]


async def test_typed_context_has_the_lifespan_value() -> None:
    async def lifespan(server: Server) -> AsyncGenerator[list[int]]:
        yield [1, 2]

    async def first(ctx: Context[list[int]]) -> int:
        return ctx.lifespan[0]

    server = Server("t", lifespan=lifespan)

    @server.tool
    async def total(ctx: Context[list[int]], start: Annotated[int, Depends(first)]) -> int:
        return sum(ctx.lifespan, start)

    async with RawPeer(server) as peer:
        await peer.initialize()
        [tool] = (await peer.result("tools/list"))["tools"]
        assert tool["inputSchema"]["properties"] == {}
        assert (await peer.result("tools/call", {"name": "total"}))["structuredContent"] == {"result": 4}
    await server.aclose()


async def test_server_without_lifespan_needs_no_start() -> None:
    server = Server("t")

    @server.tool
    async def tool(ctx: Context) -> bool:
        return ctx.lifespan is None

    RawPeer(server).open()
    await server.start()
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "tool"}))["structuredContent"] == {"result": True}
    await server.aclose()


async def test_lifespan_errors_are_raised_by_start_and_close() -> None:
    faults = ["entering", None, "leaving"]

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        if (fault := faults.pop(0)) is not None:
            raise ValueError(fault)
        yield
        raise ValueError(faults.pop(0))

    server = Server("t", lifespan=lifespan)
    with pytest.raises(ValueError, match="entering"):
        await server.start()
    await server.aclose()
    await server.start()
    with pytest.raises(ValueError, match="leaving"):
        await server.aclose()


async def test_cancelled_start_exits_the_lifespan() -> None:
    log: list[str] = []
    entering = asyncio.Event()
    left = asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        entering.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            log.append("left")
            left.set()

    server = Server("t", lifespan=lifespan)
    task = asyncio.create_task(server.start())
    await entering.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()
    assert log == ["left"]


async def test_cancelled_start_does_not_affect_other_waiters() -> None:
    log: list[str] = []
    go = asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        log.append("entering")
        await go.wait()
        yield "pool"
        log.append("left")

    server = Server("t", lifespan=lifespan)
    first, second = asyncio.create_task(server.start()), asyncio.create_task(server.start())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    go.set()
    await second
    async with RawPeer(server):
        assert log == ["entering"]
    await server.aclose()
    assert log == ["entering", "left"]


async def test_start_is_abandoned_if_all_waiters_are_cancelled() -> None:
    entering, left = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        entering.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            left.set()

    server = Server("t", lifespan=lifespan)
    starts = [asyncio.create_task(server.start()) for _ in range(2)]
    await entering.wait()
    with pytest.raises(MisuseError):
        RawPeer(server).open()  # it has not been entered yet
    for start in starts:
        start.cancel()
        await asyncio.wait([start])
    assert left.is_set()


async def test_failed_start_does_not_affect_the_next() -> None:
    faults = [ValueError("busy"), None]

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        if (fault := faults.pop(0)) is not None:
            raise fault
        yield

    server = Server("t", lifespan=lifespan)

    async def insist() -> None:
        with pytest.raises(ValueError, match="busy"):
            await server.start()
        await server.start()

    again, once = asyncio.create_task(insist()), asyncio.create_task(server.start())
    await asyncio.wait([once, again])
    assert isinstance(once.exception(), ValueError)
    async with RawPeer(server) as peer:
        await peer.initialize()
    await server.aclose()


def test_lifespan_of_a_closed_loop_is_released() -> None:
    held = LifespanServer()
    asyncio.run(held.server.start())
    asyncio.run(held.server.aclose())


async def test_lifespan_entered_despite_cancellation_is_exited() -> None:
    log: list[str] = []
    entering = asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        entering.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("stubborn")
        yield
        log.append("left")

    server = Server("t", lifespan=lifespan)
    task = asyncio.create_task(server.start())
    await entering.wait()
    task.cancel()
    await asyncio.wait([task])
    assert log == ["stubborn", "left"]
    with pytest.raises(MisuseError):
        RawPeer(server).open()


SCRIPT = """
import sys
from contextlib import asynccontextmanager
from trunkline import Context, Server

@asynccontextmanager
async def lifespan(server):
    if "broken" in sys.argv:
        raise RuntimeError("the database is away")
    print("entered", file=sys.stderr, flush=True)
    yield "pool"
    print("left", file=sys.stderr, flush=True)

server = Server("held", lifespan=lifespan)

@server.tool
async def tool(ctx: Context) -> str:
    return ctx.lifespan

server.run()
"""


def plain_generator(server: Server) -> Iterator[None]:
    yield


async def without_server() -> AsyncIterator[None]:
    yield


async def without_yield(server: Server) -> None: ...


@pytest.mark.parametrize(
    ("lifespan", "why"),
    [
        (5, "lifespan= must be a function of the server, not 5"),
        (nullcontext(), "lifespan= must be a function of the server"),
        (without_yield, "lifespan 'without_yield' is an async function that never yields"),
        (plain_generator, "lifespan 'plain_generator' is a plain generator function, and must be async"),
        (contextmanager(plain_generator), "lifespan 'plain_generator' is a plain generator function"),
        (without_server, "lifespan 'without_server' must take one argument, the server"),
        (asynccontextmanager(without_server), "lifespan 'without_server' must take one argument, the server"),
    ],
)
def test_invalid_lifespan_is_refused_by_the_constructor(lifespan: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=why) as raised:
        Server("t", lifespan=lifespan)
    assert "write `async def lifespan(server): ...` with one `yield`" in str(raised.value)


async def test_lifespan_without_context_manager_is_refused_at_start() -> None:
    server = Server("t", lifespan=lambda _: 5)
    with pytest.raises(MisuseError, match="lifespan '<lambda>' returned int, no async context manager"):
        await server.start()


def test_callable_without_signature_can_be_a_lifespan() -> None:
    Server("t", lifespan=dict)


async def test_lifespan_error_has_a_note_with_its_name() -> None:
    @asynccontextmanager
    async def pool(server: Server) -> AsyncIterator[None]:
        raise ValueError("the database is away")
        yield

    server = Server("t", lifespan=pool)
    with pytest.raises(ValueError, match="away") as raised:
        await server.start()
    assert raised.value.__notes__ == ["raised by lifespan 'pool', before the first connection"]
    with pytest.raises(TransportError, match="ValueError: the database is away; raised by lifespan 'pool'"):
        await Client(server).open()


def test_run_enters_and_exits_the_lifespan() -> None:
    with StdioPeer(SCRIPT) as peer:
        peer.initialize()
        assert peer.result("tools/call", {"name": "tool"})["structuredContent"] == {"result": "pool"}
        peer.close_input()
        assert peer.exit_code() == 0
        assert peer.stderr().splitlines() == ["entered", "left"]


def test_failing_lifespan_ends_the_process_with_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "broken"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" in done.stderr
    note = "raised by lifespan 'lifespan', before the first connection"
    assert done.stderr.endswith(f"RuntimeError: the database is away\n{note}\n")
