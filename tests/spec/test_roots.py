"""Roots: the folders that a client exposes to a server."""

import asyncio
import sys
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Context, Server
from trunkline.facts import HandlerFailed
from trunkline.server.input.ask import ClientLacksCapability
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

ROOTS = [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]
DECLARED = {"roots": {"listChanged": True}}


def make_server(**options: Any) -> Server:
    server = Server("t", **options)

    @server.tool
    async def look(ctx: Context) -> list[str]:
        return [root.uri for root in await ctx.roots()]

    return server


@pytest.mark.row("ROO-01", "O01")
async def test_server_receives_all_roots() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "look"})
        asked = await peer.receive()
        assert (asked["method"], asked.get("params", {})) == ("roots/list", {})
        peer.reply(asked, {"roots": ROOTS})
        assert (await peer.answer_to(call))["result"]["structuredContent"] == {"result": ["file:///a", "file:///b"]}


@pytest.mark.row("O04")
async def test_client_without_roots_is_not_asked() -> None:
    server, raised = Server("t"), []

    @server.tool
    async def look(ctx: Context) -> str:
        with pytest.raises(ClientLacksCapability) as lacks:
            await ctx.roots()
        raised.append(lacks.value.capability)
        return "no"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "look"})
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []
    assert raised == ["roots"]


@pytest.mark.row("ROO-03")
async def test_client_error_fails_only_the_tool() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "look"})
        asked = await peer.receive()
        peer.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32603, "message": "disk on fire"}})
        result = (await peer.answer_to(call))["result"]
        assert result["isError"] is True
        assert "disk on fire" in result["content"][0]["text"]


async def test_malformed_roots_fail_the_tool() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "look"})
        peer.reply(await peer.receive(), {"roots": "everywhere"})
        result = (await peer.answer_to(call))["result"]
        assert result["isError"] is True
        assert "malformed" in result["content"][0]["text"]


@pytest.mark.row("ROO-02", "O02")
async def test_roots_list_changed_precedes_the_new_list() -> None:
    server, seen = Server("t"), asyncio.Queue()

    @server.on_roots_changed
    async def changed(ctx: Context) -> None:
        seen.put_nowait(([root.uri for root in await ctx.roots()], ctx.principal))

    async with RawPeer(server, principal="alice") as peer:
        await peer.initialize(capabilities=DECLARED)
        for roots in (ROOTS, ROOTS[:1]):
            peer.notify("notifications/roots/list_changed")
            peer.reply(await peer.receive(), {"roots": roots})
            async with asyncio.timeout(PATIENCE):
                assert await seen.get() == ([root["uri"] for root in roots], "alice")


@pytest.mark.row("X02")
async def test_unprefixed_notification_name_is_accepted() -> None:
    server, told = Server("t"), asyncio.Event()

    @server.on_roots_changed
    async def changed(ctx: Context) -> None:
        told.set()

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=DECLARED)
        peer.notify("roots/list_changed")
        async with asyncio.timeout(PATIENCE):
            await told.wait()


@pytest.mark.row("O03")
async def test_undeclared_roots_notification_is_ignored() -> None:
    server, told = Server("t"), []

    @server.on_roots_changed
    async def changed(ctx: Context) -> None:
        told.append(ctx)

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"roots": {"listChanged": False}})
        peer.notify("notifications/roots/list_changed")
        assert await peer.quiet() == []
        assert await peer.quiet() == []  # a handler that was started would have run by now
    assert told == []


async def test_failing_roots_handler_does_not_stop_the_others() -> None:
    observer = RecordingObserver()
    server, told = Server("t", observers=[observer]), asyncio.Event()

    @server.on_roots_changed
    async def fails(ctx: Context) -> None:
        raise ValueError("no")

    @server.on_roots_changed
    async def exits(ctx: Context) -> None:
        sys.exit("leave")

    @server.on_roots_changed
    async def hears(ctx: Context) -> None:
        told.set()

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=DECLARED)
        peer.notify("notifications/roots/list_changed")
        async with asyncio.timeout(PATIENCE):
            await told.wait()
        assert await peer.quiet() == []
    assert [str(fact.error) for fact in observer.of(HandlerFailed)] == ["no", "leave"]


async def test_roots_handlers_end_with_the_connection() -> None:
    server, began, ended = Server("t"), asyncio.Event(), asyncio.Event()

    @server.on_roots_changed
    async def waits(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=DECLARED)
        peer.notify("notifications/roots/list_changed")
        async with asyncio.timeout(PATIENCE):
            await began.wait()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()


async def test_roots_request_times_out_after_five_seconds() -> None:
    clock = ManualClock()
    async with RawPeer(make_server(clock=clock)) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "look"})
        asked = await peer.receive()
        clock.advance(5)
        assert (await peer.receive())["params"]["requestId"] == asked["id"]
        assert "roots/list was not done after 5 s" in (await peer.answer_to(call))["result"]["content"][0]["text"]
