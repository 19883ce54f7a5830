"""HTTP listener on the running loop."""

import ssl
from typing import Final, Protocol

from trunkline.transports.accept import Acceptor, ConnectionSource, TransportOpener
from trunkline.transports.addresses import Address
from trunkline.transports.channel import Listener
from trunkline.transports.http.app import CheckRate, HttpApp
from trunkline.transports.http.authenticator import Authenticator
from trunkline.transports.http.connection import HttpConnections
from trunkline.transports.http.forwarding.outbound import Relay
from trunkline.transports.http.health import Health
from trunkline.transports.http.routes import RouteFinder
from trunkline.transports.http.session.backend import SessionBackend
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.listening import LOOPBACK_ADDRESS, ListeningSockets, open_sockets
from trunkline.transports.tls import ServerTls, TlsOptions

__all__ = ["HttpListener", "ListenedApp", "listen_http"]

_GRACE: Final = 1.0  # seconds for responses in progress when the listener closes


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
    check_rate: CheckRate | None = None,
    routes: RouteFinder | None = None,
    source: ConnectionSource | None = None,
) -> Listener:
    """Listen for HTTP clients: Streamable HTTP and WebSocket at `path`, HTTP+SSE and custom routes beside it.

    With a session backend, sessions outlive this process; `relay` forwards requests for sessions of other processes.
    Without `opened` sockets it listens on a free port of the loopback interface. With a `source`, connections come from
    it (a supervisor listens), and the sockets only give the address.
    """

    app = HttpApp(
        guard,
        path,
        authenticator,
        session_backend=session_backend,
        relay=relay,
        health=health,
        routes=routes,
        check_rate=check_rate,
    )
    connections = HttpConnections(guard, app)
    if opened is None:
        opened = open_sockets(Address("https" if tls else "http", LOOPBACK_ADDRESS, path=path), guard.settings)
    acceptor = None
    if source is None:
        source = acceptor = Acceptor(opened, guard.reserve)
    secured = TlsOptions(tls, guard.settings.header_timeout)
    opener = TransportOpener(source, connections.make, secured, lambda: len(connections.open))
    return HttpListener(app, opener, connections, opened.address, acceptor)


class ListenedApp(Protocol):
    """Application of a listener, as far as closing it is concerned."""

    def close_idle_streams(self) -> None:
        """Stop admitting, and end the streams that answer no request."""
        ...

    def stop_admitting(self) -> None:
        """Refuse new connections and sessions from now on."""
        ...

    def close(self) -> None:
        """Close everything that is left."""
        ...


class HttpListener:
    """Listener that owns the application and its connections."""

    def __init__(
        self,
        app: ListenedApp,
        opener: TransportOpener,
        connections: HttpConnections,
        address: str,
        acceptor: Acceptor | None,
    ) -> None:
        """Without an `acceptor` the sockets belong to another process."""
        self._app = app
        self._acceptor = acceptor
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

    async def wait_lost(self) -> None:
        """Return when the listener was closed; raise `TransportError` when one of its sockets no longer listens."""
        if self._acceptor is not None:
            await self._acceptor.wait_lost()

    def reopen(self) -> None:
        """Open the sockets that no longer listen again. Sessions and open connections are not affected."""
        if self._acceptor is not None:
            self._acceptor.reopen()

    async def wait_closed(self) -> None:
        """Close the application and its connections. Responses in progress get one second to finish; idle connections
        none."""
        self._app.stop_admitting()
        self._app.close()
        await self._connections.shut_down(_GRACE)
