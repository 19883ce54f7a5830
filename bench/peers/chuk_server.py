"""The benchmark's server on chuk-mcp-server, with its defaults. It lists in pages and reads nothing by a template."""

import os

from chuk_mcp_server import ChukMCPServer

server = ChukMCPServer("bench", transport="stdio")


@server.tool
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@server.tool
def echo_sync(text: str) -> str:
    """Answer with the text, from a plain function."""
    return text


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.resource("bench://static", mime_type="text/plain")
async def static() -> str:
    """A fixed text."""
    return "static body"


@server.prompt
async def greet(who: str) -> str:
    """Greet somebody."""
    return f"Hello, {who}!"


async def extra(text: str, times: int = 1) -> str:
    """Repeat the text, as one of very many tools."""
    return text * times


for number in range(3, int(os.environ.get("BENCH_TOOLS", "0"))):
    server.register_function_as_tool(extra, name=f"extra_{number}")

server.run()
