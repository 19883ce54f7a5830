"""An ASGI application on a local port, served by uvicorn in this process and on this loop."""

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def asgi_server(
    app: Callable[..., Any], *, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[tuple[str, int]]:
    """Yield the host and port. uvicorn runs no lifespan, and waits only for connections to end."""
    config = uvicorn.Config(app, interface="asgi3", ws="websockets-sansio", lifespan="off", log_config=None, **options)
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listening = socket.create_server(("127.0.0.1", 0))
    await server.startup(sockets=[listening])
    try:
        yield listening.getsockname()[:2]
    finally:
        await server.shutdown(sockets=[listening])
