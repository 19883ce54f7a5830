"""Limits of a tool."""

import asyncio
import threading
from typing import Annotated, Any

import pytest
from tests.limits import PATIENCE

from trunkline import CallToolResult, Depends, Server, Settings, TextContent
from trunkline.errors import RegistrationError
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, LocalSemaphore
from trunkline.testing import ManualClock, RawPeer
from trunkline.wire import codec


def kind_of(answer: Any) -> str | None:
    result = answer.get("result", answer)
    return result["_meta"]["trunkline/error"]["kind"] if result.get("isError") else None


class BlockingServer:
    """A server whose tool waits for the test."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("t", observers=[])
        self.go = asyncio.Event()
        self.began: asyncio.Queue[int] = asyncio.Queue()
        self.most = self.running = 0

        @self.server.tool(**options)
        async def tool(number: int) -> int:
            self.running += 1
            self.most = max(self.most, self.running)
            self.began.put_nowait(number)
            try:
                await self.go.wait()
            finally:
                self.running -= 1
            return number


def call(peer: RawPeer, number: int = 0) -> int | str:
    return peer.call("tools/call", {"name": "tool", "arguments": {"number": number}})


# --- concurrency --------------------------------------------------------------------------------------------------


@pytest.mark.row("T19")
async def test_calls_without_limit_overlap() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        idents = [call(peer, number) for number in range(2)]
        assert [await gate.began.get() for _ in idents] == [0, 1]
        gate.go.set()
        assert [kind_of(await peer.answer_to(ident)) for ident in idents] == [None, None]
    assert gate.most == 2


@pytest.mark.row("T18", "Q06")
async def test_calls_above_concurrency_and_queue_are_rejected() -> None:
    gate = BlockingServer(max_concurrency=2, max_queue=1)
    async with RawPeer(gate.server) as peer, RawPeer(gate.server) as other:
        await peer.initialize()
        await other.initialize()
        idents = [call(peer, number) for number in range(3)]
        assert [await gate.began.get() for _ in range(2)] == [0, 1]
        await peer.quiet()
        refused = await other.request("tools/call", {"name": "tool", "arguments": {"number": 3}})
        assert kind_of(refused) == "maximum_concurrent_tools_exceeded"
        assert "try again later" in refused["result"]["content"][0]["text"]
        gate.go.set()
        assert [kind_of(await peer.answer_to(ident)) for ident in idents] == [None] * 3
        again = await other.request("tools/call", {"name": "tool", "arguments": {"number": 4}})
    assert kind_of(again) is None
    assert gate.most == 2


@pytest.mark.row("T18")
async def test_cancelled_waiter_frees_its_queue_place() -> None:
    gate = BlockingServer(max_concurrency=1, max_queue=1)
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        first = call(peer, 0)
        await gate.began.get()
        second = call(peer, 1)
        await peer.quiet()
        peer.notify("notifications/cancelled", {"requestId": second})
        await peer.quiet()
        third = call(peer, 2)
        await peer.quiet()
        gate.go.set()
        assert [kind_of(await peer.answer_to(ident)) for ident in (first, third)] == [None, None]
    assert gate.began.get_nowait() == 2


@pytest.mark.row("T18")
async def test_permit_of_cancelled_call_goes_to_the_next() -> None:
    turns = LocalSemaphore(ConcurrencyLimit("tool", 1, 64))
    await turns.acquire()
    second, third = (asyncio.create_task(turns.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    turns.release(None)
    second.cancel()  # its slot is granted, but it has not noticed
    await asyncio.wait_for(third, PATIENCE)
    assert second.cancelled()


@pytest.mark.row("T18")
async def test_permit_skips_a_call_being_cancelled() -> None:
    turns = LocalSemaphore(ConcurrencyLimit("tool", 1, 64))
    await turns.acquire()
    second, third = (asyncio.create_task(turns.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()  # it has not left the queue yet
    turns.release(None)
    await asyncio.wait_for(third, PATIENCE)
    assert second.cancelled()
    assert not turns._queue


@pytest.mark.row("T18")
async def test_sync_tool_holds_its_permit_until_its_thread_ends() -> None:
    clock, go, running = ManualClock(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    server = Server("t", observers=[], clock=clock, settings=Settings(work_timeout=5))

    @server.tool(max_concurrency=1, max_queue=0)
    def tool(number: int) -> int:
        loop.call_soon_threadsafe(running.set)
        go.wait(PATIENCE)
        return number

    async with RawPeer(server) as peer:
        await peer.initialize()
        first = call(peer)
        await running.wait()
        clock.advance(6)
        assert kind_of(await peer.answer_to(first)) == "tool_execution_timeout"
        assert kind_of(await peer.answer_to(call(peer))) == "maximum_concurrent_tools_exceeded"
        go.set()
        while kind_of(await peer.answer_to(call(peer))) is not None:
            pass
    await server.aclose()


# --- result size --------------------------------------------------------------------------------------------------


@pytest.mark.row("T18")
@pytest.mark.parametrize("on_thread", [False, True])
async def test_result_size_limit_is_inclusive(on_thread: bool) -> None:
    server = Server("t", observers=[])

    async def tool(size: int) -> str:
        return "x" * size

    def plain(size: int) -> str:
        return "x" * size

    server.add_tool(plain if on_thread else tool, name="tool", structured=False, max_result_bytes=100)
    async with RawPeer(server) as peer:
        await peer.initialize()
        empty = len(codec.to_json(CallToolResult([TextContent("")])))
        kinds = [
            kind_of(await peer.request("tools/call", {"name": "tool", "arguments": {"size": size}}))
            for size in (100 - empty, 101 - empty)
        ]
    assert kinds == [None, "tool_result_too_large"]


# --- access and availability --------------------------------------------------------------------------------------


@pytest.mark.row("T18")
async def test_tool_added_disabled_works_once_enabled() -> None:
    server = Server("t", observers=[], tools=True)

    @server.tool(enabled=False)
    async def tool(number: int) -> int:
        return number

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/list"))["tools"] == []
        assert kind_of(await peer.answer_to(call(peer))) == "tool_is_disabled"
        server.tools.enable("tool")
        assert kind_of(await peer.answer_to(call(peer))) is None


@pytest.mark.row("T18")
async def test_tool_runs_only_while_its_predicates_hold() -> None:
    server, well = Server("t", observers=[]), {"database": True, "disk": True}

    @server.health("database")
    async def database() -> bool:
        return well["database"]

    def disk() -> bool:
        return well["disk"]

    @server.tool(requires=["database", disk])
    async def tool(number: int) -> int:
        return number

    async with RawPeer(server) as peer:
        await peer.initialize()
        for name in (None, "database", "disk"):
            well.update(database=name != "database", disk=name != "disk")
            answer = await peer.answer_to(call(peer))
            if name is None:
                assert kind_of(answer) is None
            else:
                assert kind_of(answer) == "tool_dependency_failed"
                assert answer["result"]["_meta"]["trunkline/error"]["dependency"] == name


@pytest.mark.row("T18")
async def test_predicate_may_be_added_after_its_tool() -> None:
    server = Server("t", observers=[])

    @server.tool(requires=["database"])
    async def tool(number: int) -> int:
        return number

    server.health("database")(lambda: True)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert kind_of(await peer.answer_to(call(peer))) is None


@pytest.mark.row("T18")
@pytest.mark.parametrize("enabled", [True, False])
async def test_server_with_unknown_predicate_does_not_start(enabled: bool) -> None:
    server = Server("t", observers=[])

    @server.tool(requires=["databse"], enabled=enabled)
    async def tool(number: int) -> int:
        return number

    server.health("disk")(lambda: True)
    server.health("database")(lambda: True)
    why = "tool 'tool' requires the unknown health predicate 'databse'; known: 'database', 'disk'"
    with pytest.raises(RegistrationError, match=why):
        await server.start()
    with pytest.raises(RegistrationError, match=why):
        RawPeer(server).open()


@pytest.mark.row("T18")
async def test_tool_added_while_serving_needs_known_predicates() -> None:
    server = Server("t", observers=[])

    async def tool() -> None: ...

    async with RawPeer(server):
        with pytest.raises(RegistrationError, match="requires the unknown health predicate 'database'; known: none"):
            server.add_tool(tool, requires=["database"])
        assert "tool" not in server.tools
        server.health("database")(lambda: True)
        server.add_tool(tool, requires=["database"])
    await server.aclose()
    server.add_tool(tool, name="again", requires=["later"])  # a closed server may get them in any order


@pytest.mark.row("T18")
@pytest.mark.parametrize("plain", [False, True])
async def test_limited_tool_calling_sys_exit_keeps_server_alive(plain: bool) -> None:
    server = Server("t", observers=[])

    async def asynchronous() -> None:
        raise SystemExit(3)

    def plainly() -> None:
        raise SystemExit(3)

    server.add_tool(plainly if plain else asynchronous, name="tool", max_concurrency=1)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(2):
            assert kind_of(await peer.request("tools/call", {"name": "tool"})) == "tool_execution_failed"


@pytest.mark.row("T18")
async def test_tool_raising_generator_exit_gets_an_answer() -> None:
    server = Server("t", observers=[])

    @server.tool
    async def tool() -> None:
        raise GeneratorExit

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert kind_of(await peer.request("tools/call", {"name": "tool"})) == "tool_execution_failed"


@pytest.mark.row("T18")
@pytest.mark.parametrize("option", ["allow", "requires"])
async def test_predicate_calling_sys_exit_keeps_server_alive(option: str) -> None:
    server = Server("t", observers=[])

    def leave(*_: Any) -> bool:
        raise SystemExit(3)

    @server.tool(**{option: leave if option == "allow" else [leave]})
    async def tool(number: int) -> int:
        return number

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert kind_of(await peer.answer_to(call(peer))) == "tool_execution_failed"
        await peer.result("ping")


@pytest.mark.row("T18")
async def test_limits_include_dependencies() -> None:
    server, made = Server("t", observers=[]), []

    async def place() -> str:
        made.append(1)
        return "x"

    @server.tool(allow=lambda ctx: not made)
    async def tool(number: int, value: Annotated[str, Depends(place)]) -> int:
        return number

    async with RawPeer(server) as peer:
        await peer.initialize()
        kinds = [kind_of(await peer.answer_to(call(peer))) for _ in range(2)]
    assert kinds == [None, "tool_not_allowed"]
    assert made == [1]


# --- registration -------------------------------------------------------------------------------------------------


@pytest.mark.row("T18")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_concurrency": 0}, "max_concurrency must be 1 or more, not 0"),
        ({"max_concurrency": 1, "max_queue": -1}, "max_queue must be 0 or more, not -1"),
        ({"max_result_bytes": 0}, "max_result_bytes must be 1 or more, not 0"),
        ({"max_queue": 1}, "max_queue needs max_concurrency"),
        ({"allow": True}, "allow is a function of the context, not True"),
        ({"requires": "database"}, "requires= must be a list of names and predicates, not 'database'"),
        ({"requires": [None]}, "requires= must be a list of names and predicates, not"),
    ],
)
def test_invalid_limits_are_rejected(options: dict[str, Any], why: str) -> None:
    async def tool() -> None: ...

    with pytest.raises(RegistrationError, match=f"tool 'tool': {why}"):
        Server("t").add_tool(tool, **options)


@pytest.mark.row("T18")
def test_tool_without_limits_has_no_guard() -> None:
    server = Server("t")

    async def tool() -> None: ...

    server.add_tool(tool)
    server.add_tool(tool, name="other", timeout=1, requires=[])
    assert [entry.limiter for entry in server.tools] == [None, None]


@pytest.mark.row("T18")
def test_health_predicate_must_be_a_function() -> None:
    with pytest.raises(RegistrationError, match="health predicate 'database' must be a function, not True"):
        Server("t").health("database")(True)
