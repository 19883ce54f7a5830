"""The session of the official Python SDK, versions 1.x, over stdio, HTTP+SSE and, where it has that, Streamable HTTP.

If BRIDGE is set, it is a command that is given an address, and speaks stdio for the server there.
"""

import asyncio
import os
import shlex
from contextlib import asynccontextmanager
from datetime import timedelta

from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found
from mcp import ClientSession, StdioServerParameters
from pydantic import AnyUrl

BRIDGE = shlex.split(os.environ.get("BRIDGE", ""))


@asynccontextmanager
async def streams():
    """The streams of a session."""
    command, *arguments = [*BRIDGE, COMMAND, *ARGUMENTS]
    if URL is None or BRIDGE:
        from mcp.client.stdio import stdio_client

        opened = stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ)))
    elif URL.endswith("/sse"):
        from mcp.client.sse import sse_client

        opened = sse_client(URL, timeout=PATIENCE)
    else:
        from mcp.client.streamable_http import streamablehttp_client

        opened = streamablehttp_client(URL, timeout=timedelta(seconds=PATIENCE))
    async with opened as (reading, writing, *_):
        yield reading, writing


async def main() -> None:
    async with streams() as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        listed = await session.list_tools()
        called = await session.call_tool("add", ADDENDS)
        read = await session.read_resource(AnyUrl(STATIC))
        prompt = await session.get_prompt("greet", ADA)
        found(
            [tool.name for tool in listed.tools],
            called.content[0].text,
            resource=read.contents[0].text,
            prompt=prompt.messages[0].content.text,
        )


asyncio.run(main())
