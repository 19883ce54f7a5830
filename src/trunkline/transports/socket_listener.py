"""Listener of the transports whose connections are streams: TCP and Unix sockets."""

from trunkline.transports.accept import Acceptor, TransportOpener
from trunkline.transports.listener_limits import ListenerGuard

__all__ = ["SocketListener"]


class SocketListener:
    """Listener that owns its sockets; each connection closes its own."""

    def __init__(self, acceptor: Acceptor, opener: TransportOpener, guard: ListenerGuard, address: str) -> None:
        self.wait_lost = acceptor.wait_lost
        self.reopen = acceptor.reopen
        self._opener = opener
        self._guard = guard
        self._address = address

    @property
    def address(self) -> str:
        """The address, with the port that the system chose if it was 0."""
        return self._address

    async def close(self) -> None:
        """Accept no more clients, and remove the socket file if there is one."""
        self._guard.stop_admitting()
        self._opener.close()

    async def wait_closed(self) -> None:
        """Return at once: each connection closes its own socket."""
