"""The toolset of Pydantic AI, without a model."""

import asyncio

from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found
from fastmcp.client.transports import StdioTransport
from pydantic_ai.mcp import MCPToolset


async def main() -> None:
    server = URL or StdioTransport(COMMAND, ARGUMENTS)
    async with MCPToolset(server, init_timeout=PATIENCE, read_timeout=PATIENCE) as toolset:
        tools = await toolset.list_tools()
        called = await toolset.direct_call_tool("add", ADDENDS)
        read = await toolset.read_resource(STATIC)
        prompt = await toolset.get_prompt("greet", ADA)
        found([tool.name for tool in tools], called, resource=read, prompt=prompt.messages[0].content.content)


asyncio.run(main())
