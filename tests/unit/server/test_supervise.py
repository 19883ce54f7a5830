"""Children, hangups, health checks and list metadata that the owner of a server adds."""

import asyncio
import os
import signal

import pytest
from tests.limits import PATIENCE
from tests.processes import StdioPeer, eventually

from trunkline import Client, Server, Settings

HANGUP = """
import os

from trunkline import Server

server = Server("it")
hangups = []


@server.on_hangup
async def reload() -> None:
    hangups.append(1)
    server.add_tool(lambda: "new", name=f"tool_{len(hangups)}")


@server.tool
def fixed() -> None: ...


server.run()
"""


async def test_supervised_child_is_restarted_until_it_is_removed() -> None:
    server, runs, stopped = Server("it", settings=Settings(backoff_first=0.01)), list[int](), asyncio.Event()

    async def work() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise ConnectionError("lost")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await server.start()
    server.supervise("worker", work)
    async with asyncio.timeout(PATIENCE):
        while len(runs) < 2:
            await asyncio.sleep(0)
    await server.unsupervise("worker")
    assert stopped.is_set()
    await server.unsupervise("worker")
    await server.aclose()
    assert runs == [0, 1]


async def test_shutdown_stops_a_supervised_child() -> None:
    server, running, stopped = Server("it"), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await server.start()
    server.supervise("worker", work)
    await asyncio.wait_for(running.wait(), PATIENCE)
    await server.aclose()
    assert stopped.is_set()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_hangup_calls_the_functions_for_it_and_the_server_goes_on() -> None:
    with StdioPeer(HANGUP) as peer:
        peer.initialize()
        for number in (1, 2):
            os.kill(peer.process.pid, signal.SIGHUP)
            eventually(lambda number=number: len(peer.result("tools/list")["tools"]) == number + 1)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_lists_have_the_metadata_of_the_catalog(revision: str) -> None:
    server = Server("it", prompts=True, resources=True)
    server.add_tool(lambda: None, name="one")
    async with Client(server, revision=revision) as client:
        for value in (1, 2):
            server.catalog.list_meta = {"acme/state": value}
            lists = [
                await client.list_tools(),
                await client.list_prompts(),
                await client.list_resources(),
                await client.list_resource_templates(),
            ]
            assert [(one.meta or {}).get("acme/state") for one in lists] == [value] * 4


async def test_removed_health_check_is_not_reported() -> None:
    server = Server("it")
    server.health("database")(lambda: True)
    assert "database" in (await server.check_health()).components
    server.remove_health("database")
    server.remove_health("database")
    assert "database" not in (await server.check_health()).components
    await server.aclose()
