"""The workbench of AutoGen, without a model."""

import asyncio

from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams, StreamableHttpServerParams
from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found


async def main() -> None:
    server = (
        StreamableHttpServerParams(url=URL, timeout=PATIENCE)
        if URL
        else StdioServerParams(command=COMMAND, args=ARGUMENTS, read_timeout_seconds=PATIENCE)
    )
    async with McpWorkbench(server) as workbench:
        tools = await workbench.list_tools()
        called = await workbench.call_tool("add", ADDENDS)
        read = await workbench.read_resource(STATIC)
        prompt = await workbench.get_prompt("greet", ADA)
        found(
            [tool["name"] for tool in tools],
            called.to_text(),
            resource=read.contents[0].text,
            prompt=prompt.messages[0].content.text,
        )


asyncio.run(main())
