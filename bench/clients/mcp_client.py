"""The official client, measured: `mcp_client.py stdio|http|memory PYTHON RAW_SERVER`."""

import asyncio
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.clients.batches import obey
from bench.peers.handlers import echo as echo_tool
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer


async def main(line: str, python: str, *script: str) -> None:
    """Connect and run batches."""
    if line == "memory":
        target = MCPServer("bench")
        target.add_tool(echo_tool)
    elif line == "http":
        raw = subprocess.Popen([python, *script, "http"], stdout=subprocess.PIPE, text=True)
        target = f"http://127.0.0.1:{raw.stdout.readline().strip()}/mcp"
    else:
        target = StdioServerParameters(command=python, args=list(script))

    async with Client(target, mode="legacy") as client:

        async def echo(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).structured_content["result"]

        await obey(echo)
    if line == "http":
        raw.terminate()


asyncio.run(main(*sys.argv[1:]))
