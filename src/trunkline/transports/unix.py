"""Unix socket transport, client and server: like TCP, between processes of one user on one machine.

The socket is a file that only its owner may use. The server removes it at the end. The next server removes a stale
file, on which no process listens any more.
"""

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.accept import BACKLOG, Acceptor, TransportOpener
from trunkline.transports.channel import Accept, Channel, Listener
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.sockets import SocketConnection, SocketConnectionFactory, dial, guarded_factory
from trunkline.transports.stream import FramingName

__all__ = ["UnixConnector", "listen_unix"]

OWNER_ONLY: Final = 0o600


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


async def listen_unix(guard: ListenerGuard, path: str | os.PathLike[str]) -> Listener:
    """Listen on a path."""
    socket_path = Path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        inode = _bind(listener, socket_path)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError) and not isinstance(error, TransportError):
            raise TransportError(f"cannot listen on unix://{socket_path}: {error.strerror or error}") from error
        raise
    connections = SocketConnectionFactory("unix", guard.settings, peer=str(socket_path), report=guard.connection_failed)
    factory = guarded_factory(connections, guard)
    return _UnixListener(TransportOpener(Acceptor([listener], guard.reserve), factory, {}), guard, socket_path, inode)


def _bind(listener: socket.socket, socket_path: Path) -> int:
    """Create the socket file, accessible to its owner only; return its inode number."""
    _remove_stale(socket_path)
    listener.bind(str(socket_path))
    socket_path.chmod(OWNER_ONLY)  # connections are refused until `listen`
    return socket_path.stat().st_ino


def _remove_stale(socket_path: Path) -> None:
    """Remove a socket file on which no process listens. Raise TransportError if one does, or if the file is not a
    socket."""
    if not socket_path.exists():
        return
    if not stat.S_ISSOCK(socket_path.stat().st_mode):
        raise TransportError(
            f"cannot listen on unix://{socket_path}: a file that is not a socket exists there; choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(socket_path))
        except ConnectionRefusedError:
            socket_path.unlink()
            return
    raise TransportError(
        f"cannot listen on unix://{socket_path}: another server listens there; stop it, or choose another path"
    )


class _UnixListener:
    """Unix socket listener."""

    def __init__(self, opener: TransportOpener, guard: ListenerGuard, socket_path: Path, inode: int) -> None:
        self._opener = opener
        self._guard = guard
        self._path = socket_path
        self._inode = inode  # a file at this path with another inode belongs to another server

    @property
    def address(self) -> str:
        """The address."""
        return f"unix://{self._path}"

    async def close(self) -> None:
        """Accept no more clients, and remove the socket file."""
        self._guard.stop_admitting()
        self._opener.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    async def wait_closed(self) -> None:
        """Return at once: each connection closes its own socket."""
