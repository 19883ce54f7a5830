"""Our client against servers of the official Python SDK: every method and capability, cell by cell."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.client_probes import PROBES, Line, asks_nothing_that_is_not_offered
from tests.interop.host import OTHER_ROOT, PATIENCE, Host, Reports
from tests.interop.matrix import Outcome, cells, declared, outcome, shown
from tests.interop.tapped import judge
from tests.official import ROOT

from trunkline.errors import OutcomeUnknown
from trunkline.protocol.revisions import HANDSHAKE, Revision
from trunkline.transports.process import Command

SCRIPTS = Path(__file__).parent / "peers"
MESSAGE = "notifications/message"


class Peer(NamedTuple):
    """A version of the official SDK, and its server."""

    name: str
    home: Path  # its environment, made by `make`
    script: Path

    def command(self, *arguments: str) -> Command:
        ready = self.home / ".ready"
        assert ready.exists(), f"the official SDK is missing: `make {ready.relative_to(ROOT)}` installs it"
        return Command([self.home / "bin/python", self.script, *arguments])


PEERS = (
    Peer("mcp-2", ROOT / ".peers/mcp", SCRIPTS / "mcp_server.py"),
    Peer("mcp-1", ROOT / ".peers/mcp-1", SCRIPTS / "mcp_1_server.py"),
)
RUNS = [(peer, revision) for peer in PEERS for revision in HANDSHAKE]
CELLS = [(peer, revision, cell) for peer, revision in RUNS for cell in cells(revision)]

NOT_CELLS = {"experimental", "completions"}  # declared to every revision: as an empty object, and before it had a name


@pytest.fixture
def used(peer: Peer, revision: Revision, shared_folder: Path) -> Outcome:
    """What our client has made of the server in a revision."""
    name = f"server-{peer.name}-{revision.value}"
    return outcome(shared_folder, name, lambda: asyncio.run(use(peer, revision)))


async def use(peer: Peer, revision: Revision) -> Outcome:
    """Tries every cell that has a probe, all over one connection; those without a capability have their own."""
    full = Host(peer.command(), revision.value)
    others = {absent: Host(peer.command(), revision.value, without=absent) for absent in absences(revision)}
    hosts = [full, *others.values()]
    async with AsyncExitStack() as stack:
        for host in hosts:
            stack.push_async_callback(host.client.close)
        await asyncio.gather(*(host.client.open() for host in hosts))
        line = Line(revision.value, full, {path: host for absent, host in others.items() for path in absent})
        matrix = {cell: await tried(cell, line) for cell in cells(revision) if cell in PROBES}
        for path in set(declared(dict(full.client.capabilities))) - NOT_CELLS:
            matrix.setdefault(f"server {path}", {"ok": False, "why": "declared, but not a cell of the matrix"})
    return Outcome(matrix, [wire for host in hosts for wire in host.tap.wires])


def absences(revision: Revision) -> list[tuple[str, ...]]:
    """What further clients do without, so that each capability is missing once."""
    if revision >= Revision.V2025_11_25:
        return [("sampling", "elicitation.form"), ("roots", "elicitation.url")]
    return [("sampling", "roots", "elicitation.form")]  # which is all that elicitation was then


async def tried(cell: str, line: Line) -> dict[str, Any]:
    """The outcome of one probe."""
    try:
        async with asyncio.timeout(PATIENCE):
            await PROBES[cell](line)
    except (Exception, pytest.fail.Exception) as error:
        return {"ok": False, "why": f"{type(error).__name__}: {error}"}
    return {"ok": True}


@pytest.mark.parametrize(("peer", "revision", "cell"), CELLS, ids=shown)
def test_the_client_can_use(cell: str, used: Outcome) -> None:
    assert cell in used.matrix, f"{cell!r} has no probe"
    assert used.matrix[cell]["ok"], used.matrix[cell]["why"]


@pytest.mark.parametrize(("peer", "revision"), RUNS, ids=shown)
def test_the_server_declares_nothing_without_a_cell(revision: Revision, used: Outcome) -> None:
    assert used.matrix.keys() - set(cells(revision)) == set()


@pytest.mark.parametrize(("peer", "revision"), RUNS, ids=shown)
def test_all_that_the_client_sent_is_valid(used: Outcome) -> None:
    assert used.wire, "the connection never came about, or broke off"
    for wire in used.wire:
        judge(wire)


@pytest.mark.parametrize("peer", PEERS, ids=shown)
async def test_the_client_asks_nothing_that_is_not_offered(peer: Peer) -> None:
    async with asyncio.timeout(PATIENCE), Host(peer.command("--bare"), without=("roots",)) as host:
        await asks_nothing_that_is_not_offered(host)


@pytest.mark.parametrize("peer", PEERS, ids=shown)
async def test_a_server_that_is_killed_is_started_again_and_told_what_the_last_one_knew(peer: Peer) -> None:
    """What only reads is asked again; of what may have been done, nothing is claimed."""
    async with asyncio.timeout(PATIENCE), Host(peer.command()) as host:
        client = host.client
        await client.subscribe("test://static")
        await client.set_log_level("error")
        await host.call("weigh", who="Ada")  # after which it is known which tools only read
        pid, started = int(await host.call("pid")), Reports()
        reading = asyncio.create_task(client.call_tool("happened", {"event": "roots changed"}))
        acting = asyncio.create_task(client.call_tool("hang", on_progress=started))
        await started.begun.wait()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OutcomeUnknown, match="SIGKILL"):
            await acting
        assert int(await host.call("pid")) != pid
        await client.set_roots([OTHER_ROOT])
        assert ((await reading).text, client.losses) == ("roots changed", 1)
        with host.listening("notifications/resources/updated") as updates, host.listening(MESSAGE) as messages:
            await host.call("touch", uri="test://static")
            assert (await anext(updates)).params.uri == "test://static"
            await host.call("log", level="info", said="quiet")
            await host.nothing_heard(messages)
