"""HTTP listener on the running loop, with uvicorn and httptools."""

import asyncio
import contextlib
import ssl

from uvicorn.config import Config

from trunkline.config import Settings
from trunkline.transports.accept import Acceptor, ConnectionSource, TransportOpener
from trunkline.transports.addresses import Address
from trunkline.transports.channel import Listener
from trunkline.transports.http.app import App
from trunkline.transports.http.authenticator import Authenticator
from trunkline.transports.http.forwarding.outbound import Relay
from trunkline.transports.http.health import Health
from trunkline.transports.http.session.backend import SessionBackend
from trunkline.transports.http.uvicorn_protocol import Connections
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.listening import LOOPBACK_ADDRESS, ListeningSockets, open_sockets
from trunkline.transports.tls import ServerTls, TlsOptions
from trunkline.transports.websocket.uvicorn_protocol import WebSocketConnection

__all__ = ["listen_http"]


async def listen_http(
    guard: ListenerGuard,
    *,
    opened: ListeningSockets | None = None,
    path: str = "/",
    tls: ssl.SSLContext | ServerTls | None = None,
    authenticator: Authenticator | None = None,
    session_backend: SessionBackend | None = None,
    relay: Relay | None = None,
    health: Health | None = None,
    source: ConnectionSource | None = None,
) -> Listener:
    """Listen for HTTP clients: Streamable HTTP and WebSocket at `path`, HTTP+SSE beside it.

    With a session backend, sessions outlive this process; `relay` forwards requests for sessions of other processes.
    Without `opened` sockets it listens on a free port of the loopback interface. With a `source`, connections come from
    it (a supervisor listens), and the sockets only give the address.
    """

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
    if opened is None:
        opened = open_sockets(Address("https" if tls else "http", LOOPBACK_ADDRESS, path=path), guard.settings)
    if source is None:
        source = Acceptor(opened.sockets, guard.reserve, opened.remove_file)
    secured = TlsOptions(tls, guard.settings.header_timeout)
    return _HttpListener(app, TransportOpener(source, connections.make, secured), connections, opened.address)


def _uvicorn_config(app: App, settings: Settings) -> Config:
    """Return uvicorn's configuration, with every feature off that this package implements itself."""
    config = Config(
        app,  # pyright: ignore[reportArgumentType] - our ASGI types are less exact
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
        timeout_keep_alive=settings.idle_timeout,  # pyright: ignore[reportArgumentType] - uvicorn only adds it to a time
    )
    config.load()
    return config


class _HttpListener:
    """Listener that owns the application and its connections."""

    def __init__(self, app: App, opener: TransportOpener, connections: Connections, address: str) -> None:
        self._app = app
        self._opener = opener
        self._connections = connections
        self._address = address

    @property
    def address(self) -> str:
        """The URL, with the port that the system chose if it was 0."""
        return self._address

    async def close(self) -> None:
        """Accept no more connections and end idle streams."""
        self._opener.close()
        self._app.close_idle_streams()

    async def wait_closed(self) -> None:
        """Close the application and its connections. Responses in progress get one second to finish; idle connections
        none."""
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
