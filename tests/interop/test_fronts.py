"""The official SDKs at both ends of a proxy and of a gateway: every method and capability, in every pair of eras.

A server of an official SDK is behind, over HTTP, and clients of the official SDKs are in front. The cells and probes are
those of the matrix of clients (`test_mcp_client.py`).
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.interop.matrix import MODERN, Cells, cells, shown
from tests.interop.server_processes import served
from tests.interop.test_client import PEERS as SERVERS
from tests.interop.test_client import Peer as ServerPeer
from tests.interop.test_mcp_client import PEERS as CLIENTS
from tests.interop.test_mcp_client import Peer as ClientPeer
from tests.limits import PATIENCE

from trunkline.protocol.revisions import HANDSHAKE, Revision

FRONT: Final = [sys.executable, str(Path(__file__).parent / "front.py")]
KINDS: Final = ("proxy", "gateway")
NEWEST: Final = max(HANDSHAKE)
TRIED: Final = (min(HANDSHAKE), NEWEST, MODERN)  # by clients; the matrix of clients has all revisions

ONE_HOP: Final = "a ping is for one hop: the proxy answers it"
NO_REQUESTS: Final = "a server of the modern era sends no requests, so nothing of a request can pass"
NO_ROOTS: Final = "the modern era has no changes of roots"
ASKS_ALL: Final = "the server asks clients that have declared nothing, and a result of the modern era passes unchanged"
OWN_TASKS: Final = "not a cell of the matrix: the gateway can run any call as a task, and declares so"
UNPROVIDED: Final = "not a cell of the matrix: the SDK declares it to all clients, as an empty object"

OLD_TO_MODERN: Final = {
    "notifications/initialized to server": NO_REQUESTS,  # its probe is a ping
    "ping to client": NO_REQUESTS,
    "notifications/cancelled to client": NO_REQUESTS,
    "notifications/progress to server": NO_REQUESTS,
    "notifications/elicitation/complete to client": "the modern era does not have it",
    "notifications/roots/list_changed to server": NO_ROOTS,
    "client roots.listChanged": NO_ROOTS,
}
SILENT: Final = {*OLD_TO_MODERN} & {
    "notifications/elicitation/complete to client",
    "notifications/roots/list_changed to server",
}  # their probes would wait in vain
TASKS: Final[Mapping[Revision, tuple[str, ...]]] = {
    NEWEST: ("server tasks.cancel", "server tasks.list", "server tasks.requests.tools.call"),
    MODERN: ("server extensions.io.modelcontextprotocol/tasks",),
}
CARELESS: Final = dict.fromkeys(
    ("client sampling", "client roots", "client elicitation.form", "client elicitation.url"), ASKS_ALL
)


class Chain(NamedTuple):
    """A client of an official SDK in a revision, what is in front of the server, and the server."""

    kind: str
    client: ClientPeer
    revision: Revision
    server: ServerPeer
    behind: Revision  # the newest revision to speak with the server

    @property
    def name(self) -> str:
        """The name in the id of a test."""
        return f"{self.client.name} {self.revision}, {self.kind}, {self.server.name} {self.behind}"

    def limits(self) -> Mapping[str, str]:
        """Return the cells that cannot pass, with the reasons."""
        found: dict[str, str] = {}
        if self.revision is not MODERN and self.behind is MODERN:
            found |= OLD_TO_MODERN
        elif self.revision is not MODERN:
            found["ping to client"] = ONE_HOP
        elif self.behind is MODERN and self.server.name == "mcp-2":
            found |= CARELESS
        if self.kind == "proxy" and self.server.name == "mcp-1":
            found["server experimental"] = UNPROVIDED
        tasks = TASKS.get(self.revision, ())
        if self.kind == "gateway":
            found |= dict.fromkeys(tasks, OWN_TASKS)
        known = {*cells(self.revision), "server experimental", *tasks}
        return {cell: why for cell, why in found.items() if cell in known}


def make_chains() -> Iterable[Chain]:
    """Return all chains: each SDK in front in the revisions of either era, each behind in the eras that it speaks."""
    for kind in KINDS:
        for client in CLIENTS:
            for revision in TRIED:
                for server in SERVERS:
                    if revision <= client.newest:
                        yield Chain(kind, client, revision, server, max(server.spoken))
                        if kind == "proxy" and {NEWEST, MODERN} <= {*server.spoken}:
                            yield Chain(kind, client, revision, server, NEWEST)


CHAINS: Final = list(make_chains())


def find(kind: str, client: str, revision: Revision, server: str) -> Chain:
    """Return one of the chains."""
    found = (one for one in CHAINS if (one.kind, one.client.name, one.revision) == (kind, client, revision))
    return next(one for one in found if one.server.name == server)


FEW: Final = [
    (
        find("gateway", "typescript", NEWEST, "mcp-2"),
        [
            *("initialize to server", "ping to server", "notifications/cancelled to server"),
            *("notifications/progress to client", "tools/call to server", "resources/read to server"),
            *("resources/subscribe to server", "prompts/get to server", "completion/complete to server"),
            *("notifications/message to client", "elicitation/create to client", "client elicitation.url"),
        ],
    ),
    (
        find("gateway", "python", MODERN, "mcp-1"),
        [
            *("server/discover to server", "subscriptions/listen to server", "tools/list to server"),
            *("tools/call to server", "notifications/tools/list_changed to client", "resources/read to server"),
            *("notifications/resources/updated to client", "notifications/message to client"),
            *("sampling/createMessage to client", "elicitation/create to client", "roots/list to client"),
        ],
    ),
]
"""Some cells, in the two pairs of different eras."""


def run_chain(chain: Chain, chosen: Iterable[str]) -> Cells:
    """Return the outcomes of some cells, with new processes: the probes change the state of the server."""
    with served(chain.server.started_by("--http")) as server:
        target = [f"http://{server.place()}/mcp", *([chain.behind.value] if chain.kind == "proxy" else [])]
        with served([*FRONT, chain.kind, *target]) as front:
            run = {"revision": chain.revision.value, "server": [f"http://{front.place()}/mcp"], "cells": [*chosen]}
            ended = subprocess.run(
                chain.client.command,
                input=json.dumps([run]),
                stdout=subprocess.PIPE,
                text=True,
                timeout=6 * PATIENCE,
                check=True,
            )
            assert front.end() == 0, front.said
    [outcome] = json.loads(ended.stdout)
    return outcome["matrix"]


@pytest.mark.parametrize(("chain", "chosen"), FEW, ids=["old to modern", "modern to old"])
def test_some_cells_pass_between_official_peers(chain: Chain, chosen: list[str]) -> None:
    outcomes = run_chain(chain, chosen)
    assert {cell: outcomes[cell].get("why", "") for cell in chosen} == dict.fromkeys(chosen, "")


@pytest.mark.long
@pytest.mark.parametrize("chain", CHAINS, ids=shown)
def test_all_cells_pass_between_official_peers(chain: Chain) -> None:
    limits = chain.limits()
    tried = [cell for cell in cells(chain.revision) if cell not in SILENT & limits.keys()]
    outcomes = run_chain(chain, tried)
    assert {*tried} <= outcomes.keys()
    failed = {cell: outcome["why"] for cell, outcome in outcomes.items() if not outcome["ok"]}
    assert {cell: why for cell, why in failed.items() if cell not in limits} == {}
    assert limits.keys() - SILENT == failed.keys(), "a cell that passes has no limit"
