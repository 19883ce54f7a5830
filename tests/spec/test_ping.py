"""Ping."""

import pytest

from trunkline import Context, Server
from trunkline.errors import RequestTimeout
from trunkline.testing import ManualClock, RawPeer


@pytest.mark.row("K01")
async def test_ping_is_answered_with_an_empty_object() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        assert await peer.result("ping") == {}


@pytest.mark.row("K02", "AD005", "X20", "PH12")
async def test_ping_is_answered_before_initialize() -> None:
    async with RawPeer(Server("t")) as peer:
        assert await peer.result("ping") == {}


@pytest.mark.row("K02", "AD005")
async def test_ping_is_answered_between_initialize_and_initialized() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(confirm=False)
        assert await peer.result("ping") == {}


def pinging(clock: ManualClock) -> tuple[Server, list[RequestTimeout]]:
    """A server with a tool that pings the client, and the pings that timed out."""
    server, late = Server("t", clock=clock), []

    @server.tool
    async def ping(ctx: Context, timeout: float | None = None) -> str:
        try:
            await ctx.ping(timeout=timeout)
        except RequestTimeout as error:
            late.append(error)
            return "late"
        return "pong"

    return server, late


@pytest.mark.row("K03", "X20")
@pytest.mark.parametrize("confirm", [True, False])
async def test_server_may_ping_before_initialized(confirm: bool) -> None:
    server, late = pinging(ManualClock())
    async with RawPeer(server) as peer:
        await peer.initialize(confirm=confirm)
        call = peer.call("tools/call", {"name": "ping"})
        asked = await peer.receive()
        assert asked["method"] == "ping"
        peer.reply(asked, {})
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "pong"
    assert late == []


@pytest.mark.row("K04")
@pytest.mark.parametrize(("arguments", "seconds"), [({}, 5), ({"timeout": 2}, 2)])
async def test_unanswered_ping_times_out(arguments: dict[str, float], seconds: float) -> None:
    clock = ManualClock()
    server, late = pinging(clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "ping", "arguments": arguments})
        await peer.receive()
        clock.advance(seconds - 0.1)
        assert await peer.quiet() == []
        clock.advance(0.1)
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "late"
    assert [(error.method, error.elapsed) for error in late] == [("ping", seconds)]
