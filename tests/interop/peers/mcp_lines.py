"""The lines that the official Python SDK can reach a server by."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

from mcp import types
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_connection import Connection

_held = import_module(f"mcp_{version('mcp').partition('.')[0]}_connection")
Official: type[Connection] = _held.Official
Refusal: type[Exception] = _held.Refusal


def line_to(server: list[str]) -> Any:
    """The SDK's own transport: to a command, or to an address, which ends in /sse for the older one."""
    [first, *rest] = server
    if not first.startswith("http:"):
        return stdio_client(StdioServerParameters(command=first, args=rest, env=dict(os.environ)))
    return sse_client(first) if first.endswith("/sse") else streamable_http_client(first)


@asynccontextmanager
async def connected(server: list[str], revision: str, capabilities: dict[str, Any]) -> AsyncIterator[Connection]:
    """Reaches a server and shakes hands with it, in a revision and with capabilities of our choice."""
    async with line_to(server) as (incoming, outgoing, *_):
        connection = Official(incoming, outgoing)
        async with connection.session:
            client = {"name": "official", "version": "1.0"}
            params = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": client}
            await connection.shake_hands(types.InitializeRequestParams.model_validate(params))
            yield connection
