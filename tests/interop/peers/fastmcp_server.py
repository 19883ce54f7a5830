"""A server on fastmcp, versions 2 to 4, with one of everything.

python fastmcp_server.py [PORT]
"""

import sys

from fastmcp import FastMCP

server = FastMCP("fish")


@server.tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@server.tool
def fish(names: list[str]) -> list[dict[str, int]]:
    """Give the length of each name."""
    return [{name: len(name)} for name in names]


@server.resource("fish://trout", mime_type="text/plain")
def trout() -> str:
    """Describe the trout."""
    return "The trout swims."


@server.resource("fish://pond/{name}")
def pond(name: str) -> str:
    """Describe any fish."""
    return f"The {name} swims in a pond."


@server.prompt
def describe(name: str) -> str:
    """Ask for a description."""
    return f"Describe the {name}."


if sys.argv[1:]:
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
