"""Our client, measured: `trunkline_client.py stdio|tcp|http|memory PYTHON RAW_SERVER`."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.clients.batches import obey
from bench.peers.handlers import echo as echo_tool

import trunkline
from trunkline import Client, Server


async def main(line: str, *server: str) -> None:
    """Connect and run batches."""
    if line == "memory":
        target = Server("bench")
        target.add_tool(echo_tool)
    elif line == "tcp":
        raw = subprocess.Popen([*server, "tcp"], stdout=subprocess.PIPE, text=True)
        target = f"tcp://127.0.0.1:{raw.stdout.readline().strip()}"
    elif line == "http":
        raw = subprocess.Popen([*server, "http"], stdout=subprocess.PIPE, text=True)
        target = f"http://127.0.0.1:{raw.stdout.readline().strip()}/mcp"
    else:
        target = list(server)

    async with Client(target) as client:

        async def echo(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).data

        await obey(echo)
    if line == "http":
        raw.terminate()


trunkline.run(main(*sys.argv[1:]))
