"""Connections of principals to the server behind a proxy."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.limits import PATIENCE

from trunkline import Client, PeerError, Server, Settings
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.client.targets import make_connector
from trunkline.facts import Observers
from trunkline.protocol.types import Implementation
from trunkline.proxies.backend import BackendTarget
from trunkline.proxies.backends import PrincipalPool
from trunkline.proxies.proxy_server import ProxyServer
from trunkline.testing import serve_http


def make_front(behind: Server, pool: PrincipalPool) -> Server:
    """Return a server for the principals ann and bob that forwards to another one."""
    settings = Settings()
    target = BackendTarget(
        lambda: make_connector(behind, settings), settings, Observers([]), Implementation(name="front", version="1")
    )

    async def lifespan(_: Server) -> AsyncIterator[None]:
        proxy.open()
        await proxy.load()
        yield
        await proxy.close()

    proxy = ProxyServer(target, observers=[], pool=pool)
    tokens = StaticTokens({"ann-token": Principal("ann"), "bob-token": Principal("bob")})
    front = Server("front", auth=ResourceServer(tokens), lifespan=lifespan)
    front.mount(proxy.server)
    return front


async def test_principal_beyond_the_limit_is_refused_until_another_is_idle() -> None:
    behind, running, end = Server("behind"), asyncio.Event(), asyncio.Event()

    @behind.tool
    async def work(wait: bool) -> str:
        if wait:
            running.set()
            while not end.is_set():
                await asyncio.sleep(0.005)
        return "done"

    del work
    with serve_http(make_front(behind, PrincipalPool(max_principals=1))) as url:
        async with Client(url, auth="ann-token") as ann, Client(url, auth="bob-token") as bob:
            working = asyncio.create_task(ann.call_tool("work", {"wait": True}))
            async with asyncio.timeout(PATIENCE):
                while not running.is_set():
                    await asyncio.sleep(0.005)
            with pytest.raises(PeerError, match="too many users"):
                await bob.call_tool("work", {"wait": False}, timeout=2)
            end.set()
            assert (await working).data == "done"
            assert (await bob.call_tool("work", {"wait": False})).data == "done"


async def test_idle_connection_of_a_principal_is_closed() -> None:
    behind = Server("behind")

    @behind.tool
    async def work() -> str:
        return "done"

    del work
    with serve_http(make_front(behind, PrincipalPool(idle_seconds=0.05))) as url:
        async with Client(url, auth="ann-token") as ann:
            assert (await ann.call_tool("work")).data == "done"
            async with asyncio.timeout(PATIENCE):
                while len(behind.connections) > 1:  # that of the catalog stays
                    await asyncio.sleep(0.005)
            assert (await ann.call_tool("work")).data == "done"
