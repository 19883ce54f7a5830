"""The benchmark's server on fastmcp, with its defaults."""

import os

from fastmcp import FastMCP
from fastmcp.tools import Tool

server = FastMCP("bench")


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


@server.resource("bench://static")
async def static() -> str:
    """A fixed text."""
    return "static body"


@server.resource("bench://item/{id}")
async def item(id: str) -> str:  # noqa: A002  the template's own name for it
    """A text made for its address."""
    return f"item {id}"


@server.prompt
async def greet(who: str) -> str:
    """Greet somebody."""
    return f"Hello, {who}!"


async def extra(text: str, times: int = 1) -> str:
    """Repeat the text, as one of very many tools."""
    return text * times


for number in range(3, int(os.environ.get("BENCH_TOOLS", "0"))):
    server.add_tool(Tool.from_function(extra, name=f"extra_{number}"))

server.run("stdio", show_banner=False)
