"""langchain-mcp-adapters: tools, resources and prompts of LangChain."""

import asyncio

from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found
from langchain_mcp_adapters.client import MultiServerMCPClient

STDIO = {"transport": "stdio", "command": COMMAND, "args": ARGUMENTS}
HTTP = {"transport": "streamable_http", "url": URL, "timeout": PATIENCE}


async def main() -> None:
    client = MultiServerMCPClient({"peer": HTTP if URL else STDIO})
    tools = {tool.name: tool for tool in await client.get_tools()}
    called = await tools["add"].ainvoke(ADDENDS)
    [read] = await client.get_resources("peer", uris=[STATIC])
    [message] = await client.get_prompt("peer", "greet", arguments=ADA)
    text = called if isinstance(called, str) else called[0]["text"]
    found(list(tools), text, resource=read.as_string(), prompt=message.content)


asyncio.run(main())
