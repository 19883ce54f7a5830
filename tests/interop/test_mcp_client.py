"""The official SDKs against our server: every method and capability of every handshake revision, cell by cell.

The cells are read off our own method table, so a new row without a probe in each of the peers is a failing test.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.official import NODE, NPM_FOLDER, ROOT, check

from trunkline.protocol.methods import METHODS, Side
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


def cells(revision: Revision) -> Iterator[str]:
    """What has to work in a revision: its methods, as far as the server offers them, and the capabilities."""
    for row in METHODS:
        if row.exists(revision) and not (row.needs or "").startswith("tasks"):
            for side in (Side.SERVER, Side.CLIENT):
                if row.reaches(side):
                    yield f"{row.name} to {side.name.lower()}"
    yield "server tools.listChanged"
    yield "server resources.subscribe"
    yield "server resources.listChanged"
    yield "server prompts.listChanged"
    yield "server logging"
    if revision >= Revision.V2025_03_26:
        yield "server completions"
    yield "client sampling"
    yield "client roots.listChanged"
    if revision is Revision.V2025_06_18:
        yield "client elicitation"
    if revision >= Revision.V2025_11_25:  # which splits it in two
        yield "client elicitation.form"
        yield "client elicitation.url"


RUNS = [(peer, revision) for peer in PEERS for revision in HANDSHAKE]
CELLS = [(peer, revision, cell) for peer, revision in RUNS for cell in cells(revision)]


class Outcome(NamedTuple):
    """What a run of the peer left behind."""

    matrix: dict[str, dict[str, Any]]
    wire: list[dict[str, Any]]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def outcome(peer: Peer, revision: Revision, shared_folder: Path) -> Outcome:
    """The peer's run in a revision: made by the first worker that needs it, read by all the others."""
    matrix, wire = (shared_folder / f"{peer.name}-{revision.value}.{kind}" for kind in ("matrix", "wire"))
    with matrix.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not matrix.exists():
            matrix.write_text(run_peer(peer, revision, wire))
    lines = wire.read_text().splitlines() if wire.exists() else []
    return Outcome(json.loads(matrix.read_text()), [json.loads(line) for line in lines])


def run_peer(peer: Peer, revision: Revision, wire: Path) -> str:
    """Has an official SDK try every cell."""
    assert peer.ready.exists(), f"the official SDK is missing: `make {peer.ready.relative_to(ROOT)}` installs it"
    command = [*peer.command, "--wire", wire, revision.value, *SERVER]
    questions = json.dumps(list(cells(revision)))
    run = subprocess.run(command, input=questions, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
    return run.stdout


def name(value: Peer | Revision | str) -> str:
    match value:
        case Peer():
            return value.name
        case Revision():
            return value.value
        case _:
            return value


@pytest.mark.parametrize(("peer", "revision", "cell"), CELLS, ids=name)
def test_the_official_client_can_use(peer: Peer, cell: str, outcome: Outcome) -> None:
    assert cell in outcome.matrix, f"the {peer.name} peer has no probe for {cell!r}"
    assert outcome.matrix[cell]["ok"], outcome.matrix[cell]["why"]


@pytest.mark.parametrize(("peer", "revision"), RUNS, ids=name)
def test_the_server_declares_nothing_without_a_cell(revision: Revision, outcome: Outcome) -> None:
    assert outcome.matrix.keys() - set(cells(revision)) == set()


@pytest.mark.parametrize(("peer", "revision"), RUNS, ids=name)
def test_all_that_the_server_sent_is_valid(revision: Revision, outcome: Outcome) -> None:
    assert outcome.wire, "the connection never came about, or broke off"
    asked: dict[Any, str] = {}
    for entry in outcome.wire:
        message = entry["message"]
        if entry["sender"] == "server":
            check(message, revision=revision.value, sender="server", answers=asked)
        elif "method" in message and "id" in message:
            asked[message["id"]] = message["method"]
