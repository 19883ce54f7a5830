"""Cancellation: a cancelled request gets no response."""

import asyncio
import threading
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Context, Server, Settings
from trunkline.facts import CallEnded, Dropped
from trunkline.testing import ManualClock, RawPeer, RecordingObserver


async def reached(event: threading.Event) -> None:
    """Wait for an event that a thread sets."""
    assert await asyncio.to_thread(event.wait, 10)


def cancel(peer: RawPeer, ident: Any, **more: Any) -> None:
    peer.notify("notifications/cancelled", {"requestId": ident, **more})


@pytest.mark.row("CAN-04", "N15", "N19")
async def test_cancelled_async_handler_gets_no_response() -> None:
    observer = RecordingObserver()
    server, began, stopped = Server("t", observers=[observer]), asyncio.Event(), asyncio.Event()

    @server.tool
    async def work(ctx: Context) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await ctx.progress(1)
            stopped.set()
            raise
        return "never"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "work", "_meta": {"progressToken": "t"}})
        await began.wait()
        cancel(peer, call, reason="changed my mind")
        async with asyncio.timeout(PATIENCE):
            await stopped.wait()
        assert await peer.quiet() == []
        assert peer.connection.session.incoming_requests == {}
    assert [fact.outcome for fact in observer.of(CallEnded) if fact.request == call] == ["cancelled"]


@pytest.mark.row("CAN-05", "N19")
async def test_handler_ignoring_cancellation_gets_no_response() -> None:
    server, began, finished = Server("t"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def stubborn() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            finished.set()
        return "finished"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "stubborn"})
        await began.wait()
        cancel(peer, call)
        await finished.wait()
        assert await peer.quiet() == []
        assert await peer.quiet() == []


@pytest.mark.row("N19")
async def test_cancelled_thread_sees_it_and_gets_no_response() -> None:
    server, began, go, seen = Server("t"), threading.Event(), threading.Event(), []
    ended = threading.Event()

    @server.tool
    def work(ctx: Context) -> str:
        seen.append(ctx.cancelled)
        ctx.raise_if_cancelled()
        began.set()
        go.wait(PATIENCE)
        seen.append(ctx.cancelled)
        try:
            ctx.raise_if_cancelled()
        finally:
            ended.set()
        return "never"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "work"})
        await reached(began)
        cancel(peer, call)
        assert await peer.quiet() == []
        go.set()
        await reached(ended)
        assert await peer.quiet() == []
    assert seen == [False, True]


@pytest.mark.row("N19")
async def test_cancelled_call_never_starts_on_thread() -> None:
    server, began, go, ran = Server("t", settings=Settings(max_threads=1)), threading.Event(), threading.Event(), []

    @server.tool
    def work(number: int) -> int:
        ran.append(number)
        began.set()
        go.wait(PATIENCE)
        return number

    async with RawPeer(server) as peer:
        await peer.initialize()
        first, second, third = (peer.call("tools/call", {"name": "work", "arguments": {"number": n}}) for n in range(3))
        await reached(began)
        cancel(peer, second)
        assert await peer.quiet() == []
        go.set()
        assert {(await peer.receive())["id"] for _ in range(2)} == {first, third}
    assert ran == [0, 2]


@pytest.mark.row("N19")
async def test_cancelled_queued_call_never_starts() -> None:
    server, go, ran = Server("t", settings=Settings(max_calls=1)), asyncio.Event(), []

    @server.tool
    async def work(number: int) -> int:
        ran.append(number)
        await go.wait()
        return number

    async with RawPeer(server) as peer:
        await peer.initialize()
        first, second, third = (peer.call("tools/call", {"name": "work", "arguments": {"number": n}}) for n in range(3))
        await asyncio.sleep(0)
        cancel(peer, second)
        go.set()
        assert [(await peer.receive())["id"] for _ in range(2)] == [first, third]
    assert ran == [0, 2]


@pytest.mark.row("CAN-04")
async def test_cancelled_call_frees_its_slot() -> None:
    server, held = Server("t", settings=Settings(max_calls=1)), threading.Event()

    @server.tool
    def hang() -> str:
        held.wait(PATIENCE)
        return "late"

    @server.tool
    async def quick() -> str:
        return "quick"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "hang"})
        waiting = peer.call("tools/call", {"name": "quick"})
        cancel(peer, call)
        assert (await peer.answer_to(waiting))["result"]["content"][0]["text"] == "quick"
        held.set()


@pytest.mark.row("CAN-05")
async def test_cancellation_racing_response_leaves_nothing() -> None:
    """The cancellation arrives after the call is done and before its response is sent."""
    server, began, go = Server("t", settings=Settings(max_calls=1)), asyncio.Event(), asyncio.Event()

    @server.tool
    async def work() -> str:
        began.set()
        await go.wait()
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(3):
            began.clear()
            go.clear()
            call = peer.call("tools/call", {"name": "work"})
            await began.wait()
            go.set()
            cancel(peer, call)  # arrives in the turn in which the call ends
            answers = [message for message in await peer.quiet() if message.get("id") == call]
            assert len(answers) <= 1
        async with asyncio.timeout(PATIENCE):
            await peer.connection.drain_and_close(10 * PATIENCE)  # at once: no wait is left


@pytest.mark.row("CAN-06")
@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"requestId": 99}, "unknown_request"),
        ({"requestId": "1"}, "unknown_request"),
        ({}, "unknown_request"),
        ({"requestId": {"a": 1}}, "invalid_params"),
        (None, "unknown_request"),
    ],
)
async def test_unknown_cancellation_is_ignored_and_reported(params: Any, kind: str) -> None:
    observer = RecordingObserver()
    async with RawPeer(Server("t", observers=[observer])) as peer:
        await peer.initialize()
        peer.notify("notifications/cancelled", params)
        assert await peer.quiet() == []
    assert [fact.kind for fact in observer.of(Dropped)] == [kind]


@pytest.mark.row("N16", "X19")
async def test_peer_cannot_cancel_our_request() -> None:
    server = Server("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.roots())[0].uri

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"roots": {}})
        call = peer.call("tools/call", {"name": "ask"}, id="mine")
        asked = await peer.receive()
        cancel(peer, asked["id"])  # the server's own request, by its id
        assert await peer.quiet() == []
        peer.reply(asked, {"roots": [{"uri": "file:///a"}]})
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "file:///a"


@pytest.mark.row("X19")
async def test_ids_of_both_sides_are_independent() -> None:
    server, began, stopped = Server("t"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def ask(ctx: Context) -> str:
        began.set()
        try:
            await ctx.roots()
        finally:
            stopped.set()
        return "never"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"roots": {}})
        peer.call("tools/call", {"name": "ask"}, id=1)
        asked = await peer.receive()
        assert asked["id"] == 1
        cancel(peer, 1)  # names the client's request, not the server's
        async with asyncio.timeout(PATIENCE):
            await stopped.wait()
        told = await peer.receive()
        assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", 1)


@pytest.mark.row("N15")
async def test_cancelled_call_cancels_its_client_requests() -> None:
    server = Server("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.sample("x")
        return "never"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        cancel(peer, call)
        told = await peer.receive()
        assert told["params"] == {"requestId": asked["id"], "reason": "no longer needed"}
        peer.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": 0, "message": "stopped"}})
        assert await peer.quiet() == []


@pytest.mark.row("CAN-01")
async def test_initialize_cannot_be_cancelled() -> None:
    async with RawPeer(Server("t")) as peer:
        client = {"name": "c", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        call = peer.call("initialize", params)
        cancel(peer, call)
        assert "result" in await peer.answer_to(call)


# --- timeouts ---------------------------------------------------------------------------------------------------


@pytest.mark.row("K14")
async def test_timeout_answers_while_thread_runs_on() -> None:
    clock, began, go = ManualClock(), threading.Event(), threading.Event()
    server = Server("t", clock=clock, settings=Settings(max_calls=1))

    @server.tool(timeout=2)
    def hang() -> str:
        began.set()
        go.wait(PATIENCE)
        return "late"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "hang"})
        await reached(began)
        clock.advance(2)
        result = (await peer.answer_to(call))["result"]
        assert result["isError"] is True
        assert "tools/call was not done after 2 s" in result["content"][0]["text"]
        assert not go.is_set()  # the thread still runs
        assert await peer.quiet() == []
        go.set()
        assert (await peer.result("tools/list"))["tools"][0]["name"] == "hang"  # its slot is free again
        assert await peer.quiet() == []


@pytest.mark.row("K14")
@pytest.mark.parametrize(
    ("method", "params"), [("prompts/get", {"name": "p"}), ("resources/read", {"uri": "r://x"})], ids=["prompt", "read"]
)
async def test_slow_prompts_and_resources_time_out(method: str, params: Any) -> None:
    clock, stopped = ManualClock(), asyncio.Event()
    server = Server("t", clock=clock)

    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    server.add_prompt(hang, name="p")
    server.add_resource("r://x", hang)
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call(method, params)
        await peer.quiet()
        clock.advance(60)
        error = (await peer.answer_to(call))["error"]
        assert (error["code"], error["data"]["kind"], error["data"]["elapsed"]) == (-32603, "request_timeout", 60)
        await stopped.wait()


@pytest.mark.row("K14")
async def test_timeout_fact_has_timeout_outcome() -> None:
    clock, observer = ManualClock(), RecordingObserver()
    server = Server("t", clock=clock, observers=[observer])

    @server.tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "hang"})
        await peer.quiet()
        clock.advance(60)
        await peer.answer_to(call)
    (ended,) = [fact for fact in observer.of(CallEnded) if fact.request == call]
    assert (ended.outcome, ended.seconds) == ("timeout", 60)
