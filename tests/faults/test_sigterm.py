"""SIGTERM with open streams and running tools: each stream ends properly, and so does the process."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.raw import INITIALIZED, Answer, Caller, ask, begin, call, initialize, request, tool, until
from tests.faults.processes import RunningServer, served
from tests.limits import PATIENCE
from tests.ports import HeldPort
from websockets.asyncio.client import connect
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from trunkline.server.shutdown import EXIT_CODES

STREAMS, TOOLS = 90, 5  # GET streams, and streams of running tools
DRAIN = 0.5  # seconds; the test waits for all of it
ENDS_WITH = {
    "run": 0,
    "uvicorn": -signal.SIGTERM,
    "hypercorn": 0,
    "granian": 0,
}  # uvicorn kills itself with the signal at the end


@asynccontextmanager
async def streams(server: RunningServer, go: Path) -> AsyncIterator[tuple[list[Caller], list[Caller]]]:
    """Open streams: idle GET streams, and those of running tools."""
    async with AsyncExitStack() as stack:
        callers: list[Caller] = []
        for number in range(STREAMS + TOOLS):
            session = await begin(server.port)
            caller = await stack.enter_async_context(Caller(server.port))
            callers.append(caller)
            if number < STREAMS:
                caller.say(request("GET", "/mcp", None, mcp_session_id=session))
            else:
                params = {"name": "wait", "arguments": {"file": str(go)}, "_meta": {"progressToken": number}}
                caller.say(request("POST", "/mcp", call("tools/call", params), mcp_session_id=session))
            assert (await caller.head()).status == 200
        yield callers[:STREAMS], callers[STREAMS:]


async def all_messages(caller: Caller) -> list[Any]:
    """All messages of a stream that ends with its last chunk; one that breaks off fails."""
    return [message async for message in caller.messages()]


@pytest.mark.parametrize("command", ENDS_WITH)
async def test_streams_end_properly_and_running_calls_are_awaited(command: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with served(tmp_path / "effects", command, drain_timeout=10 * PATIENCE) as server:
        async with streams(server, go) as (waiting, working):
            stopped = asyncio.create_task(asyncio.to_thread(server.stop))
            for stream in waiting:
                assert [message for message in await all_messages(stream) if "id" in message] == []
            go.touch()
            for stream in working:
                assert (await all_messages(stream))[-1]["result"]["content"][0]["text"] == "waited"
            code, _ = await stopped
            assert (code, server.complaints) == (ENDS_WITH[command], [])


@pytest.mark.parametrize("command", ENDS_WITH)
async def test_streams_of_calls_beyond_the_drain_time_end_properly(command: str, tmp_path: Path) -> None:
    with served(tmp_path / "effects", command, drain_timeout=DRAIN) as server:
        async with streams(server, tmp_path / "never") as (waiting, working):
            stopped = asyncio.create_task(asyncio.to_thread(server.stop))
            for stream in (*waiting, *working):
                await all_messages(stream)
            expected = EXIT_CODES["DrainPendingRequests"] if command == "run" else ENDS_WITH[command]
            code, _ = await stopped
            assert (code, server.complaints) == (expected, [])


@pytest.mark.parametrize("command", ENDS_WITH)
async def test_websocket_ends_with_the_server(command: str, tmp_path: Path) -> None:
    with served(tmp_path / "effects", command, drain_timeout=DRAIN) as server:
        url = f"ws://127.0.0.1:{server.port}/mcp"
        async with asyncio.timeout(PATIENCE), connect(url, subprotocols=[Subprotocol("mcp")]) as socket:
            stopped = asyncio.create_task(asyncio.to_thread(server.stop))
            await socket.wait_closed()
            code, _ = await stopped
        first = {"granian": {CloseCode.ABNORMAL_CLOSURE}, "uvicorn": {CloseCode.SERVICE_RESTART}}  # which may be faster
        assert socket.close_code in {CloseCode.GOING_AWAY} | first.get(command, set())
        assert (code, server.complaints) == (ENDS_WITH[command], [])


@pytest.mark.parametrize("command", ["run", "uvicorn", "granian"])
async def test_running_call_of_http_sse_is_answered(command: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with served(tmp_path / "effects", command, drain_timeout=10 * PATIENCE) as server:
        async with Caller(server.port) as idle, Caller(server.port) as busy:
            heard: list[AsyncIterator[Any]] = []
            for caller in (idle, busy):
                caller.say(request("GET", "/sse"))
                assert (await caller.head()).status == 200
                heard.append(caller.messages())
                path = await anext(heard[-1])
                await ask(server.port, "POST", path, initialize())
                assert "result" in await anext(heard[-1])
                await ask(server.port, "POST", path, INITIALIZED)
            params = {"name": "wait", "arguments": {"file": str(go)}, "_meta": {"progressToken": 1}}
            await ask(server.port, "POST", path, call("tools/call", params))
            assert (await anext(heard[1]))["method"] == "notifications/progress"
            stopped = asyncio.create_task(asyncio.to_thread(server.stop))
            assert [message async for message in heard[0]] == []
            go.touch()
            assert [message["result"]["content"][0]["text"] async for message in heard[1]] == ["waited"]
            code, _ = await stopped
            assert (code, server.complaints) == (ENDS_WITH[command], [])


async def orders(port: int, session: str) -> int:
    """Place orders without a pause until the server accepts no more; return how many it accepted."""
    for number in count():
        try:
            answer = await post(port, session, tool("order", what=f"{session} {number}"))
        except (AssertionError, OSError):  # the server has gone
            return number
        if answer.status != 200 or "error" in answer.json:
            return number
    raise AssertionError


async def post(port: int, session: str, message: Any) -> Answer:
    return await ask(port, "POST", "/mcp", message, mcp_session_id=session)


@pytest.mark.row("D11")
@pytest.mark.parametrize("command", ["run", "uvicorn", "granian"])
async def test_busy_process_writes_its_state_before_it_ends(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_STORE", str(tmp_path / "store"))
    effects, wanted = tmp_path / "effects", {"uri": "shop://price"}
    effects.touch()
    port = HeldPort()
    with served(effects, command, port.number, drain_timeout=10 * PATIENCE, task_lease=600) as server:
        sessions = [await begin(server.port) for _ in range(8)]
        for session in sessions:
            await post(server.port, session, call("resources/subscribe", wanted))
        task = await post(server.port, sessions[0], call("tools/call", {"name": "mend", "task": {}}))
        busy = [asyncio.create_task(orders(server.port, session)) for session in sessions]
        await until(lambda: len(effects.read_text().splitlines()) > 20, "some orders")
        code, _ = await asyncio.to_thread(server.stop)
        assert (code, server.complaints) == (ENDS_WITH[command], [])
        taken = sum(await asyncio.gather(*busy))
        done = effects.read_text().splitlines()
        assert len([line for line in done if "mend" not in line]) == taken  # each started order has got its response
    with served(effects, command, port.number, task_lease=600) as server:
        await until(lambda: "mended" in effects.read_text(), "a task that is gone on with")
        params = {"taskId": task.json["result"]["task"]["taskId"]}
        answer = await post(server.port, sessions[0], call("tasks/result", params))
        assert answer.json["result"]["content"][0]["text"] == "mended"
        for session in sessions:
            assert (await post(server.port, session, call("ping"))).status == 200
        async with Caller(server.port) as caller:
            caller.say(request("GET", "/mcp", None, mcp_session_id=sessions[-1]))
            assert (await caller.head()).status == 200
            await post(server.port, sessions[0], tool("reprice"))
            assert (await anext(caller.messages()))["method"] == "notifications/resources/updated"
    port.close()
