"""A peer that closes its sending side after a request still gets the answer; one that has gone altogether is noticed.

Both look the same to a server until it writes, so these tests go over real sockets, on either loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from tests.attacks.attacked_server import AttackedServer, listening
from tests.attacks.raw import Caller, begin, request, text_of, tool, until
from tests.modern import enveloped, headers_of

from trunkline.facts import CallEnded

Scenario = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario on a loop of its own."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(scenario(), 60))

    return run


def modern(name: str, **arguments: Any) -> bytes:
    params = enveloped(name=name, arguments=arguments)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return request("POST", "/mcp", message, **headers_of("tools/call", params))


async def outcomes(place: AttackedServer, count: int = 1) -> list[str]:
    await until(lambda: len(place.observer.of(CallEnded)) >= count, "the end of the call")
    return [fact.outcome for fact in place.observer.of(CallEnded)]


def test_session_call_is_answered_after_half_close(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with listening() as place, Caller(place.port) as caller:
            session = await begin(place.port)
            caller.say(request("POST", "/mcp", tool("wait", who="me"), mcp_session_id=session))
            caller.writer.write_eof()
            await until(lambda: place.started, "the call")
            place.gate.set()
            answer = await caller.answer()
            assert (answer.status, text_of(answer.json)) == (200, "me")
            assert answer.headers["connection"] == "close"
            assert await caller.rest() == b""

    run(scenario)


def test_modern_call_is_answered_after_half_close(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with listening() as place, Caller(place.port) as caller:
            caller.say(modern("wait", who="me"))
            await until(lambda: place.started, "the call")
            caller.writer.write_eof()
            assert (await caller.head()).status == 200
            place.gate.set()
            messages = [message async for message in caller.messages()]
            assert [text_of(message) for message in messages] == ["me"]
            assert await caller.rest() == b""

    run(scenario)


def test_stream_continues_after_half_close(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with listening() as place, Caller(place.port) as caller:
            session = await begin(place.port)
            params = {"name": "begin", "arguments": {}, "_meta": {"progressToken": 1}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            caller.say(request("POST", "/mcp", message, mcp_session_id=session))
            assert (await caller.head()).status == 200
            caller.writer.write_eof()
            await until(lambda: place.started, "the call")
            place.gate.set()
            messages = [message async for message in caller.messages()]
            assert [message.get("method") for message in messages] == ["notifications/progress", None]

    run(scenario)


def test_pipelined_requests_are_answered_after_half_close(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with listening() as place, Caller(place.port) as caller:
            session = await begin(place.port)
            calls = [tool("wait", who="first"), tool("effect", what="second"), tool("effect", what="third")]
            caller.say(b"".join(request("POST", "/mcp", call, mcp_session_id=session) for call in calls))
            caller.writer.write_eof()
            await until(lambda: place.started, "the call")
            place.gate.set()
            answers = [text_of((await caller.answer()).json) for _ in calls]
            assert answers == ["first", "second", "third"]
            assert await caller.rest() == b""

    run(scenario)


@pytest.mark.parametrize("begun", [False, True], ids=["before its answer", "in its answer"])
def test_modern_call_is_cancelled_when_peer_closes(run: Callable[[Scenario], None], begun: bool) -> None:
    async def scenario() -> None:
        async with listening() as place:
            async with Caller(place.port) as caller:
                caller.say(modern("begin") if begun else modern("wait", who="me"))
                await until(lambda: place.started, "the call")
                caller.writer.close()
            assert await outcomes(place) == ["cancelled"]

    run(scenario)


@pytest.mark.parametrize("begun", [False, True], ids=["before it begins", "once it has begun"])
def test_standalone_stream_is_closed_after_half_close(run: Callable[[Scenario], None], begun: bool) -> None:
    async def scenario() -> None:
        async with listening() as place, Caller(place.port) as caller:
            session = await begin(place.port)
            caller.say(request("GET", "/mcp", None, mcp_session_id=session))
            if not begun:
                caller.writer.write_eof()
            assert (await caller.head()).status == 200
            if begun:
                caller.writer.write_eof()
            await caller.rest()

    run(scenario)


@pytest.mark.parametrize("cut", [10, -1], ids=["in its head", "in its body"])
def test_incomplete_request_at_half_close_is_not_answered(run: Callable[[Scenario], None], cut: int) -> None:
    async def scenario() -> None:
        async with listening() as place, Caller(place.port) as caller:
            session = await begin(place.port)
            data = request("POST", "/mcp", tool("effect", what="incomplete"), mcp_session_id=session)
            caller.say(data[:cut])
            caller.writer.write_eof()
            assert await caller.rest() == b""
            assert place.done == []

    run(scenario)
