"""The echo tool on the official SDK's low-level API."""

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


async def list_tools(ctx, params):
    """The only tool."""
    return ListToolsResult(tools=[Tool(name="echo", description="Answer with the text.", input_schema=SCHEMA)])


async def call_tool(ctx, params):
    """Answer with the text."""
    return CallToolResult(content=[TextContent(type="text", text=params.arguments["text"])])


async def main() -> None:
    """Serve stdin and stdout until stdin ends."""
    server = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (receive, send):
        await server.run(receive, send, server.create_initialization_options())


anyio.run(main)
