"""The client of mcp-use, without an agent."""

import asyncio

from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found
from mcp_use import MCPClient


async def main() -> None:
    server = {"url": URL, "timeout": PATIENCE} if URL else {"command": COMMAND, "args": ARGUMENTS}
    client = MCPClient({"mcpServers": {"peer": server}})
    session = await client.create_session("peer")
    tools = await session.list_tools()
    called = await session.call_tool("add", ADDENDS)
    read = await session.read_resource(STATIC)
    prompt = await session.get_prompt("greet", ADA)
    found(
        [tool.name for tool in tools],
        called.content[0].text,
        resource=read.contents[0].text,
        prompt=prompt.messages[0].content.text,
    )
    await client.close_all_sessions()


asyncio.run(main())
