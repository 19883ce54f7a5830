"""SIGTERM with streams open and tools at work: every stream ends as it should, and so does the process."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.raw import INITIALIZED, Caller, ask, begin, call, initialize, request
from tests.faults.processes import COMMANDS, Served, served

from trunkline.server.shutdown import EXIT_CODES

STREAMS, ENDING, ENDLESS = 90, 5, 5  # of GET, of tools that end in time, of tools that do not
DRAIN = 1.0
ENDS_WITH = {
    "run": 0,
    "uvicorn": -signal.SIGTERM,
    "hypercorn": 0,
}  # uvicorn kills itself by the signal once all is done
DEADLINE = DRAIN + 4.0  # with what it takes to leave a process on a busy machine


@asynccontextmanager
async def streams(server: Served, go: Path) -> AsyncIterator[tuple[list[Caller], list[Caller], list[Caller]]]:
    """Open streams: those that wait for what may happen, and those of tools at work."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Caller(server.port)) for _ in range(STREAMS + ENDING + ENDLESS)]
        for number, caller in enumerate(callers):
            session = await begin(server.port)
            if number < STREAMS:
                caller.say(request("GET", "/mcp", None, mcp_session_id=session))
            else:
                file = go if number < STREAMS + ENDING else go / "never"
                params = {"name": "wait", "arguments": {"file": str(file)}, "_meta": {"progressToken": number}}
                caller.say(request("POST", "/mcp", call("tools/call", params), mcp_session_id=session))
            assert (await caller.head()).status == 200
        yield callers[:STREAMS], callers[STREAMS : STREAMS + ENDING], callers[STREAMS + ENDING :]


async def all_messages(caller: Caller) -> list[Any]:
    """What comes until the stream has ended with its last chunk; one that breaks off fails."""
    return [message async for message in caller.messages()]


@pytest.mark.parametrize("command", COMMANDS)
async def test_every_stream_ends_with_its_last_chunk_and_the_process_in_time(command: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with served(tmp_path / "effects", command, drain_timeout=DRAIN) as server:
        async with streams(server, go) as (waiting, ending, endless):
            told = time.monotonic()
            stopped = asyncio.create_task(asyncio.to_thread(server.stop, 30.0))
            for stream in waiting:
                assert [message for message in await all_messages(stream) if "id" in message] == []
            go.touch()
            for stream in ending:
                assert (await all_messages(stream))[-1]["result"]["content"][0]["text"] == "waited"
            for stream in endless:
                await all_messages(stream)
            code, seconds = await stopped
            expected = EXIT_CODES["DrainPendingRequests"] if command == "run" else ENDS_WITH[command]
            assert (code, server.complaints) == (expected, [])
            assert seconds < DEADLINE, f"{seconds:.1f} s, {time.monotonic() - told:.1f} s seen from here"


@pytest.mark.parametrize("command", ["run", "uvicorn"])
async def test_what_is_at_work_for_a_stream_of_http_and_sse_is_still_answered(command: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with served(tmp_path / "effects", command, drain_timeout=DRAIN) as server:
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
            stopped = asyncio.create_task(asyncio.to_thread(server.stop, 30.0))
            assert [message async for message in heard[0]] == []
            go.touch()
            assert [message["result"]["content"][0]["text"] async for message in heard[1]] == ["waited"]
            code, seconds = await stopped
            assert (code, server.complaints) == (ENDS_WITH[command], [])
            assert seconds < DEADLINE
