"""Waiting for clients over HTTP, with uvicorn and httptools, on the loop that is running."""

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from uvicorn.config import Config

from trunkline.config import Settings
from trunkline.transports.accept import Acceptor, ConnectionSource, TransportOpener, bind, resolve, tls_arguments
from trunkline.transports.addresses import format_host_port
from trunkline.transports.channel import Listener
from trunkline.transports.http.app import App
from trunkline.transports.http.authenticator import Authenticator
from trunkline.transports.http.forwarding.outbound import Relay
from trunkline.transports.http.health import Health
from trunkline.transports.http.session.backend import SessionBackend
from trunkline.transports.http.uvicorn_protocol import Connections
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.origin_policy import ANY_IP_ADDRESS
from trunkline.transports.tcp import LOOPBACK_ADDRESS, warn_if_unencrypted
from trunkline.transports.websocket.uvicorn_protocol import WebSocketConnection

__all__ = ["default_host_names", "listen_http"]

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - to be told from the others


def default_host_names(host: str) -> tuple[str, ...]:
    """The names that a server is known by if it is bound to a host, beside those of its own machine."""
    if host in _WILDCARDS:
        return (socket.gethostname(), ANY_IP_ADDRESS)
    return (f"[{host}]" if ":" in host else host,)


async def listen_http(
    guard: ListenerGuard,
    *,
    host: str = LOOPBACK_ADDRESS,
    port: int = 0,
    path: str = "/",
    tls: ssl.SSLContext | None = None,
    authenticator: Authenticator | None = None,
    session_backend: SessionBackend | None = None,
    relay: Relay | None = None,
    health: Health | None = None,
    source: ConnectionSource | None = None,
) -> Listener:
    """Waits for clients at a host and port: Streamable HTTP and WebSocket at a path, HTTP+SSE beside it. Sessions
    outlive this process if there is a keeper; `relay` carries requests to where others are held. Where there is a
    source of connections, somebody else listens there."""

    async def guarded() -> ListenerGuard:
        return guard

    async def nothing() -> None:
        pass

    app = App(
        guarded,
        nothing,
        path=path,
        authenticator=authenticator,
        session_backend=lambda: session_backend,
        relay=lambda: relay,
        health=health,
    )
    connections = Connections(guard, _uvicorn_config(app, guard.settings))
    scheme = "https" if tls else "http"
    if source is None:
        listening = bind(host, port, await resolve(host, port))
        bound = [place.getsockname()[:2] for place in listening]
        address = f"{scheme}://{format_host_port(*bound[0])}{path}"
        warn_if_unencrypted(address, [place[0] for place in bound], tls)
        source = Acceptor(listening, guard.reserve)
    else:
        address = f"{scheme}://{format_host_port(host, port)}{path}"
    secured = tls_arguments(tls, guard.settings.header_timeout)
    return _HttpListener(app, TransportOpener(source, connections.make, secured), connections, address)


def _uvicorn_config(app: App, settings: Settings) -> Config:
    """uvicorn's settings: everything that is ours to do is off."""
    config = Config(
        app,  # pyright: ignore[reportArgumentType] - ASGI as we have it is less exact
        loop="none",
        http="httptools",
        ws=WebSocketConnection,
        ws_max_size=settings.ws_message_size_limit,
        ws_ping_interval=None,
        ws_ping_timeout=None,
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.idle_timeout,  # pyright: ignore[reportArgumentType] - it is only added to a time
    )
    config.load()
    return config


class _HttpListener:
    """A place where clients are waited for."""

    def __init__(self, app: App, opener: TransportOpener, connections: Connections, address: str) -> None:
        self._app = app
        self._opener = opener
        self._connections = connections
        self._address = address

    @property
    def address(self) -> str:
        """Where it is; the port that was chosen, if it was left open."""
        return self._address

    async def close(self) -> None:
        """Takes no more clients, and lets those go who wait for nothing in particular."""
        self._opener.close()
        self._app.close_idle_streams()

    async def gone(self) -> None:
        """Ends what is left: answers that are being written have a moment, what waits for a request has none."""
        await self._app.aclose()
        state = self._connections.state
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=1.0)
        for connection in list(state.connections):
            with contextlib.suppress(AttributeError):
                connection.transport.abort()  # pyright: ignore[reportOptionalMemberAccess]
        self._connections.close()
