"""Unix socket transport, client and server: like TCP, between processes of one machine."""

import asyncio
import os
from typing import Any

from trunkline.config import Settings
from trunkline.transports.accept import Acceptor, TransportOpener
from trunkline.transports.addresses import Address
from trunkline.transports.channel import Accept, Channel, Listener
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.listening import ListeningSockets, open_sockets
from trunkline.transports.socket_listener import SocketListener
from trunkline.transports.sockets import SocketConnection, SocketConnectionFactory, dial, guarded_factory
from trunkline.transports.stream import FramingName
from trunkline.transports.tls import TlsOptions

__all__ = ["UnixConnector", "listen_unix"]


class UnixConnector:
    """Connects to a server by the path of its socket."""

    def __init__(
        self, path: str | os.PathLike[str], *, framing: FramingName = "lines", settings: Settings | None = None
    ) -> None:
        self._path = os.fspath(path)
        self._factory = SocketConnectionFactory("unix", settings or Settings(), peer=self._path, framing=framing)

    @property
    def name(self) -> str:
        """The server's address."""
        return f"unix://{self._path}"

    async def connect(self, accept: Accept) -> Channel:
        """Open a connection."""
        loop = asyncio.get_running_loop()

        async def open_(factory: Any) -> tuple[Any, SocketConnection]:
            return await loop.create_unix_connection(factory, self._path)

        return await dial(self.name, self._factory, accept, open_)


async def listen_unix(
    guard: ListenerGuard, path: str | os.PathLike[str] = "", *, opened: ListeningSockets | None = None
) -> Listener:
    """Listen on a path, or on sockets that are `opened` already."""
    if opened is None:
        opened = open_sockets(Address("unix", path=os.fspath(path)), guard.settings)
    peer = opened.address.removeprefix("unix://")
    connections = SocketConnectionFactory("unix", guard.settings, peer=peer, report=guard.connection_failed)
    factory = guarded_factory(connections, guard)
    acceptor = Acceptor(opened, guard.reserve)
    opener = TransportOpener(acceptor, factory, TlsOptions(None), lambda: guard.peer_count)
    return SocketListener(acceptor, opener, guard, opened.address)
