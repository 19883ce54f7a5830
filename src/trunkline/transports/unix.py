"""Unix sockets, both sides: as TCP, between processes of one machine and one user.

The socket is a file that only its owner may use. It is removed when the server ends; one that was left behind by a
server that could not do so is removed by the next, if nobody listens there any more.
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
    """Opens lines to a server at a socket's path."""

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
        """Opens a line."""
        loop = asyncio.get_running_loop()

        async def open_(factory: Any) -> tuple[Any, SocketConnection]:
            return await loop.create_unix_connection(factory, self._path)

        return await dial(self.name, self._factory, accept, open_)


async def listen_unix(guard: ListenerGuard, path: str | os.PathLike[str]) -> Listener:
    """Waits for clients at a path."""
    place = Path(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        number = _bind(bound, place)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException as error:
        bound.close()
        if isinstance(error, OSError) and not isinstance(error, TransportError):
            raise TransportError(f"cannot listen at unix://{place}: {error.strerror or error}") from error
        raise
    lines = SocketConnectionFactory("unix", guard.settings, peer=str(place), report=guard.connection_failed)
    factory = guarded_factory(lines, guard)
    return _UnixListener(TransportOpener(Acceptor([bound], guard.reserve), factory, {}), guard, place, number)


def _bind(unbound: socket.socket, place: Path) -> int:
    """Makes the socket's file, for its owner only; gives the file's number."""
    _remove_stale(place)
    unbound.bind(str(place))
    place.chmod(OWNER_ONLY)  # nobody can get through before `listen`
    return place.stat().st_ino


def _remove_stale(place: Path) -> None:
    """Removes a socket that nobody listens at. Raises if somebody does, or if it is something else."""
    if not place.exists():
        return
    if not stat.S_ISSOCK(place.stat().st_mode):
        raise TransportError(f"cannot listen at unix://{place}: there is a file that is no socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(place))
        except ConnectionRefusedError:
            place.unlink()
            return
    raise TransportError(f"cannot listen at unix://{place}: another server does; end it, or choose another path")


class _UnixListener:
    """A path at which clients are waited for."""

    def __init__(self, opener: TransportOpener, guard: ListenerGuard, place: Path, number: int) -> None:
        self._opener = opener
        self._guard = guard
        self._path = place
        self._inode = number  # of the file: another one at this path is not ours

    @property
    def address(self) -> str:
        """Where it is."""
        return f"unix://{self._path}"

    async def close(self) -> None:
        """Takes no more clients, and removes the socket."""
        self._guard.stop_admitting()
        self._opener.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    async def wait_closed(self) -> None:
        """Nothing is left: each line has let go of its own socket."""
