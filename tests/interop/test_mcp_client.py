"""The official SDKs against our server: every method and capability of every revision, cell by cell, over every
transport that both have.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.matrix import EMPTY, MODERN, Outcome, cells, sent, shown
from tests.interop.server_processes import served
from tests.limits import PATIENCE
from tests.official import NODE, NPM_FOLDER, ROOT, check
from tests.sharing import computed_once

from trunkline.protocol.revisions import HANDSHAKE, Revision

HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "everything.py")]
PATHS = {"http": "http://{}/mcp", "sse": "http://{}/sse", "websocket": "ws://{}/mcp"}
ENDS = (min(HANDSHAKE), max(HANDSHAKE))


class Peer(NamedTuple):
    """An official SDK, and the command of its client; all clients share one interface."""

    name: str
    command: list[Path]
    ready: Path  # made by `make` when the SDK is installed
    lines: tuple[str, ...] = ("stdio", "http", "sse")
    newest: Revision = max(HANDSHAKE)  # that it speaks

    def revisions(self, line: str) -> list[Revision]:
        """The revisions of a transport."""
        return [revision for revision in REVISIONS[line] if revision <= self.newest]


SCRIPT = HERE / "peers/mcp_client.py"
PEERS = (
    Peer("python", [ROOT / ".peers/mcp/bin/python", SCRIPT], ROOT / ".peers/mcp/.ready", newest=MODERN),
    Peer("python-1", [ROOT / ".peers/mcp-1/bin/python", SCRIPT], ROOT / ".peers/mcp-1/.ready"),
    Peer(
        "typescript",
        [NODE, HERE / "peers/ts_client.mjs", NPM_FOLDER],
        NPM_FOLDER / ".ready",
        ("stdio", "http", "sse", "websocket"),
        MODERN,  # by version 2.x
    ),
)
REVISIONS = {"stdio": (*HANDSHAKE, MODERN), "http": (*HANDSHAKE, MODERN), "sse": ENDS, "websocket": ENDS}
RUNS = [(peer, line, revision) for peer in PEERS for line in peer.lines for revision in peer.revisions(line)]
CELLS = [(*run, cell) for run in RUNS for cell in cells(run[-1])]


@pytest.fixture
def used(peer: Peer, line: str, revision: Revision, shared_folder: Path) -> Outcome:
    """The outcomes of an official SDK with our server over a transport in a revision."""
    outcomes = computed_once(shared_folder, f"client-{peer.name}-{line}", lambda: run_peer(peer, line))
    return Outcome(**outcomes[revision.value])


def run_peer(peer: Peer, line: str) -> dict[str, Any]:
    """Run every cell in every revision with an official SDK, each with a new server."""
    assert peer.ready.exists(), f"the official SDK is missing: `make {peer.ready.relative_to(ROOT)}` installs it"
    revisions = [revision.value for revision in peer.revisions(line)]
    with ExitStack() as stack:
        servers = [] if line == "stdio" else [stack.enter_context(served([*SERVER, "http"])) for _ in revisions]
        reached_by = [[PATHS[line].format(server.place())] for server in servers] or [SERVER] * len(revisions)
        runs = [
            {"revision": revision, "server": server, "cells": list(cells(Revision(revision)))}
            for revision, server in zip(revisions, reached_by, strict=True)
        ]
        asked = json.dumps(runs)
        ended = subprocess.run(
            peer.command, input=asked, stdout=subprocess.PIPE, text=True, timeout=4 * PATIENCE, check=True
        )
        for server in servers:
            assert server.end() == 0, server.said
    return dict(zip(revisions, json.loads(ended.stdout), strict=True))


@pytest.mark.row("W21")
@pytest.mark.parametrize(("peer", "line", "revision", "cell"), CELLS, ids=shown)
def test_official_client_can_use(peer: Peer, cell: str, used: Outcome) -> None:
    assert cell in used.matrix, f"the {peer.name} peer has no probe for {cell!r}"
    assert used.matrix[cell]["ok"], used.matrix[cell]["why"]


@pytest.mark.parametrize(("peer", "line", "revision"), RUNS, ids=shown)
def test_server_declares_nothing_without_a_cell(revision: Revision, used: Outcome) -> None:
    assert used.matrix.keys() - set(cells(revision)) == set()


@pytest.mark.parametrize(("peer", "line", "revision"), RUNS, ids=shown)
def test_modern_era_without_a_cell_never_passes(revision: Revision, used: Outcome) -> None:
    assert sent(used.wire) & EMPTY.keys() == (set() if revision is MODERN else EMPTY.keys())


@pytest.mark.parametrize(("peer", "line", "revision"), RUNS, ids=shown)
def test_server_messages_are_valid(revision: Revision, used: Outcome) -> None:
    assert used.wire, "the connection never came about, or broke off"
    asked: dict[Any, str] = {}
    for entry in used.wire:
        message = entry["message"]
        if entry["sender"] == "server":
            check(message, revision=revision.value, sender="server", answers=asked)
        elif "method" in message and "id" in message:
            asked[message["id"]] = message["method"]
