"""The official SDKs against several processes that serve as one: workers, and processes on one Valkey.

Each request reaches the next process, and while all clients are connected the test kills one of them.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.chaos.forwarder import forwarded
from tests.contract.valkey import valkey
from tests.interop.matrix import Cells, cells, shown
from tests.interop.server_processes import ServerProcess, served
from tests.interop.test_mcp_client import PATHS, PEERS, SERVER, Peer
from tests.processes import children, eventually
from tests.sharing import computed_once

from trunkline import Client
from trunkline.protocol.revisions import HANDSHAKE, Revision

DEPLOYMENTS = ("workers", "valkey")
WORKERS, PROCESSES = 4, 3
ENVIRONMENT = {
    "TRUNKLINE_PROCESS_LEASE": "3",  # so that processes on Valkey soon detect that one of them is dead
    **{name: "" for name in os.environ if name.startswith("COV")},  # a killed process reports no coverage
}
READY_TIMEOUT = 100.0  # seconds until all clients have connected
PATIENCE = 2.5 * READY_TIMEOUT
KILLED = "a process is killed"
BEFORE = ("tools/list to server", "tools/call to server", "sampling/createMessage to client")
AFTER = (
    "resources/read to server",
    "prompts/get to server",
    "notifications/resources/updated to client",
    "notifications/message to client",
    "notifications/progress to client",
    "elicitation/create to client",
    "roots/list to client",
)
IN_STEP = ("typescript", "notifications/progress to client")  # its probe counts steps in the memory of one process
OLD_LINE = ("sse", min(HANDSHAKE))
OLD_LINES = ("python-1", "typescript")  # its clients: so few that some processes have none of its streams


@dataclass
class Deployment:
    """The processes of a server, and their common address."""

    name: str
    servers: list[ServerProcess]
    place: str

    @property
    def pids(self) -> set[int]:
        """The pids that answer."""
        all_of_them = {server.process.pid for server in self.servers}
        return set[int]().union(*map(children, all_of_them)) if self.name == "workers" else all_of_them

    def without(self, pid: int) -> bool:
        """Return whether a process has ended."""
        for server in self.servers:
            server.process.poll()  # which reaps it, if it has
        return not Path(f"/proc/{pid}").exists()

    async def kill_one(self, clients: list[dict[str, Any]]) -> None:
        """Kill the process with the most sessions, if it has no stream of HTTP+SSE, whose session ends with it. Then
        change a resource.
        """
        at = {
            line: [one["process"] for one in clients if one["line"] == PATHS[line].format(self.place)] for line in PATHS
        }
        held = Counter(process for process in at["http"] if process not in at["sse"])
        [(victim, _)] = held.most_common(1)
        assert victim in self.pids
        os.kill(victim, signal.SIGKILL)
        await asyncio.to_thread(
            eventually, lambda: self.without(victim)
        )  # a dying process may still accept connections
        async with Client(PATHS["http"].format(self.place)) as other:
            assert (await other.call_tool("touch", {"uri": "test://item/8"})).text == "touched"


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[Deployment]:
    commands = [[str(WORKERS)]] if name == "workers" else [[valkey().url]] * PROCESSES
    with ExitStack() as stack:
        servers = [stack.enter_context(served([*SERVER, "http", *last], ENVIRONMENT)) for last in commands]
        ports = [int((await asyncio.to_thread(server.place)).rpartition(":")[2]) for server in servers]
        async with forwarded(*ports) as front:
            yield Deployment(name, servers, f"127.0.0.1:{front.port}")


def lines(deployment: str, peer: Peer) -> list[tuple[str, Revision]]:
    """The transports and revisions of a peer at a deployment: at the second, the newest of each era."""
    spoken = peer.revisions("http")
    if deployment == "valkey":
        return [("http", revision) for revision in spoken if revision >= max(HANDSHAKE)]
    return [*(("http", revision) for revision in spoken), *([OLD_LINE] if peer.name in OLD_LINES else [])]


def tried(peer: Peer, revision: Revision) -> list[str]:
    """The cells of a peer; in between, the test kills a process."""
    there = {KILLED, *cells(revision)} - ({IN_STEP[1]} if peer.name == IN_STEP[0] else set())
    return [cell for cell in (*BEFORE, KILLED, *AFTER) if cell in there]


class Run(NamedTuple):
    """One client at one deployment, with transport and revision."""

    deployment: str
    peer: Peer
    line: str
    revision: Revision

    @property
    def cells(self) -> list[str]:
        return tried(self.peer, self.revision)


RUNS = [
    Run(deployment, peer, *line) for deployment in DEPLOYMENTS for peer in PEERS for line in lines(deployment, peer)
]


def called(run: Run) -> str:
    """The name of a run."""
    return "-".join(map(shown, run))


async def play(peer: Peer, deployments: list[Deployment], folder: Path) -> dict[str, Cells]:
    """Run a peer at all deployments over all of its transports concurrently; return the outcomes by the name of the
    run.
    """
    runs = [
        {"revision": revision.value, "server": [PATHS[line].format(deployment.place)], "cells": tried(peer, revision)}
        for deployment in deployments
        for line, revision in lines(deployment.name, peer)
    ]
    pipe = asyncio.subprocess.PIPE
    environment = {**os.environ, "MEANWHILE": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *peer.command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True
    )
    try:
        said, _ = await process.communicate(json.dumps(runs).encode())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a command may have started another in its place
    names = [called(run) for run in RUNS if run.peer is peer]
    return {name: outcome["matrix"] for name, outcome in zip(names, json.loads(said), strict=True)}


async def kill_one_of_each(deployments: list[Deployment], folder: Path) -> dict[str, Cells]:
    """Kill a process of each deployment once all clients wait for it; unless some never connect, as their cells report."""
    with suppress(TimeoutError):
        clients = await asyncio.wait_for(all_ready(folder), READY_TIMEOUT)
        await asyncio.gather(*(deployment.kill_one(clients) for deployment in deployments))
    (folder / "done").touch()
    return {}


async def all_ready(folder: Path) -> list[dict[str, Any]]:
    """The ready clients, and the processes that answer them."""
    while len(found := list(folder.glob("*.ready"))) < len(RUNS):
        await asyncio.sleep(0.02)
    return [json.loads(one.read_text()) for one in found]


async def played(folder: Path) -> dict[str, Cells]:
    """The outcomes of all clients at all deployments."""
    async with asyncio.timeout(PATIENCE), opened("workers") as workers, opened("valkey") as over_valkey:
        deployments = [workers, over_valkey]
        found = await asyncio.gather(
            *(play(peer, deployments, folder) for peer in PEERS), kill_one_of_each(deployments, folder)
        )
    return {name: matrix for outcomes in found for name, matrix in outcomes.items()}


@pytest.mark.row("PROMISE-4", "D08")
@pytest.mark.parametrize("run", RUNS, ids=called)
def test_official_clients_survive_a_killed_worker(run: Run, shared_folder: Path, tmp_path: Path) -> None:
    matrix = computed_once(shared_folder, "workers", lambda: asyncio.run(played(tmp_path)))[called(run)]
    assert {cell: matrix.get(cell) for cell in run.cells} == {cell: {"ok": True} for cell in run.cells}
