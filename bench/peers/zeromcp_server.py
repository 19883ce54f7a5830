"""The benchmark's server on zeromcp: plain functions only, as it runs an event loop of its own for each async call."""

import os
from types import FunctionType

from zeromcp import McpServer

server = McpServer("bench")


@server.tool
def echo(text: str) -> str:
    """Answer with the text."""
    return text


@server.tool
def echo_sync(text: str) -> str:
    """Answer with the text."""
    return text


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.prompt
def greet(who: str) -> str:
    """Greet somebody."""
    return f"Hello, {who}!"


def extra(text: str, times: int = 1) -> str:
    """Repeat the text, as one of very many tools."""
    return text * times


for number in range(3, int(os.environ.get("BENCH_TOOLS", "0"))):
    another = FunctionType(extra.__code__, globals(), f"extra_{number}", extra.__defaults__)  # named after its function
    another.__annotations__, another.__doc__ = extra.__annotations__, extra.__doc__
    server.tool(another)

server.stdio()
