"""Transports of a server of the official Python SDK, for any version of the SDK: stdio, or HTTP.

    python mcp_server.py [--bare] [--http]

Over HTTP it listens on any free port; Streamable HTTP is at /mcp, and HTTP+SSE at /sse.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import uvicorn
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Mount, Route


class Endpoint:
    """An ASGI application as an object, which Starlette requires."""

    def __init__(self, handle: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._handle(scope, receive, send)


def application(server: Any, options: Any) -> Starlette:
    """The server over HTTP, as in the SDK's own documentation."""
    server.create_initialization_options = lambda *_: options  # the session manager does not accept them
    manager, legacy = StreamableHTTPSessionManager(server), SseServerTransport("/messages/")

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        async with legacy.connect_sse(scope, receive, send) as (incoming, outgoing):
            await server.run(incoming, outgoing, options)

    routes = [
        Route("/mcp", Endpoint(manager.handle_request)),
        Route("/sse", Endpoint(stream), methods=["GET"]),
        Mount("/messages/", legacy.handle_post_message),
    ]
    return Starlette(routes=routes, lifespan=lambda _: manager.run())


async def converse(server: Any, options: Any) -> None:
    """Serve stdin and stdout until stdin ends."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, options)


def serve(server: Any, options: Any) -> None:
    """Serve as the command line says."""
    if "--http" in sys.argv:
        uvicorn.run(application(server, options), port=0, log_level="warning")
    else:
        anyio.run(converse, server, options)
