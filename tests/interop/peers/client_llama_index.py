"""The client of LlamaIndex, which connects anew for each request."""

import asyncio

from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, found
from llama_index.tools.mcp import BasicMCPClient


async def main() -> None:
    client = BasicMCPClient(COMMAND, ARGUMENTS, timeout=PATIENCE)
    listed = await client.list_tools()
    called = await client.call_tool("add", ADDENDS)
    read = await client.read_resource(STATIC)
    [message] = await client.get_prompt("greet", ADA)
    found(
        [tool.name for tool in listed.tools],
        called.content[0].text,
        resource=read.contents[0].text,
        prompt=message.content,
    )


asyncio.run(main())
