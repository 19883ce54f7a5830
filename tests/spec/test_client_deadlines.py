"""Deadlines of callers, and the fate of a call after its caller has stopped waiting."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.limits import PATIENCE, soon

from trunkline import Client, Context, Server, Settings
from trunkline.errors import ConnectionClosed, RequestTimeout, ToolFailed, TransportError
from trunkline.testing import Faults, ManualClock, ScriptedServer
from trunkline.testing.clock import ManualTimer


class TimedServer:
    """A server whose tools record how they end, and a client, on a manual clock."""

    def __init__(self, revision: str, **settings: Any) -> None:
        self.clock = ManualClock()
        self.ended: list[str] = []
        self.started = asyncio.Event()
        server = Server("s", clock=self.clock)
        server.add_tool(self.wait)
        server.add_tool(self.count)
        self.client = Client(server, clock=self.clock, settings=Settings(**settings), revision=revision)

    async def wait(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append("wait")

    async def count(self, ctx: Context, every: float) -> str:
        """Report progress for ever."""
        try:
            for step in range(10_000):
                ctx.progress(step)
                turn = asyncio.get_running_loop().create_future()
                self.clock.call_at(self.clock.now() + every, lambda turn=turn: turn.done() or turn.set_result(None))
                await turn
        finally:
            self.ended.append("count")
        return "never"

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_caller_timeout_ends_the_call_and_its_tool(revision: str) -> None:
    scene = TimedServer(revision)
    async with scene.client:
        call = asyncio.create_task(scene.client.call_tool("wait", timeout=2))
        await scene.started.wait()
        await scene.advance(1.9)
        assert not call.done()
        await scene.advance(0.2)
        with pytest.raises(RequestTimeout, match=r"tools/call was not done after 2.* s"):
            await call
        assert scene.ended == ["wait"]
        await scene.client.ping()


class LateClock(ManualClock):
    """A clock whose timers run ten seconds late, as in a busy process."""

    def call_at(self, when: float, action: Callable[[], None]) -> ManualTimer:
        return super().call_at(when + 10, action)


@pytest.mark.parametrize("raise_on_error", [True, False])
async def test_timeout_that_the_server_notices_first_is_a_timeout(revision: str, raise_on_error: bool) -> None:
    clock, started = LateClock(), asyncio.Event()
    server = Server("s")

    @server.tool
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    @server.method("acme/wait")
    async def wait_too() -> None:
        await wait()

    async with Client(server, clock=clock, revision=revision) as client:
        for call in (
            client.call_tool("wait", timeout=0.01, raise_on_error=raise_on_error),
            client.start_tool("wait", timeout=0.01),
            client.request("acme/wait", timeout=0.01),
        ):
            started.clear()
            answer = asyncio.create_task(call)
            await started.wait()
            clock.advance(1)
            with pytest.raises(RequestTimeout, match=r" was not done after 1 s"):
                await answer


async def test_time_limit_of_the_server_is_an_error_of_the_server(revision: str) -> None:
    server = Server("s")

    @server.tool(timeout=0.01)
    async def wait() -> None:
        await asyncio.Event().wait()

    async with Client(server, clock=ManualClock(), revision=revision) as client:
        with pytest.raises(ToolFailed, match=r"tools/call was not done after"):
            await client.call_tool("wait", timeout=PATIENCE)


async def test_each_of_several_calls_ends_at_its_own_deadline(revision: str) -> None:
    scene = TimedServer(revision)
    async with scene.client:
        calls = [asyncio.create_task(scene.client.call_tool("wait", timeout=seconds)) for seconds in (4, 6, 2, 8)]
        await settle()
        for done in ([2], [0, 2], [0, 1, 2], [0, 1, 2, 3]):
            await scene.advance(2.01)
            assert [number for number, call in enumerate(calls) if call.done()] == done
        for call in calls:
            with pytest.raises(RequestTimeout):
                await call


async def test_progress_renews_the_deadline_up_to_the_longest_call(revision: str) -> None:
    scene = TimedServer(revision, longest_call=30)
    heard: list[float] = []
    async with scene.client:
        asked = scene.client.call_tool(
            "count", {"every": 3}, timeout=4, on_progress=lambda told: heard.append(told.progress)
        )
        call = asyncio.create_task(asked)
        await settle()
        for _ in range(9):
            await scene.advance(3)
            assert not call.done()
        await scene.advance(3)
        with pytest.raises(RequestTimeout, match="after 30 s"):
            await call
        assert len(heard) >= 9
        assert scene.ended == ["count"]


async def test_wait_for_a_reconnect_counts_against_the_deadline() -> None:
    clock, server = ManualClock(), ScriptedServer()
    async with Client(server, clock=clock, settings=Settings(backoff_jitter=0)) as client:
        server.refusals = [TransportError("down")]
        server.line.die()
        await settle()
        call = asyncio.create_task(client.call_tool("pay", timeout=3))
        await settle()
        clock.advance(1)
        line = await server.connected(2)
        await line.request("tools/call")
        clock.advance(2.1)
        with pytest.raises(RequestTimeout, match=r"tools/call was not done after 2 s"):
            await call


async def test_unanswered_tools_list_does_not_extend_a_call() -> None:
    clock, server = ManualClock(), ScriptedServer(answered=["initialize"])
    async with Client(server, clock=clock) as client:
        call = asyncio.create_task(client.call_tool("any", timeout=1))
        server.line.reply(await server.line.request("tools/call"), {"content": [], "structuredContent": {"result": 1}})
        await settle()
        assert not call.done()  # its result type is not known yet
        clock.advance(1)
        assert (await call).structured == {"result": 1}


async def test_cancelled_caller_stops_an_async_tool(revision: str) -> None:
    scene = TimedServer(revision)
    async with scene.client:
        call = asyncio.create_task(scene.client.call_tool("wait"))
        await scene.started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await settle()
        assert scene.ended == ["wait"]
        assert scene.client.pending() == []


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_cancelled_caller_stops_a_polling_plain_tool(how: str, revision: str) -> None:
    await until_stopped(how, revision)


@pytest.mark.long
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_cancelled_caller_stops_a_polling_plain_tool_within_a_second(how: str, revision: str) -> None:
    await soon(partial(until_stopped, how, revision), 1.0)


async def until_stopped(how: str, revision: str) -> float:
    """Return how long a tool continues after its caller has gone."""
    server, clock = Server("s"), ManualClock()
    started, stopped = threading.Event(), threading.Event()

    @server.tool
    def burn(ctx: Context) -> None:
        started.set()
        while not ctx.cancelled:
            sum(range(1000))
        stopped.set()

    async with Client(server, revision=revision, clock=clock) as client:
        call = asyncio.create_task(client.call_tool("burn", timeout=5))
        assert await asyncio.to_thread(started.wait, PATIENCE)
        gone = time.perf_counter()
        if how == "cancel":
            call.cancel()
        else:
            clock.advance(5)
        with pytest.raises(asyncio.CancelledError if how == "cancel" else RequestTimeout):
            await call
        assert await asyncio.to_thread(stopped.wait, PATIENCE)
        took = time.perf_counter() - gone
    await server.aclose()
    return took


async def test_late_response_to_a_cancelled_call_is_ignored(revision: str) -> None:
    scene = TimedServer(revision)
    faults = Faults(clock=scene.clock).delay(5, received=2)  # after the answer to initialize, or to the listen request
    server = Server("s", clock=scene.clock)
    server.add_tool(lambda text: text, name="echo", thread=False)
    async with Client(faults.on(server), clock=scene.clock, revision=revision) as client:
        late = asyncio.create_task(client.call_tool("echo", {"text": "late"}, timeout=1))
        await settle()
        scene.clock.advance(1)
        await settle()
        scene.clock.advance(4)
        with pytest.raises((RequestTimeout, ConnectionClosed)):
            await late
        assert (await client.call_tool("echo", {"text": "next"})).data == "next"
