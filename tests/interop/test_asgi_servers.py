"""Processes of third-party ASGI servers that share one file are one server: each request may reach any of them."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.forwarder import forwarded
from tests.interop.server_processes import served
from tests.processes import PATIENCE

from trunkline import Client

PROCESSES = "2"
COMMANDS = {
    "uvicorn": ["uvicorn", "--workers", PROCESSES, "--port", "0"],
    "hypercorn": ["hypercorn", "--workers", PROCESSES, "--bind", "127.0.0.1:0"],
    "granian": ["granian", "--interface", "asgi", "--workers", PROCESSES, "--port", "0"],
}
UPDATED = "notifications/resources/updated"


@pytest.fixture(params=COMMANDS)
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The port of our app under another server, which shuts down gracefully."""
    environment = {"STORE": str(tmp_path / "store"), "PYTHONPATH": str(Path(__file__).parent)}
    with served([sys.executable, "-m", *COMMANDS[request.param], "asgi_app:app"], environment) as server:
        port = int(server.place().rpartition(":")[2])
        asyncio.run(wait_for_all_processes(port))
        yield port
        assert server.end() == 0, server.said


async def wait_for_all_processes(port: int) -> None:
    """Wait until each process has answered: granian's workers ignore a SIGTERM that arrives before they have started."""
    answering: set[int] = set()
    async with asyncio.timeout(PATIENCE), forwarded(port) as front, Client(f"http://127.0.0.1:{front.port}/") as client:
        while len(answering) < int(PROCESSES):
            answering.add((await client.call_tool("served_by")).data)


async def accept(_: Any) -> dict[str, Any]:
    return {"sure": True}


@pytest.mark.row("PROMISE-4")
async def test_processes_of_foreign_asgi_server_act_as_one(port: int) -> None:
    async with asyncio.timeout(PATIENCE), forwarded(port) as front, AsyncExitStack() as stack:
        url = f"http://127.0.0.1:{front.port}/"
        revisions = ("2025-11-25", "2026-07-28")
        clients = [Client(url, revision=revision, elicitation=accept) for revision in revisions]
        session, _ = [await stack.enter_async_context(client) for client in clients]
        assert len({(await session.call_tool("served_by")).data for _ in range(8)}) == 1  # the owner
        for client in clients:
            assert [(await client.call_tool("ask")).data for _ in range(4)] == ["accept"] * 4
        news = [client.notifications(UPDATED) for client in clients]
        for client in clients:
            await client.subscribe("library://shelf")
        for client in clients:
            await client.call_tool("touch")
            assert [(await anext(reader)).params.uri for reader in news] == ["library://shelf"] * 2


@pytest.mark.row("W05")
async def test_websocket_works_under_foreign_asgi_server(port: int) -> None:
    async with asyncio.timeout(PATIENCE), Client(f"ws://127.0.0.1:{port}/", elicitation=accept) as client:
        assert (await client.call_tool("ask")).data == "accept"
        news = client.notifications(UPDATED)
        await client.subscribe("library://shelf")
        await client.call_tool("touch")
        assert (await anext(news)).params.uri == "library://shelf"
