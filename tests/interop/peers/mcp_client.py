"""The official Python SDK as a client of the everything-server: fills in a matrix of what works between the two.

    python mcp_client.py [--wire FILE] REVISION SERVER-ARGV... < cells.json > matrix.json

Run by the peer's own Python. The cells come in as a JSON list, such as "tools/list to server" or "client sampling".
Out comes an object with an entry for every cell that has a probe: `{"ok": true}`, or `{"ok": false, "why": ...}`.
With --wire, every message that the first connection carried is kept in a file, one JSON object per line.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_connection import CAPABILITIES, PATIENCE, connected
from mcp_probes import PROBES, Peer, Probe, declared

Matrix = dict[str, dict[str, Any]]


async def tried(function: Probe, peer: Peer) -> dict[str, Any]:
    """The outcome of one probe."""
    peer.connection.faults.clear()
    try:
        with anyio.fail_after(PATIENCE):
            await function(peer)
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


async def fill(matrix: Matrix, cells: list[str], argv: list[str], revision: str, wire: Path | None) -> None:
    """Tries every cell that has a probe, over one connection."""
    async with connected(argv, revision, CAPABILITIES) as connection:
        peer = Peer(argv, revision, connection)
        for cell in cells:
            if cell in PROBES:
                matrix[cell] = await tried(PROBES[cell], peer)
        offered = connection.handshake.capabilities.model_dump(by_alias=True, exclude_none=True)
        for path in declared(offered):
            matrix.setdefault(f"server {path}", {"ok": False, "why": "declared, but not a cell of the matrix"})
    if wire:
        wire.write_text("".join(json.dumps(entry) + "\n" for entry in connection.wire))


def main() -> None:
    """Reads the cells, prints the matrix."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wire", type=Path)
    parser.add_argument("revision")
    parser.add_argument("server", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    cells: list[str] = json.load(sys.stdin)
    matrix: Matrix = {}
    try:
        anyio.run(fill, matrix, cells, options.server, options.revision, options.wire)
    except Exception as error:
        lost = {"ok": False, "why": f"the connection was lost: {reason(error)}"}
        matrix |= {cell: lost for cell in cells if cell in PROBES and cell not in matrix}
    print(json.dumps(matrix))


if __name__ == "__main__":
    main()
