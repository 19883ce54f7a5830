"""An ASGI application on a port of this machine, served by uvicorn in this process and on this loop."""

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
    """Gives the host and port. The lifespan is left out, and so is every wait but that for connections to end."""
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
