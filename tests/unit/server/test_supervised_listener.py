"""The listeners of a server as children of its supervisor."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.limits import PATIENCE
from tests.unit.transports.test_accept import listening_at

from trunkline import Client, Server, Settings
from trunkline.facts import ChildChanged, Fact


class Changes:
    """The states of the listeners, as observers receive them."""

    immediate = True  # on the event loop

    def __init__(self) -> None:
        self.seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def on(self, fact: Fact) -> None:
        if isinstance(fact, ChildChanged):
            self.seen.put_nowait((fact.name, fact.state))

    async def until(self, name: str, state: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.seen.get() != (name, state):
                pass


async def health(url: str) -> dict[str, Any]:
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    body = (await asyncio.wait_for(reader.read(), PATIENCE)).partition(b"\r\n\r\n")[2]
    writer.close()
    return msgspec.json.decode(body)


@pytest.mark.row("U02")
async def test_dead_tcp_listener_leaves_http_alone_and_is_degraded_in_health_until_it_is_back() -> None:
    changes = Changes()
    settings = Settings(backoff_first=0.01, backoff_longest=0.05, restart_intensity=1000, health_details="all")
    server = Server("two listeners", observers=[changes], settings=settings)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    tcp, http = await server.listen("tcp://127.0.0.1:0"), await server.listen("http://127.0.0.1:0/mcp")
    port = int(tcp.address.rpartition(":")[2])
    name = f"server/tcp:{port}"
    assert (await health(http.address))["components"]["supervision"]["status"] == "healthy"
    with listening_at(("127.0.0.1", port)) as listening:
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.shutdown(socket.SHUT_RDWR)
            squatter.bind(("127.0.0.1", port))
            squatter.listen()
            await changes.until(name, "backoff")
            async with Client(http.address, observers=[]) as client:
                assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
            component = (await health(http.address))["components"]["supervision"]
            assert component["status"] == "degraded"
            assert component["reason"].startswith(f"{name} is backoff: TransportError: cannot listen on")
        await changes.until(name, "running")
    async with Client(tcp.address, observers=[]) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
    assert (await health(http.address))["components"]["supervision"]["status"] == "healthy"
    await server.aclose()


async def test_listener_that_its_owner_closes_is_not_restarted() -> None:
    changes = Changes()
    server = Server("closing", observers=[changes])
    first = await server.listen("tcp://127.0.0.1:0")
    name = f"server/tcp:{first.address.rpartition(':')[2]}"
    await changes.until(name, "running")
    await first.close()
    await changes.until(name, "ended")
    await server.aclose()


async def test_listeners_of_one_file_name_have_names_of_their_own(tmp_path: Path) -> None:
    changes = Changes()
    server = Server("names", observers=[changes])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        await server.listen(f"unix://{tmp_path / folder / 's'}")
    await changes.until("server/unix:s-2", "running")
    await server.aclose()
    assert os.listdir(tmp_path / "a") == os.listdir(tmp_path / "b") == []
