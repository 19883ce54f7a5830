"""A finished call leaves nothing behind: no reference cycle, and no reference to its result.

The garbage collector is off, so objects that only it would free remain, and the tests count them.
"""

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import pytest

from trunkline import Client, Context, Depends, Server, Settings
from trunkline.errors import ToolError, TrunklineError
from trunkline.protocol.types import ElicitResult
from trunkline.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.no_cover  # many calls through code that other tests measure

SIZE = 1 << 17
CALLS = 12
SETTINGS = Settings(replay_session_bytes=SIZE)
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def serving(**options: Any) -> Server:
    """A server with a tool for every kind of handler, each with a large result."""
    server = Server("large", **{"settings": SETTINGS, **options})

    @server.tool
    async def at_once() -> str:
        return "x" * SIZE

    @server.tool
    async def waiting() -> str:
        await asyncio.sleep(0)
        return "x" * SIZE

    @server.tool
    def on_thread() -> str:
        return "x" * SIZE

    @server.tool
    def on_thread_with_awaitable() -> Any:
        return waiting()

    @server.tool
    async def telling(ctx: Context) -> str:
        await ctx.progress(1)
        await ctx.info("x")
        await asyncio.sleep(0)
        return "x" * SIZE

    @server.tool
    async def asking(ctx: Context) -> str:
        await ctx.elicit("?", FORM)
        return "x" * SIZE

    @server.tool
    async def once(ctx: Context) -> str:
        return await ctx.once("key", lambda: "x" * SIZE)

    @server.tool
    async def failing() -> str:
        large = "x" * SIZE
        raise ToolError(large)

    @server.tool
    async def failing_later() -> str:
        large = "x" * SIZE
        await asyncio.sleep(0)
        raise ValueError(len(large))

    @server.tool
    def failing_on_thread() -> str:
        large = "x" * SIZE
        raise ValueError(len(large))

    @server.tool
    async def cancelling_itself() -> str:
        large = "x" * SIZE
        await asyncio.sleep(0)
        raise asyncio.CancelledError(len(large))

    @server.tool
    async def too_slow() -> str:
        large = "x" * SIZE
        await asyncio.sleep(60)
        return large

    def opened() -> Iterator[str]:
        yield "x" * SIZE

    @server.tool
    async def depending(text: Annotated[str, Depends(opened)]) -> str:
        return text

    @server.tool
    def depending_on_thread(text: Annotated[str, Depends(opened)]) -> str:
        return text

    @server.tool
    async def depending_and_failing(text: Annotated[str, Depends(opened)]) -> str:
        await asyncio.sleep(0)
        raise ValueError(len(text))

    @server.tool
    def depending_and_failing_on_thread(text: Annotated[str, Depends(opened)]) -> str:
        raise ValueError(len(text))

    @server.tool(task=True)
    async def task(ctx: Context) -> str:
        await ctx.progress(1)
        return "done"

    return server


KINDS = [
    *("at_once", "waiting", "on_thread", "on_thread_with_awaitable", "telling", "asking", "once"),
    *("failing", "failing_later", "failing_on_thread", "cancelling_itself"),
    *("depending", "depending_on_thread", "depending_and_failing", "depending_and_failing_on_thread", "task"),
    "too_slow",  # last: over HTTP each such call closes a connection, which the server notices a little later
]
LINES: dict[str, tuple[str | None, str | None, dict[str, Any]]] = {
    "memory, modern": (None, None, {}),
    "memory": (None, "2025-11-25", {}),
    "tcp": ("tcp://127.0.0.1:0", "2025-11-25", {}),
    "websocket": ("http://127.0.0.1:0/mcp", "2025-11-25", {}),
    "http, modern": ("http://127.0.0.1:0/mcp", None, {}),
    "http": ("http://127.0.0.1:0/mcp", "2025-11-25", {}),
    "http, kept": ("http://127.0.0.1:0/mcp", "2025-11-25", {"store": True}),
    "http, no sessions": ("http://127.0.0.1:0/mcp", "2025-11-25", {"settings": Settings(http_sessions=False)}),
    "sse": ("http://127.0.0.1:0/mcp", "2025-11-25", {}),
}


@asynccontextmanager
async def connected(line: str, folder: Path) -> AsyncIterator[Client]:
    """A client of such a server."""
    address, revision, options = LINES[line]
    if "store" in options:
        options = {"store": SqliteStore(folder / "kept.sqlite", synchronous="NORMAL")}
    server = serving(**options)
    target: Any = server
    if address is not None:
        target = (await server.listen(address)).address
        if line == "websocket":
            target = target.replace("http:", "ws:")
        elif line == "sse":
            target = target.replace("/mcp", "/sse")
    try:
        async with Client(
            target, revision=revision, elicitation=_answer, on_log=lambda _: None, log_level="debug"
        ) as client:
            yield client
    finally:
        await server.aclose()


async def _answer(*_: Any) -> ElicitResult:
    return ElicitResult("accept", {"name": "x"})


@pytest.fixture(autouse=True)
def only_calls_measured() -> Iterator[None]:
    """Measure calls only: pytest stores no log with errors and their frames, and the collector skips older objects."""
    logging.disable()
    gc.collect()
    gc.freeze()
    yield
    logging.disable(logging.NOTSET)


async def left_by(action: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    """Objects that only the collector finds after `CALLS` calls, and bytes still allocated."""
    for _ in range(3):
        await action()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(CALLS):
            await action()
        for _ in range(20):  # messages after a response, and the ends of threads
            await asyncio.sleep(0.001)
        stays = tracemalloc.get_traced_memory()[0] - before
        return gc.collect(), stays
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("line", LINES)
async def test_calls_leave_no_cycle_and_no_result(line: str, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    async with connected(line, tmp_path) as client:
        for kind in KINDS:
            if kind == "too_slow" and line == "http, no sessions":
                continue  # the server is not notified that the client has stopped waiting

            async def call(name: str = kind) -> None:
                with suppress(TrunklineError):
                    await client.call_tool(name, timeout=0.02 if name == "too_slow" else None)

            cycles, stays = await left_by(call)
            if cycles >= CALLS and not (kind == "too_slow" and "http" in line):
                found[kind] = f"{cycles / CALLS} objects per call wait for the collector"
            elif stays >= 0.8 * CALLS * SIZE:
                found[kind] = f"{stays / CALLS:.0f} bytes stay per call"
    assert found == {}


@pytest.mark.parametrize("line", LINES)
async def test_list_and_ping_leave_nothing(line: str, tmp_path: Path) -> None:
    async with connected(line, tmp_path) as client:

        async def call() -> None:
            await client.list_tools()
            with suppress(TrunklineError):
                await client.read_resource("unknown:resource")

        cycles, _ = await left_by(call)
    assert cycles < CALLS


async def test_ended_streams_are_dropped_above_the_byte_limit() -> None:
    """The event log stores responses for replay; of large ones, only the last."""
    server = serving(settings=Settings(replay_session_bytes=SIZE))
    listener = await server.listen("http://127.0.0.1:0/mcp")
    async with Client(listener.address, revision="2025-11-25", on_log=lambda _: None) as client:
        for _ in range(4):
            await client.call_tool("telling")
        [connection] = server.connections
        channel: Any = connection.channel
        kept = [number for number in channel._streams if number]
        assert kept == [4]
    await server.aclose()
