"""TCP transport, client and server, with or without TLS.

Messages are lines, or follow a `Content-Length` header; the server adopts the framing of its client. The server closes
a stream that begins with anything but a message without a response, so a web page that posts to the port has no effect.
"""

import asyncio
import ipaddress
import ssl
import warnings
from collections.abc import Sequence
from typing import Any, Final

from trunkline.config import Settings
from trunkline.transports.accept import Acceptor, TransportOpener, bind, resolve, tls_arguments
from trunkline.transports.addresses import format_host_port
from trunkline.transports.channel import Accept, Channel, Listener
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.sockets import LINGER, SocketConnection, SocketConnectionFactory, dial, guarded_factory
from trunkline.transports.stream import FramingName

__all__ = ["LOOPBACK_ADDRESS", "TcpConnector", "listen_tcp"]

LOOPBACK_ADDRESS: Final = "127.0.0.1"


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
    guard: ListenerGuard, *, host: str = LOOPBACK_ADDRESS, port: int = 0, tls: ssl.SSLContext | None = None
) -> Listener:
    """Listen on a host and port; port 0 lets the system choose one. Warn if the traffic is unencrypted and not
    local."""
    listeners = bind(host, port, await resolve(host, port))
    bound = [listener.getsockname()[:2] for listener in listeners]
    address = f"{_scheme(tls)}://{format_host_port(*bound[0])}"
    warn_if_unencrypted(address, [address for address, _ in bound], tls)
    tls_options = tls_arguments(tls, guard.settings.initialize_timeout, ssl_shutdown_timeout=LINGER)
    factory = guarded_factory(SocketConnectionFactory("tcp", guard.settings, report=guard.connection_failed), guard)
    return _TcpListener(TransportOpener(Acceptor(listeners, guard.reserve), factory, tls_options), guard, address)


class _TcpListener:
    """TCP listener."""

    def __init__(self, opener: TransportOpener, guard: ListenerGuard, address: str) -> None:
        self._opener = opener
        self._guard = guard
        self._address = address

    @property
    def address(self) -> str:
        """The address, with the port that the system chose if it was 0."""
        return self._address

    async def close(self) -> None:
        """Accept no more clients."""
        self._guard.stop_admitting()
        self._opener.close()

    async def wait_closed(self) -> None:
        """Return at once: each connection closes its own socket."""


def warn_if_unencrypted(address: str, hosts: Sequence[str], tls: ssl.SSLContext | None) -> None:
    """Warn if other machines can reach an address without TLS."""
    if tls is None and not all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in hosts):
        warnings.warn(
            f"{address} can be reached from other machines without encryption; pass tls=, or host={LOOPBACK_ADDRESS!r}",
            RuntimeWarning,
            stacklevel=3,
        )


def _scheme(context: ssl.SSLContext | None) -> str:
    return "tls" if context else "tcp"
