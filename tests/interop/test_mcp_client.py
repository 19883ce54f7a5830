"""The official SDKs against our server: every method and capability of every handshake revision, cell by cell."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.matrix import Outcome, cells, outcome, shown
from tests.official import NODE, NPM_FOLDER, ROOT, check

from trunkline.protocol.revisions import HANDSHAKE, Revision

HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "everything.py")]


class Peer(NamedTuple):
    """An official SDK, and how its client is run; every client takes and gives the same."""

    name: str
    command: list[Path]
    ready: Path  # made by `make` when the SDK is installed


PEERS = (
    Peer("python", [ROOT / ".peers/mcp/bin/python", HERE / "peers/mcp_client.py"], ROOT / ".peers/mcp/.ready"),
    Peer("typescript", [NODE, HERE / "peers/ts_client.mjs", NPM_FOLDER], NPM_FOLDER / ".ready"),
)
RUNS = [(peer, revision) for peer in PEERS for revision in HANDSHAKE]
CELLS = [(peer, revision, cell) for peer, revision in RUNS for cell in cells(revision)]


@pytest.fixture
def used(peer: Peer, revision: Revision, shared_folder: Path) -> Outcome:
    """What an official SDK has made of our server in a revision."""
    wire = shared_folder / f"client-{peer.name}-{revision.value}.wire"
    return outcome(shared_folder, f"client-{peer.name}-{revision.value}", lambda: run_peer(peer, revision, wire))


def run_peer(peer: Peer, revision: Revision, wire: Path) -> Outcome:
    """Has an official SDK try every cell."""
    assert peer.ready.exists(), f"the official SDK is missing: `make {peer.ready.relative_to(ROOT)}` installs it"
    command = [*peer.command, "--wire", wire, revision.value, *SERVER]
    questions = json.dumps(list(cells(revision)))
    run = subprocess.run(command, input=questions, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
    lines = wire.read_text().splitlines() if wire.exists() else []
    return Outcome(json.loads(run.stdout), [json.loads(line) for line in lines])


@pytest.mark.parametrize(("peer", "revision", "cell"), CELLS, ids=shown)
def test_the_official_client_can_use(peer: Peer, cell: str, used: Outcome) -> None:
    assert cell in used.matrix, f"the {peer.name} peer has no probe for {cell!r}"
    assert used.matrix[cell]["ok"], used.matrix[cell]["why"]


@pytest.mark.parametrize(("peer", "revision"), RUNS, ids=shown)
def test_the_server_declares_nothing_without_a_cell(revision: Revision, used: Outcome) -> None:
    assert used.matrix.keys() - set(cells(revision)) == set()


@pytest.mark.parametrize(("peer", "revision"), RUNS, ids=shown)
def test_all_that_the_server_sent_is_valid(revision: Revision, used: Outcome) -> None:
    assert used.wire, "the connection never came about, or broke off"
    asked: dict[Any, str] = {}
    for entry in used.wire:
        message = entry["message"]
        if entry["sender"] == "server":
            check(message, revision=revision.value, sender="server", answers=asked)
        elif "method" in message and "id" in message:
            asked[message["id"]] = message["method"]
