"""Our client against servers of the official SDKs: every method and capability, cell by cell, over every transport."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.client_capabilities import PROBES, sends_only_declared_methods
from tests.interop.client_probes import ProbeContext
from tests.interop.host import OTHER_ROOT, Host, Reports
from tests.interop.matrix import EMPTY, MODERN, Outcome, cells, declared, sent, shown
from tests.interop.recording import check_client_messages
from tests.interop.server_processes import served
from tests.limits import PATIENCE
from tests.official import NODE, NPM_FOLDER, ROOT
from tests.sharing import computed_once

from trunkline.errors import OutcomeUnknown
from trunkline.protocol.revisions import HANDSHAKE, Revision
from trunkline.transports.channel import Connector
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.stdio.client import Command

SCRIPTS = Path(__file__).parent / "peers"
MESSAGE = "notifications/message"


class Peer(NamedTuple):
    """A version of an official SDK, and its server."""

    name: str
    home: Path  # its environment, made by `make`
    server: list[Path]  # how it is run
    spoken: tuple[Revision, ...]

    def started_by(self, *arguments: str) -> list[Path | str]:
        ready = self.home / ".ready"
        assert ready.exists(), f"the official SDK is missing: `make {ready.relative_to(ROOT)}` installs it"
        return [*self.server, *arguments]

    def revisions(self, line: str) -> list[Revision]:
        """The revisions of a transport."""
        return [revision for revision in REVISIONS[line] if revision in self.spoken]

    def command(self) -> Command:
        return Command(self.started_by())

    @asynccontextmanager
    async def reached_by(self, line: str, *arguments: str) -> AsyncIterator[Connector]:
        """The connector to the server: with a process for each connection, or to one that listens."""
        if line == "stdio":
            yield Command(self.started_by(*arguments))
            return
        with served(self.started_by(*arguments, "--http")) as server:
            yield HttpConnector(f"http://{await asyncio.to_thread(server.place)}/{PATHS[line]}")


MCP_2, MCP_1 = ROOT / ".peers/mcp", ROOT / ".peers/mcp-1"
PEERS = (
    Peer("mcp-2", MCP_2, [MCP_2 / "bin/python", SCRIPTS / "mcp_server.py"], (*HANDSHAKE, MODERN)),
    Peer("mcp-1", MCP_1, [MCP_1 / "bin/python", SCRIPTS / "mcp_1_server.py"], HANDSHAKE),
    Peer("typescript-2", NPM_FOLDER, [NODE, SCRIPTS / "ts_server.mjs", NPM_FOLDER], (MODERN,)),
)
PATHS = {"http": "mcp", "sse": "sse"}
ENDS = (min(HANDSHAKE), max(HANDSHAKE))
REVISIONS = {"stdio": (*HANDSHAKE, MODERN), "http": (*HANDSHAKE, MODERN), "sse": ENDS}
RUNS = [(peer, line, revision) for peer in PEERS for line in REVISIONS for revision in peer.revisions(line)]
CELLS = [(*run, cell) for run in RUNS for cell in cells(run[-1])]
LINES = [(peer, line) for peer in PEERS for line in REVISIONS if peer.revisions(line)]
SHAKING = [(peer, line) for peer, line in LINES if max(HANDSHAKE) in peer.revisions(line)]
KILLED = [(peer, revision) for peer in PEERS for revision in (max(HANDSHAKE), MODERN) if revision in peer.spoken]
SHAKEN = ("initialize", "notifications/initialized")

NOT_CELLS = {"experimental", "completions"}  # declared to every revision: as an empty object, and before it had a name


@pytest.fixture
def used(peer: Peer, line: str, revision: Revision, shared_folder: Path) -> Outcome:
    """The outcomes of our client with the server over a transport in a revision."""
    outcomes = computed_once(shared_folder, f"server-{peer.name}-{line}", lambda: asyncio.run(use_all(peer, line)))
    return Outcome(*outcomes[revision.value])


async def use_all(peer: Peer, line: str) -> dict[str, Outcome]:
    """Try one revision after the other."""
    async with peer.reached_by(line) as connector:
        return {revision.value: await use(connector, revision) for revision in peer.revisions(line)}


async def use(connector: Connector, revision: Revision) -> Outcome:
    """Try every cell that has a probe, all over one connection; those without a capability use another one."""
    async with AsyncExitStack() as stack:
        full = Host(connector, revision.value)
        others = {absent: Host(connector, revision.value, without=absent) for absent in absences(revision)}
        hosts = [full, *others.values()]
        for host in hosts:
            stack.push_async_callback(host.client.close)
        await asyncio.gather(*(host.client.open() for host in hosts))
        line = ProbeContext(revision.value, full, {path: host for absent, host in others.items() for path in absent})
        matrix = {cell: await tried(cell, line) for cell in cells(revision) if cell in PROBES}
        for path in set(declared(dict(full.client.capabilities))) - NOT_CELLS:
            matrix.setdefault(f"server {path}", {"ok": False, "why": "declared, but not a cell of the matrix"})
    return Outcome(matrix, [wire for host in hosts for wire in host.tap.wires])


def absences(revision: Revision) -> list[tuple[str, ...]]:
    """The capabilities that further clients lack, so that each is missing once."""
    if revision >= Revision.V2025_11_25:
        return [("sampling", "elicitation.form"), ("roots", "elicitation.url")]
    return [("sampling", "roots", "elicitation.form")]  # elicitation had no other form then


async def tried(cell: str, line: ProbeContext) -> dict[str, Any]:
    """The outcome of one probe."""
    try:
        async with asyncio.timeout(PATIENCE):
            await PROBES[cell](line)
    except (Exception, pytest.fail.Exception) as error:
        return {"ok": False, "why": f"{type(error).__name__}: {error}"}
    return {"ok": True}


@pytest.mark.parametrize(("peer", "line", "revision", "cell"), CELLS, ids=shown)
def test_client_can_use(cell: str, used: Outcome) -> None:
    assert cell in used.matrix, f"{cell!r} has no probe"
    assert used.matrix[cell]["ok"], used.matrix[cell]["why"]


@pytest.mark.parametrize(("peer", "line", "revision"), RUNS, ids=shown)
def test_server_declares_nothing_without_a_cell(revision: Revision, used: Outcome) -> None:
    assert used.matrix.keys() - set(cells(revision)) == set()


@pytest.mark.parametrize(("peer", "line", "revision"), RUNS, ids=shown)
def test_client_messages_are_valid(used: Outcome) -> None:
    assert used.wire, "the connection never came about, or broke off"
    for wire in used.wire:
        check_client_messages(wire)


@pytest.mark.parametrize(("peer", "line", "revision"), RUNS, ids=shown)
def test_modern_era_without_a_cell_never_passes(revision: Revision, used: Outcome) -> None:
    passed = {method for wire in used.wire for method in sent(wire)}
    assert passed & EMPTY.keys() == (set() if revision is MODERN else EMPTY.keys())


@pytest.mark.parametrize(("peer", "line"), SHAKING, ids=shown)
async def test_client_requests_nothing_undeclared(peer: Peer, line: str) -> None:
    bare, newest = peer.reached_by(line, "--bare"), max(HANDSHAKE).value
    async with bare as connector, Host(connector, newest, without=("roots",)) as host:
        await sends_only_declared_methods(host, *SHAKEN, "ping")


@pytest.mark.parametrize(("peer", "line"), LINES, ids=shown)
async def test_client_detects_the_era_and_requests_nothing_undeclared(peer: Peer, line: str) -> None:
    modern = MODERN in peer.revisions(line)
    async with peer.reached_by(line, "--bare") as connector, Host(connector, without=("roots",)) as host:
        assert host.client.revision == (MODERN if modern else max(HANDSHAKE))
        rest = ["server/discover"] if modern else [*SHAKEN, "ping"]
        await sends_only_declared_methods(host, "server/discover", *rest)


@pytest.mark.parametrize(("peer", "revision"), KILLED, ids=shown)
async def test_restarted_server_gets_the_state_of_the_last_one(peer: Peer, revision: Revision) -> None:
    """The client repeats read-only calls; it claims nothing about the others."""
    event = "hang cancelled" if revision is MODERN else "roots changed"
    async with asyncio.timeout(PATIENCE), Host(peer.command(), revision.value) as host:
        client = host.client
        assert client.revision == revision
        await client.subscribe("test://static")
        await client.set_log_level("error")
        await host.call("weigh", who="Ada")  # after which the client knows which tools are read-only
        pid, started = int(await host.call("pid")), Reports()
        reading = asyncio.create_task(client.call_tool("happened", {"event": event}))
        acting = asyncio.create_task(client.call_tool("hang", on_progress=started))
        await started.begun.wait()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OutcomeUnknown, match="SIGKILL"):
            await acting
        assert int(await host.call("pid")) != pid
        await (host.give_up() if revision is MODERN else client.set_roots([OTHER_ROOT]))
        assert ((await reading).text, client.losses) == (event, 1)
        with host.listening("notifications/resources/updated") as updates, host.listening(MESSAGE) as messages:
            await host.call("touch", uri="test://static")
            assert (await anext(updates)).params.uri == "test://static"
            await host.call("log", level="info", text="quiet")
            await host.nothing_heard(messages)
