"""The servers of the OpenAI Agents SDK, without a model."""

import asyncio

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found


async def main() -> None:
    server = (
        MCPServerStreamableHttp({"url": URL, "timeout": PATIENCE}, client_session_timeout_seconds=PATIENCE)
        if URL
        else MCPServerStdio({"command": COMMAND, "args": ARGUMENTS}, client_session_timeout_seconds=PATIENCE)
    )
    async with server:
        tools = await server.list_tools()
        called = await server.call_tool("add", ADDENDS)
        read = await server.read_resource(STATIC)
        prompt = await server.get_prompt("greet", ADA)
        found(
            [tool.name for tool in tools],
            called.content[0].text,
            resource=read.contents[0].text,
            prompt=prompt.messages[0].content.text,
        )


asyncio.run(main())
