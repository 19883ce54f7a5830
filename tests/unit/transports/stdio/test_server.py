"""The server's side of standard input and output, over pipes of this process."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.connections import turns
from tests.limits import PATIENCE

from trunkline import Server, Settings
from trunkline.transports.stdio import server as stdio_server
from trunkline.transports.stdio.server import serve_stdio

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


class Served:
    """A server on two pipes of this process."""

    def __init__(self, server: Server | None = None) -> None:
        self.server = server or Server("t")
        self.input, self.ours = os.pipe()
        self.theirs, self.output = os.pipe()

    def start(self) -> "asyncio.Task[str]":
        return asyncio.ensure_future(serve_stdio(self.server.connect, self.server.settings, self.input, self.output))

    async def answer(self) -> bytes:
        return await asyncio.to_thread(os.read, self.theirs, 1 << 16)

    def close(self) -> None:
        for descriptor in (self.input, self.ours, self.theirs, self.output):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.mark.row("STD-07", "W02")
async def test_serve_stdio_answers_and_ends_at_eof(served: Served) -> None:
    serving = served.start()
    await turns(1)
    os.write(served.ours, PING)
    assert await served.answer() == PONG
    os.close(served.ours)
    assert await asyncio.wait_for(serving, PATIENCE) == "end of input"
    await served.server.aclose()


async def test_serve_stdio_ends_when_output_breaks(served: Served) -> None:
    serving = served.start()
    await turns()
    os.close(served.theirs)
    os.write(served.ours, PING)
    assert await asyncio.wait_for(serving, PATIENCE) == "end of input"  # there is no more reason to read
    assert served.server.connections == []
    await served.server.aclose()


@pytest.mark.row("N14")
async def test_serve_stdio_ends_when_the_peer_is_disconnected(served: Served) -> None:
    server = Server("t", settings=Settings(unsent_high=1000, unsent_limit=2000))
    served.server = server
    server.add_resource("r://big", "x" * (2 << 20))
    serving = served.start()
    await turns()
    params = b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}'
    os.write(served.ours, b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":%b}\n' % params)
    await served.answer()
    os.write(served.ours, b'{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"r://big"}}\n')
    await asyncio.wait_for(serving, PATIENCE)
    assert server.connections == []
    await server.aclose()


async def test_serve_stdio_works_on_another_thread(served: Served) -> None:
    ended: list[str] = []

    async def serve() -> None:
        ended.append(await served.start())
        await served.server.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    os.write(served.ours, PING)
    assert await served.answer() == PONG
    os.close(served.ours)
    await asyncio.to_thread(thread.join, 10)
    assert ended == ["end of input"]


async def test_dead_parent_is_noticed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([4711, 4711, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(stdio_server, "PARENT_CHECK", 0.001)
    assert await asyncio.wait_for(served.start(), PATIENCE) == "the parent process died"
    await served.server.aclose()


async def test_init_process_is_not_watched(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    serving = served.start()
    await turns()
    os.close(served.ours)
    assert await asyncio.wait_for(serving, PATIENCE) == "end of input"
    await served.server.aclose()


async def test_loop_without_polling_falls_back_to_threads(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    serving = served.start()
    os.write(served.ours, PING)
    await turns(1)
    answer = asyncio.ensure_future(served.answer())
    assert await asyncio.wait_for(answer, PATIENCE) == PONG
    os.close(served.ours)
    assert await asyncio.wait_for(serving, PATIENCE) == "end of input"
    await served.server.aclose()
