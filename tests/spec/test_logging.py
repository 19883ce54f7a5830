"""Logging: log messages of a server, and the level that a client sets."""

import asyncio
from typing import Any

import pytest

from trunkline import Context, Server
from trunkline.errors import MisuseError
from trunkline.protocol.types import LOGGING_LEVELS
from trunkline.testing import RawPeer

SYSLOG = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def make_server(**options: Any) -> Server:
    server = Server("t", observers=[], **options)

    @server.tool
    async def say_all(ctx: Context) -> str:
        for level in LOGGING_LEVELS:
            await ctx.log(level, f"at {level}")
        return "said"

    @server.tool
    def say_from_thread(ctx: Context) -> str:
        ctx.wait(ctx.warning({"from": "thread"}, logger="worker"))
        return "said"

    return server


async def received_levels(peer: RawPeer, tool: str = "say_all") -> list[Any]:
    await peer.result("tools/call", {"name": tool})
    return [message["params"] for message in peer.waiting() if message["method"] == "notifications/message"]


@pytest.mark.row("LOG-01", "G02", "X18")
async def test_message_has_level_logger_and_data() -> None:
    async with RawPeer(make_server()) as peer:
        assert (await peer.initialize())["capabilities"]["logging"] == {}
        assert await received_levels(peer, "say_from_thread") == [
            {"level": "warning", "data": {"from": "thread"}, "logger": "worker"}
        ]


@pytest.mark.row("LOG-02", "G02", "G03")
@pytest.mark.parametrize("threshold", SYSLOG)
async def test_level_filters_messages(threshold: str) -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        assert await peer.result("logging/setLevel", {"level": threshold}) == {}
        levels = [params["level"] for params in await received_levels(peer)]
    assert levels == SYSLOG[SYSLOG.index(threshold) :]


@pytest.mark.row("G02")
async def test_default_level_is_info() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        assert [params["level"] for params in await received_levels(peer)] == SYSLOG[1:]


@pytest.mark.row("G03")
@pytest.mark.parametrize("params", [{"level": "loud"}, {"level": 3}, {}])
async def test_unknown_level_is_refused(params: Any) -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        await peer.result("logging/setLevel", {"level": "alert"})
        assert (await peer.error("logging/setLevel", params))["code"] == -32602
        assert [params["level"] for params in await received_levels(peer)] == ["alert", "emergency"]


@pytest.mark.row("G01")
async def test_each_session_has_its_own_level() -> None:
    server, contexts = Server("t"), []

    @server.tool
    async def join(ctx: Context) -> str:
        contexts.append(ctx)
        return "joined"

    async with RawPeer(server) as calm, RawPeer(server) as curious:
        for peer, level in ((calm, "error"), (curious, "debug")):
            await peer.initialize()
            await peer.result("logging/setLevel", {"level": level})
            await peer.result("tools/call", {"name": "join"})
        for ctx in contexts:
            ctx.info("once for each")
        assert await calm.quiet() == []
        assert [message["params"]["data"] for message in await curious.quiet()] == ["once for each"]


@pytest.mark.row("LOG-01")
async def test_logging_needs_capability() -> None:
    async with RawPeer(make_server(logging=False)) as peer:
        assert "logging" not in (await peer.initialize())["capabilities"]
        assert await received_levels(peer) == []
        assert (await peer.error("logging/setLevel", {"level": "info"}))["code"] == -32601


@pytest.mark.row("CAP-09")
async def test_logging_may_start_before_initialized() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(confirm=False)
        assert len(await received_levels(peer)) == 7


@pytest.mark.row("G02")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_log_message_is_the_same_in_every_revision(revision: str) -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(revision)
        assert (await received_levels(peer, "say_from_thread"))[0]["data"] == {"from": "thread"}


async def test_each_level_method_sends_its_level() -> None:
    server = Server("t")

    @server.tool
    async def say(ctx: Context) -> str:
        await asyncio.gather(*(_awaited(tell("x")) for tell in (ctx.debug, ctx.info, ctx.warning, ctx.error)))
        return "said"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("logging/setLevel", {"level": "debug"})
        assert [params["level"] for params in await received_levels(peer, "say")] == [
            "debug",
            "info",
            "warning",
            "error",
        ]


async def _awaited(told: Any) -> None:
    await told


async def test_invalid_log_call_raises_in_handler() -> None:
    server, raised = Server("t"), []

    @server.tool
    def say(ctx: Context) -> str:
        for level, data in (("loud", "x"), ("info", object())):
            try:
                ctx.log(level, data)  # type: ignore[arg-type]
            except (MisuseError, TypeError) as error:
                raised.append(type(error))
        return "said"

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert await received_levels(peer, "say") == []
    assert raised == [MisuseError, TypeError]
