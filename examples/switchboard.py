"""A server of four processes that serve as one: kill any of them, and its sessions continue in another.

python examples/switchboard.py
"""

import os
import sys

from trunkline import Context, Server, ToolAnnotations

server = Server("switchboard")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def who(ctx: Context) -> int:
    """The pid of the process that answers."""
    await ctx.info("somebody asks who is there")
    return os.getpid()


if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, workers=4)
