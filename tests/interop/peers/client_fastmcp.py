"""The client of fastmcp, versions 2 to 4."""

import asyncio

from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found
from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main() -> None:
    async with Client(URL or StdioTransport(COMMAND, ARGUMENTS), init_timeout=PATIENCE) as client:
        tools = await client.list_tools()
        called = await client.call_tool("add", ADDENDS)
        [read] = await client.read_resource(STATIC)
        prompt = await client.get_prompt("greet", ADA)
        found(
            [tool.name for tool in tools],
            called.content[0].text,
            resource=read.text,
            prompt=prompt.messages[0].content.text,
        )


asyncio.run(main())
