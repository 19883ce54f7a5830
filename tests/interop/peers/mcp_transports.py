"""The transports of the official Python SDK."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_connection import MODERN, Connection

_held = import_module(f"mcp_{version('mcp').partition('.')[0]}_connection")
Official: type[Connection] = _held.Official
Modern: type[Connection] = getattr(_held, "Modern", Official)  # which version 1.x does not know
Refusal: type[Exception] = _held.Refusal


def line_to(server: list[str]) -> Any:
    """The SDK's own transport: to a command, or to an address, which ends in /sse for the older one."""
    [first, *rest] = server
    if not first.startswith("http:"):
        return stdio_client(StdioServerParameters(command=first, args=rest, env=dict(os.environ)))
    return sse_client(first) if first.endswith("/sse") else streamable_http_client(first)


@asynccontextmanager
async def connected(server: list[str], revision: str, capabilities: dict[str, Any]) -> AsyncIterator[Connection]:
    """Connect to a server, in a revision and with chosen capabilities."""
    held = Modern if revision >= MODERN else Official
    async with (
        line_to(server) as (incoming, outgoing, *_),
        held(incoming, outgoing, capabilities).begun(revision) as connection,
    ):
        yield connection
