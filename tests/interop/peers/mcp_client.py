"""The official Python SDK as a client of the everything-server: fills in matrices of what works between the two.

    python mcp_client.py < runs.json > outcomes.json

Run by the peer's own Python, with any version of the SDK. A run is `{"revision", "server", "cells"}`: the server is
a command, or an address over HTTP; cells have names such as "tools/list to server" or "client sampling". All runs
are concurrent. The outcome of each is `{"matrix", "wire"}`: the matrix has an entry for every cell with a probe,
`{"ok": true}` or `{"ok": false, "why": ...}`, and the wire has every message of its first connection.
"""

import json
import sys
from typing import Any

import anyio
from mcp_connection import PATIENCE, capabilities_in
from mcp_probes import PROBES, Peer, Probe, declared
from mcp_transports import connected

Run = dict[str, Any]
Outcome = dict[str, Any]


async def tried(function: Probe, peer: Peer) -> dict[str, Any]:
    """The outcome of one probe."""
    peer.connection.faults.clear()
    patience = getattr(function, "patience", PATIENCE)
    try:
        with anyio.fail_after(patience):
            await function(peer)
    except TimeoutError:
        return {"ok": False, "why": f"nothing came within {patience} s"}
    except Exception as error:
        return {"ok": False, "why": reason(error)}
    faults = [reason(fault) for fault in peer.connection.faults]
    return {"ok": False, "why": f"the SDK could not read: {faults}"} if faults else {"ok": True}


def reason(error: BaseException) -> str:
    """Why something failed, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"nothing came within {PATIENCE} s"
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


async def fill(run: Run, outcome: Outcome) -> None:
    """Try every cell that has a probe, over one connection."""
    matrix = outcome["matrix"]
    async with connected(run["server"], run["revision"], capabilities_in(run["revision"])) as connection:
        peer = Peer(run["server"], run["revision"], connection)
        for cell in run["cells"]:
            if cell in PROBES:
                matrix[cell] = await tried(PROBES[cell], peer)
        for path in declared(connection.handshake["capabilities"]):
            matrix.setdefault(f"server {path}", {"ok": False, "why": "declared, but not a cell of the matrix"})
    outcome["wire"] = connection.wire


async def follow(run: Run, outcome: Outcome) -> None:
    """One run; a lost connection is the outcome of all remaining cells."""
    try:
        await fill(run, outcome)
    except Exception as error:
        lost = {"ok": False, "why": f"the connection was lost: {reason(error)}"}
        for cell in run["cells"]:
            if cell in PROBES:
                outcome["matrix"].setdefault(cell, lost)


async def main() -> None:
    """Read the runs, print their outcomes."""
    runs: list[Run] = json.load(sys.stdin)
    outcomes: list[Outcome] = [{"matrix": {}, "wire": []} for _ in runs]
    async with anyio.create_task_group() as group:
        for run, outcome in zip(runs, outcomes, strict=True):
            group.start_soon(follow, run, outcome)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    anyio.run(main)
