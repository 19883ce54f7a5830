"""Bus on Unix sockets, for processes of one machine and one user that share a file.

Each process has a socket, named after the process, in a folder derived from the file's path and the store's identity: a
new file in place of a deleted one is another deployment. A joining process creates its socket first and then connects
to all others, so of two processes that join at once, at least one finds the other; the accepting process connects back.
So every pair of processes is connected, and when a process ends for any reason, its peers notice.

A socket without a listener is a leftover of a dead process, and the process that finds it removes it. Therefore a
socket gets its final name only when it listens. The folder is private to its owner, and the last process to leave
removes it.

Everything on a connection is a signed frame (`signed_frames.py`), including the hello, which is addressed to the
accepting process.

Both sides notice when a connection ends, and each reports it to its listener. Only one side notices a failed connection
attempt, so its next hello announces the loss.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import time
from pathlib import Path
from typing import Final

from trunkline.errors import StoreUnavailable, StoreUnusable
from trunkline.private_folder import make_private_folder
from trunkline.stores.bus import MAX_NAME_CHARACTERS, BusListener, is_process_name
from trunkline.stores.bus_endpoint import BusEndpoint, check_process_name
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.signed_frames import ALL, Frame, Rejection
from trunkline.stores.unix_bus.links import IncomingLink, OutgoingLink, add_length_prefix

__all__ = ["UnixBus", "socket_folder"]

_MAX_PATH_BYTES: Final = 103  # bytes of a socket path on every system; Linux allows a few more
_UNREADY_PREFIX: Final = "+"  # of the name of a socket that does not listen yet
_UNREADY_MAX_AGE: Final = 60.0  # seconds, then such a socket is removed
_TEMPORARY: Final = Path("/tmp")  # noqa: S108 - not TMPDIR: all processes must use the same folder
_ID: Final = 8  # characters of the identity: enough to differ from that of a deleted file
_BACKLOG: Final = 1024
_ACCEPT_RETRY_INTERVAL: Final = 0.5  # seconds to wait when this process has too many open files
PEER_TIMEOUT: Final = 2.0  # seconds to wait for silent peers when joining, and for slow readers when leaving
LOSS_REPORT_INTERVAL: Final = 0.2  # seconds between reports that an existing peer is unreachable
_ATTEMPTS: Final = 10
_HELLO_AFTER_LOSS: Final = b"a"  # hello payload: the sender has reported the receiver as lost since its last hello


def socket_folder(file: Path, identity: StoreIdentity) -> Path:
    """Return the folder of the sockets: beside the file, or in /tmp if that path would be too long."""
    file = file.resolve()
    beside = file.with_name(f"{file.name}-bus-{identity.id[:_ID]}")
    if len(os.fsencode(beside)) + len(f"/{_UNREADY_PREFIX}") + MAX_NAME_CHARACTERS <= _MAX_PATH_BYTES:
        return beside
    return _TEMPORARY / f"trunkline-{hashlib.blake2b(os.fsencode(beside), digest_size=12).hexdigest()}"


class UnixBus:
    """Bus between processes that share a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder: Path
        self._endpoint = BusEndpoint(f"the bus of {file}")
        self._socket_paths: list[Path] = []  # of this process's socket
        self._socket: socket.socket | None = None  # while it listens
        self._accept_timer: asyncio.TimerHandle | None = None  # while this process has too many open files
        self._peers: dict[str, OutgoingLink | None] = {}  # None: not connected at the moment
        self._incoming: dict[str, IncomingLink] = {}
        self._links: set[IncomingLink | OutgoingLink] = set()  # open connections
        self._attach_tasks: set[asyncio.Task[None]] = set()
        self._unannounced_losses: set[str] = set()  # peers, reported as lost since the last hello, that may not know it
        self._flush_scheduled = False

    # --- lifecycle ---------------------------------------------------------------------------------

    async def open(self, name: str, ears: BusListener, identity: StoreIdentity) -> None:
        """Create the socket in the folder, and connect to all others there."""
        self._endpoint.open(name, ears, identity)
        self._folder = socket_folder(self._file, identity)
        try:
            self._listen()
            await self._dial_peers()
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise StoreUnavailable(f"no bus at {self._folder}: {error.strerror or error}") from error
            raise

    def _listen(self) -> None:
        hidden, path = self._folder / f"{_UNREADY_PREFIX}{self._endpoint.name}", self._folder / self._endpoint.name
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _bind(bound, hidden)
            self._socket_paths = [hidden, path]
            bound.listen(_BACKLOG)
            bound.setblocking(False)
        except BaseException:
            bound.close()
            raise
        self._socket = bound
        self._accept_from(bound)
        hidden.rename(path)

    async def _dial_peers(self) -> None:
        """Connect to all existing peers and wait for their welcome, up to a timeout, since one may be suspended."""
        for found in _list_peers(self._folder):
            if found not in {self._endpoint.name, *self._peers}:
                self._dial(found)
        dialled = [link for link in self._peers.values() if link is not None]
        if dialled:
            await asyncio.wait([link.answered for link in dialled], timeout=PEER_TIMEOUT)
        for link in dialled:
            if not link.welcomed and link.to in self._peers:
                self._endpoint.report_met(link.to)

    async def close(self) -> None:
        """Remove the socket, send what is buffered to peers that read, and disconnect."""
        if self._endpoint.closed:
            return
        self._endpoint.close()
        for path in self._socket_paths:
            path.unlink(missing_ok=True)
        self._stop_accepting()
        if self._attach_tasks:
            await asyncio.wait(self._attach_tasks)
        self._flush()
        await self._close_links()
        if self._socket_paths:
            with contextlib.suppress(OSError):  # other processes use it
                self._folder.rmdir()

    async def _close_links(self) -> None:
        await asyncio.sleep(0)  # uvloop closes in the next iteration
        for link in [*self._links]:
            link.close()
        for _ in range(2):
            if lines := [*self._links]:
                await asyncio.wait([link.ended for link in lines], timeout=PEER_TIMEOUT)
            for link in lines:
                link.abort()

    # --- sending -----------------------------------------------------------------------------------

    def send(self, to: str, message: bytes) -> bool:
        """Send a message to one process."""
        self._endpoint.check_message(message)
        if self._endpoint.closed:
            return True
        link = self._peers.get(to) or self._dial(to)
        if link is None:
            return False
        self._add(link, add_length_prefix(self._endpoint.signer.sign(to, message)))
        return True

    def publish(self, message: bytes) -> None:
        """Send a message to all peers."""
        self._endpoint.check_message(message)
        if self._endpoint.closed:
            return
        links = [self._peers[name] or self._dial(name) for name in [*self._peers]]
        # Signed after the hellos, whose numbers must be smaller.
        frame = add_length_prefix(self._endpoint.signer.sign(ALL, message))
        for link in links:
            if link is not None:
                self._add(link, frame)

    def _add(self, link: OutgoingLink, frame: bytes) -> None:
        link.add(frame)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        for link in self._peers.values():
            if link is not None:
                link.flush()

    async def sent(self) -> None:
        """Wait for slow readers."""
        self._flush()
        while slow := [link.drained for link in self._peers.values() if link is not None and link.drained is not None]:
            await asyncio.wait(slow)

    # --- connections -------------------------------------------------------------------------------

    def _dial(self, name: str) -> OutgoingLink | None:
        """Connect to a process; return None if it does not exist, which a Unix socket reports at once."""
        check_process_name(name)
        path = self._folder / name
        hello = self._endpoint.signer.sign(name, _HELLO_AFTER_LOSS if name in self._unannounced_losses else b"")
        link = OutgoingLink(name, hello, on_welcome=self._endpoint.report_met, on_lost=self._outgoing_lost)
        self._unannounced_losses.discard(name)
        try:
            connection = _connect(path)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self._peers.pop(name, None)
            if isinstance(error, ConnectionRefusedError):
                path.unlink(missing_ok=True)
            return None
        except OSError:  # its backlog is full, or this process has too many open files
            link.fail_later(LOSS_REPORT_INTERVAL)
        else:
            self._attach_soon(link, connection)
        self._peers[name] = link
        self._links.add(link)
        return link

    def _attach_soon(self, link: IncomingLink | OutgoingLink, connection: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._attach(link, connection))
        self._attach_tasks.add(task)
        task.add_done_callback(self._attach_tasks.discard)

    @staticmethod
    async def _attach(link: IncomingLink | OutgoingLink, connection: socket.socket) -> None:
        try:
            # Not create_unix_connection: when the first write fails, uvloop closes the descriptor without telling the
            # socket object, which closes the number again later, whatever it stands for by then.
            await asyncio.get_running_loop().connect_accepted_socket(lambda: link, connection)
        except OSError:
            connection.close()
            link.connection_lost(None)

    def _outgoing_lost(self, link: OutgoingLink) -> None:
        """Handle the end of an outgoing connection."""
        self._links.discard(link)
        if self._peers.get(link.to) is link:
            self._peers[link.to] = None
        self._unannounced_losses.add(link.to)
        self._endpoint.report_lost(link.to)
        if not self._endpoint.closed and link.welcomed and self._peers.get(link.to, link) is None:
            self._dial(link.to)

    # A server of asyncio leaks the connections that it is accepting when it closes.

    def _accept_from(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept the connections that are waiting."""
        for _ in range(_BACKLOG):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # too many open files
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._accept_timer = loop.call_later(_ACCEPT_RETRY_INTERVAL, self._accept_from, listening)
                return
            connection.setblocking(False)
            link = IncomingLink(
                verify=self._verify,
                on_hello=self._hello_received,
                on_message=self._endpoint.deliver,
                on_lost=self._incoming_lost,
            )
            self._links.add(link)
            self._attach_soon(link, connection)

    def _stop_accepting(self) -> None:
        if self._accept_timer is not None:
            self._accept_timer.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _verify(self, sender: str, data: bytes) -> Frame | None:
        """Return a valid frame of an existing or a new connection, or None if it is dropped."""
        frame = self._endpoint.signer.verify(data)
        if isinstance(frame, Frame) and (frame.sender != sender if sender else frame.for_all):
            frame = Rejection.MISDIRECTED
        if isinstance(frame, Rejection):
            self._endpoint.report_rejected(frame, str(self._folder))
            return None
        return frame

    def _hello_received(self, link: IncomingLink, hello: bytes) -> None:
        """Register a peer that has connected. Of several connections of one peer only the latest counts, since
        messages on earlier ones would be out of order. (The hello of an earlier one is rejected.)"""
        name, known = link.sender, self._incoming.get(link.sender)
        if self._endpoint.closed:
            link.abort()
            return
        self._incoming[name] = link
        if known is not None:
            known.abort()
        if known is not None or hello == _HELLO_AFTER_LOSS:
            self._endpoint.report_lost(name)
        self._endpoint.report_met(name)
        if not self._endpoint.closed and self._peers.get(name) is None:
            self._dial(name)
        link.welcome()

    def _incoming_lost(self, link: IncomingLink) -> None:
        """Handle the end of an incoming connection."""
        self._links.discard(link)
        if self._incoming.get(link.sender) is link:
            del self._incoming[link.sender]
            self._endpoint.report_lost(link.sender)


# --- sockets ---------------------------------------------------------------------------------------


def _bind(unbound: socket.socket, path: Path) -> None:
    """Bind a socket to a path in the private folder."""
    for _ in range(_ATTEMPTS):
        if not make_private_folder(path.parent):
            raise StoreUnusable(f"{path.parent} is not a private folder (mode 0700) of this user; remove it")
        with contextlib.suppress(FileNotFoundError):  # the last process to leave has removed the folder
            unbound.bind(str(path))
            path.chmod(0o600)
            return
    raise StoreUnavailable(f"no bus at {path.parent}: another process keeps removing the folder")


def _list_peers(folder: Path) -> list[str]:
    """Return the names of existing sockets, and remove those that never became ready."""
    names: list[str] = []
    for path in [*folder.iterdir()]:
        with contextlib.suppress(FileNotFoundError):  # a process has just left
            found = path.lstat()
            if not stat.S_ISSOCK(found.st_mode):
                continue
            if is_process_name(path.name):
                names.append(path.name)
            elif time.time() - found.st_mtime > _UNREADY_MAX_AGE:
                path.unlink()
    return names


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection
