"""Servers on the event loop of a program."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Server
from trunkline.errors import MisuseError, TransportError

STDIO = """
import asyncio

from trunkline import Server

server = Server("embedded")


@server.tool
async def ticks() -> int:
    print("stray output")
    return count


async def tick() -> None:
    global count
    while True:
        count += 1
        await asyncio.sleep(0)


async def main() -> None:
    ticking = asyncio.create_task(tick())
    await server.run_stdio_async()
    ticking.cancel()
    with open("ended", "w") as file:
        file.write("yes")


count = 0
asyncio.run(main())
"""


async def test_stdio_shares_the_loop_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(STDIO, "utf-8")
    monkeypatch.chdir(tmp_path)
    async with Client([sys.executable, str(tmp_path / "program.py")]) as client:
        assert (await client.call_tool("ticks")).data > 0
    assert (tmp_path / "ended").read_text("utf-8") == "yes"


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def server(events: list[str]) -> Server:
    async def lifespan(server: Server) -> AsyncIterator[None]:
        events.append("opened")
        yield
        events.append("closed")

    server = Server("embedded", lifespan=lifespan)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


async def test_http_serves_until_cancelled(server: Server, events: list[str]) -> None:
    handler = asyncio.get_running_loop().get_exception_handler()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(server.run_http_async(port=0, on_listening=listening.set_result))
    url = await asyncio.wait_for(listening, PATIENCE)
    async with Client(url) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
    assert asyncio.get_running_loop().get_exception_handler() is handler
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, PATIENCE)
    assert events == ["opened", "closed"]
    with pytest.raises(TransportError):
        await Client(url).open()


async def test_shutdown_ends_serving(server: Server, events: list[str]) -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(server.run_http_async(port=0, on_listening=listening.set_result))
    await asyncio.wait_for(listening, PATIENCE)
    await server.shutdown()
    await asyncio.wait_for(serving, PATIENCE)
    assert events == ["opened", "closed"]


async def test_crash_reaches_the_program(server: Server) -> None:
    urls: list[str] = []

    def crash(url: str) -> None:
        urls.append(url)
        server.abort(OSError("broken"))

    with pytest.raises(OSError, match="broken"):
        await asyncio.wait_for(server.run_http_async(port=0, on_listening=crash), PATIENCE)
    with pytest.raises(TransportError):  # the port is free
        await Client(urls[0]).open()


async def test_invalid_options_are_refused(server: Server) -> None:
    with pytest.raises(MisuseError, match="port= is a whole number"):
        await server.run_http_async(port=-1)
