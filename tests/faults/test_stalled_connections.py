"""Stalled connections, whose sockets stay open: each wait ends, and nothing is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.faults.proxy import Proxy, proxied
from tests.limits import PATIENCE
from tests.processes import nothing_left

from trunkline import Client, Context, Server, Settings
from trunkline.errors import RequestTimeout, TransportError, TrunklineError
from trunkline.transports.addresses import parse_address

QUICK = Settings(
    stream_retry=0.05,
    backoff_first=0.05,
    drain_timeout=0.5,
    stop_timeout=0.5,
    keepalive_interval=1.0,
    keepalive_timeout=1.0,
    quick_timeout=1.0,  # of the ping that distinguishes a dead connection from a slow call
)


@asynccontextmanager
async def stalled_server() -> AsyncIterator[tuple[Proxy, asyncio.Event]]:
    """A server behind a proxy, and the event that its calls wait for."""
    go = asyncio.Event()
    server = Server("silent", settings=QUICK)

    @server.tool
    async def wait(ctx: Context) -> str:
        """Report that it has begun, and wait."""
        await ctx.progress(1)
        await go.wait()
        return "done"

    listener = await server.listen("http://127.0.0.1:0/mcp")
    try:
        async with proxied(parse_address(listener.address).port) as proxy:
            yield proxy, go
    finally:
        go.set()
        await server.aclose()


def url(proxy: Proxy, scheme: str) -> str:
    return f"{scheme}://127.0.0.1:{proxy.port}/mcp"


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("fault", [Proxy.stall, Proxy.half_open], ids=["stalled", "half open"])
async def test_call_to_a_silent_peer_ends_at_its_deadline(fault, scheme: str) -> None:
    with nothing_left():
        async with stalled_server() as (proxy, _):
            client = await Client(url(proxy, scheme), settings=QUICK).open()
            began = asyncio.Event()
            asked = asyncio.create_task(client.call_tool("wait", timeout=2.0, on_progress=lambda _: began.set()))
            await asyncio.wait_for(began.wait(), PATIENCE)
            fault(proxy)
            with pytest.raises((RequestTimeout, TransportError)):
                await asyncio.wait_for(asked, PATIENCE)
            await asyncio.wait_for(client.close(), PATIENCE)


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_connect_to_a_silent_server_fails(scheme: str) -> None:
    with nothing_left():
        async with stalled_server() as (proxy, _):
            proxy.stall()
            brief = Settings(stop_timeout=0.5, connect_timeout=0.5, initialize_timeout=0.5)
            with pytest.raises(TrunklineError):
                await asyncio.wait_for(Client(url(proxy, scheme), settings=brief).open(), PATIENCE)


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_call_survives_a_stalled_connection(scheme: str) -> None:
    with nothing_left():
        async with (
            stalled_server() as (proxy, go),
            Client(url(proxy, scheme), settings=Settings(stop_timeout=0.5)) as client,
        ):
            began = asyncio.Event()
            asked = asyncio.create_task(client.call_tool("wait", timeout=PATIENCE, on_progress=lambda _: began.set()))
            await asyncio.wait_for(began.wait(), PATIENCE)
            proxy.stall()
            go.set()
            proxy.go_on()
            assert (await asked).text == "done"


async def test_client_reconnects_after_a_network_outage() -> None:
    with nothing_left():
        async with stalled_server() as (proxy, go), Client(url(proxy, "http"), settings=QUICK) as client:
            go.set()
            proxy.refusing = True
            proxy.reset()
            again = asyncio.create_task(client.ping(timeout=PATIENCE))
            await asyncio.sleep(0)
            proxy.refusing = False
            await again
