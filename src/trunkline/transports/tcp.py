"""TCP transport, client and server, with or without TLS.

Messages are lines, or follow a `Content-Length` header; the server adopts the framing of its client. The server closes
a stream that begins with anything but a message without a response, so a web page that posts to the port has no effect.
"""

import asyncio
import ssl
from typing import Any

from trunkline.config import Settings
from trunkline.transports.accept import Acceptor, TransportOpener
from trunkline.transports.addresses import Address, format_host_port
from trunkline.transports.channel import Accept, Channel, Listener
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.listening import (
    LOOPBACK_ADDRESS,
    ListeningSockets,
    open_sockets,
    resolve,
    warn_if_unencrypted,
)
from trunkline.transports.socket_listener import SocketListener
from trunkline.transports.sockets import LINGER, SocketConnection, SocketConnectionFactory, dial, guarded_factory
from trunkline.transports.stream import FramingName
from trunkline.transports.tls import ServerTls, TlsOptions

__all__ = ["TcpConnector", "listen_tcp"]


class TcpConnector:
    """Connects to a server by host and port."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: bool | ssl.SSLContext = False,
        framing: FramingName = "lines",
        settings: Settings | None = None,
    ) -> None:
        """`tls=True` uses the system's certificate authorities and checks the host name; pass a context for anything
        else."""
        self._host = host
        self._port = port
        self._context = ssl.create_default_context() if tls is True else tls or None
        self._factory = SocketConnectionFactory(
            "tcp", settings or Settings(), peer=format_host_port(host, port), framing=framing
        )

    @property
    def name(self) -> str:
        """The server's address."""
        return f"{_scheme(self._context)}://{format_host_port(self._host, self._port)}"

    async def connect(self, accept: Accept) -> Channel:
        """Open a connection."""
        loop = asyncio.get_running_loop()
        tls_options: dict[str, Any] = {"ssl": self._context, "ssl_shutdown_timeout": LINGER} if self._context else {}

        async def open_(factory: Any) -> tuple[Any, SocketConnection]:
            return await loop.create_connection(factory, self._host, self._port, **tls_options)

        return await dial(self.name, self._factory, accept, open_)


async def listen_tcp(
    guard: ListenerGuard,
    *,
    host: str = LOOPBACK_ADDRESS,
    port: int = 0,
    tls: ssl.SSLContext | ServerTls | None = None,
    opened: ListeningSockets | None = None,
) -> Listener:
    """Listen on a host and port, or on sockets that are `opened` already; port 0 lets the system choose one. Warn if
    the traffic is unencrypted and not local."""
    if opened is None:
        where = Address(_scheme(tls), host, port)
        opened = open_sockets(where, guard.settings, await resolve(host, port))
        warn_if_unencrypted(where, opened)
    tls_options = TlsOptions(tls, guard.settings.initialize_timeout, ssl_shutdown_timeout=LINGER)
    factory = guarded_factory(SocketConnectionFactory("tcp", guard.settings, report=guard.connection_failed), guard)
    acceptor = Acceptor(opened, guard.reserve)
    opener = TransportOpener(acceptor, factory, tls_options, lambda: guard.peer_count)
    return SocketListener(acceptor, opener, guard, opened.address)


def _scheme(context: ssl.SSLContext | ServerTls | None) -> str:
    return "tls" if context else "tcp"
