"""TCP, both sides, in the open or under TLS: one message per line, or each after a header with its length.

A server answers in the framing that its client speaks. A stream that begins with anything but a message is closed
without an answer, so that a web page which posts to our port gets nothing done.
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
    """Opens lines to a server at a host and port."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: bool | ssl.SSLContext = False,
        framing: FramingName = "lines",
        settings: Settings | None = None,
    ) -> None:
        """`tls=True` trusts whom the system trusts and checks the host's name; a context of your own says otherwise."""
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
        """Opens a line."""
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {"ssl": self._context, "ssl_shutdown_timeout": LINGER} if self._context else {}

        async def open_(factory: Any) -> tuple[Any, SocketConnection]:
            return await loop.create_connection(factory, self._host, self._port, **secured)

        return await dial(self.name, self._factory, accept, open_)


async def listen_tcp(
    guard: ListenerGuard, *, host: str = LOOPBACK_ADDRESS, port: int = 0, tls: ssl.SSLContext | None = None
) -> Listener:
    """Waits for clients at a host and port; port 0 lets the system choose one. Warns if strangers could read along."""
    listening = bind(host, port, await resolve(host, port))
    bound = [place.getsockname()[:2] for place in listening]
    address = f"{_scheme(tls)}://{format_host_port(*bound[0])}"
    warn_if_unencrypted(address, [place[0] for place in bound], tls)
    secured = tls_arguments(tls, guard.settings.initialize_timeout, ssl_shutdown_timeout=LINGER)
    factory = guarded_factory(SocketConnectionFactory("tcp", guard.settings, report=guard.connection_failed), guard)
    return _TcpListener(TransportOpener(Acceptor(listening, guard.reserve), factory, secured), guard, address)


class _TcpListener:
    """A place where clients are waited for."""

    def __init__(self, opener: TransportOpener, guard: ListenerGuard, address: str) -> None:
        self._opener = opener
        self._guard = guard
        self._address = address

    @property
    def address(self) -> str:
        """Where it is; the port that was chosen, if it was left open."""
        return self._address

    async def close(self) -> None:
        """Takes no more clients."""
        self._guard.stop_admitting()
        self._opener.close()

    async def wait_closed(self) -> None:
        """Nothing is left: each line has let go of its own socket."""


def warn_if_unencrypted(address: str, hosts: Sequence[str], tls: ssl.SSLContext | None) -> None:
    """Warns if strangers could read along."""
    if tls is None and not all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in hosts):
        warnings.warn(
            f"{address} can be reached from other machines, and anybody on the way can read along; "
            f"pass tls=, or host={LOOPBACK_ADDRESS!r}",
            RuntimeWarning,
            stacklevel=3,
        )


def _scheme(context: ssl.SSLContext | None) -> str:
    return "tls" if context else "tcp"
