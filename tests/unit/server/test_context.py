"""The context of a call."""

import asyncio
import threading
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Context, Server, Settings
from trunkline.errors import MisuseError
from trunkline.protocol.revisions import Revision
from trunkline.testing import ManualClock, RawPeer


async def seen_by_a_handler(
    look: Any, *, thread: bool = False, clock: ManualClock | None = None, **options: Any
) -> Any:
    """The values that a handler reads from its context."""
    server, found = Server("t", clock=clock), []

    async def tool(ctx: Context) -> str:
        found.append(look(ctx))
        return "looked"

    def tool_on_thread(ctx: Context) -> str:
        found.append(look(ctx))
        return "looked"

    server.add_tool(tool_on_thread if thread else tool, name="look", timeout=options.pop("timeout", None))
    async with RawPeer(server, principal="alice") as peer:
        await peer.initialize(**options)
        await peer.request("tools/call", {"name": "look", "_meta": {"progressToken": "t"}}, id="r-1")
    return found[0]


@pytest.mark.parametrize("thread", [False, True])
async def test_context_describes_the_caller(*, thread: bool) -> None:
    def look(ctx: Context) -> Any:
        client = ctx.client
        assert client.info is not None
        return ctx.request_id, client.info.name, client.capabilities, ctx.revision, ctx.principal, ctx.progress_token

    seen = await seen_by_a_handler(look, thread=thread, revision="2025-06-18", capabilities={"roots": {}})
    assert seen == ("r-1", "raw peer", {"roots": {}}, Revision.V2025_06_18, "alice", "t")


async def test_session_id_is_the_same_for_all_calls() -> None:
    server, numbers = Server("t"), []

    @server.tool
    async def look(ctx: Context) -> str:
        numbers.append(ctx.session_id)
        return "looked"

    async with RawPeer(server) as one, RawPeer(server) as other:
        for peer in (one, other):
            await peer.initialize()
        for peer in (one, one, other):
            await peer.result("tools/call", {"name": "look"})
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.row("X07")
@pytest.mark.parametrize(("timeout", "left"), [(None, 60), (5, 5)])
async def test_context_has_the_remaining_time(timeout: float | None, left: float) -> None:
    clock, server, deadlines = ManualClock(), None, []
    server = Server("t", clock=clock)
    go = asyncio.Event()

    @server.tool(timeout=timeout)
    async def look(ctx: Context) -> str:
        await asyncio.sleep(0)
        deadlines.append(ctx.deadline)
        await go.wait()
        deadlines.append(ctx.deadline)
        return "looked"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "look"})
        await peer.quiet()
        await peer.quiet()
        clock.advance(2)
        go.set()
        await peer.answer_to(call)
    assert deadlines == [left, left - 2]


@pytest.mark.row("X07")
async def test_deadline_is_none_without_limits() -> None:
    server, deadlines = Server("t", settings=Settings(work_timeout=None, longest_call=None)), []

    @server.tool
    async def look(ctx: Context) -> str:
        await asyncio.sleep(0)
        deadlines.append(ctx.deadline)
        return "looked"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "look"})
    assert deadlines == [None]


@pytest.mark.row("A12")
async def test_plain_handler_can_wait_for_an_awaitable() -> None:
    server = Server("t")

    @server.tool
    def work(ctx: Context) -> str:
        ctx.wait(ctx.progress(1))
        ctx.wait(ctx.info("one root, please"))
        (root,) = ctx.wait(ctx.roots())
        return root.uri

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"roots": {}})
        call = peer.call("tools/call", {"name": "work", "_meta": {"progressToken": 1}})
        messages = [await peer.receive() for _ in range(3)]
        assert [message["method"] for message in messages] == [
            "notifications/progress",
            "notifications/message",
            "roots/list",
        ]
        peer.reply(messages[2], {"roots": [{"uri": "file:///a"}]})
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "file:///a"


@pytest.mark.parametrize("asked", ["coroutine", "told"])
async def test_wait_in_an_async_handler_raises(asked: str) -> None:
    def look(ctx: Context) -> str:
        with pytest.raises(MisuseError, match="an async handler awaits") as misuse:
            ctx.wait(ctx.roots() if asked == "coroutine" else ctx.info("x"))
        return str(misuse.value)

    assert "plain handlers" in await seen_by_a_handler(look)


async def test_plain_handler_can_wait_inside_its_own_loop() -> None:
    async def inner(ctx: Context) -> str:
        return f"{len(ctx.wait(ctx.roots()))} roots"

    server = Server("t")

    @server.tool
    def work(ctx: Context) -> str:
        return asyncio.run(inner(ctx))

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"roots": {}})
        call = peer.call("tools/call", {"name": "work"})
        peer.reply(await peer.receive(), {"roots": []})
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "0 roots"


async def test_sent_message_need_not_be_awaited() -> None:
    server = Server("t")

    @server.tool
    async def work(ctx: Context) -> str:
        ctx.progress(1)
        ctx.info("not awaited")
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "work", "_meta": {"progressToken": 1}})
        assert len(peer.waiting()) == 2


@pytest.mark.row("N14")
async def test_awaited_message_waits_for_a_slow_peer() -> None:
    server, told = Server("t"), []

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.info("x")
        told.append("went on")
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        room = asyncio.Event()
        peer.connection.channel.drain = room.wait  # type: ignore[method-assign, assignment]
        call = peer.call("tools/call", {"name": "work"})
        await peer.receive()
        await peer.quiet()
        assert told == []
        room.set()
        await peer.answer_to(call)
    assert told == ["went on"]


async def test_raise_if_cancelled_passes_while_the_call_runs() -> None:
    assert await seen_by_a_handler(lambda ctx: (ctx.cancelled, ctx.raise_if_cancelled())) == (False, None)


async def test_context_is_usable_after_its_call() -> None:
    server, contexts = Server("t"), []

    @server.tool
    async def keep(ctx: Context) -> str:
        contexts.append(ctx)
        return "kept"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "keep"})
    (ctx,) = contexts
    assert ctx.cancelled
    thread = threading.Thread(target=lambda: (ctx.info("x"), ctx.progress(1)))
    thread.start()
    thread.join(PATIENCE)
    ctx.info("x")
    ctx.progress(1)
    await asyncio.sleep(0)
    assert ctx.client.info is not None
