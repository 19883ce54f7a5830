"""A bus on Unix sockets, for processes of one machine and one user that share a file.

Each process has a socket in a folder that follows from the file's place and from the identity of the store in it: a new
file in the place of a deleted one is another deployment. A socket has the name of its process. Who joins puts
its own there first and dials all others then, so of two that join at once one at least finds the other; who is dialled
dials back. So everybody has a line to everybody, and when a process ends, however that is, all others see their lines
to it end.

A socket at which nobody listens is what a dead process has left, and whoever finds it removes it. For the same reason
no socket has its name before it listens. The folder is its owner's alone, and goes with the last one who leaves.

All that goes over a line is a signed frame (`frames.py`), the hello included, which is for the process that is dialled.

When a line ends, both sides see that, and each tells its listener. A line that could not be dialled is seen by one side
only: so the next hello says that something was lost before it.
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

from trunkline.errors import MisuseError, StoreUnavailable, StoreUnusable
from trunkline.stores import validation
from trunkline.stores.bus import MAX_NAME_CHARACTERS, BusListener
from trunkline.stores.bus_listener import GuardedListener
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.signed_frames import ALL, Frame, FrameSigner, Rejection
from trunkline.stores.unix_bus.links import IncomingLink, OutgoingLink, add_length_prefix

__all__ = ["UnixBus", "socket_folder"]

_MAX_PATH_BYTES: Final = 103  # bytes that a socket's path may have everywhere; on Linux it is some more
_UNREADY_PREFIX: Final = "+"  # before the name of a socket that does not listen yet
_UNREADY_MAX_AGE: Final = 60.0  # seconds after which one that still does not never will
_TEMPORARY: Final = Path("/tmp")  # noqa: S108 - not what the environment says: all processes have to find the same one
_ID: Final = 8  # letters of an identity: it only has to differ from that of a file which was there before
_BACKLOG: Final = 1024
PEER_TIMEOUT: Final = 2.0  # seconds that who joins waits for those that do not answer, and who leaves for slow readers
LOSS_REPORT_INTERVAL: Final = (
    0.2  # seconds between two times that one is told that somebody who is there cannot be dialled
)
_ATTEMPTS: Final = 10
_HELLO_AFTER_LOSS: Final = b"a"  # in a hello: its sender has reported the receiver as lost since the hello before


def socket_folder(file: Path, identity: StoreIdentity) -> Path:
    """Where processes that share a file meet: beside it, or in a folder of our own if that is too long for sockets."""
    file = file.resolve()
    beside = file.with_name(f"{file.name}-bus-{identity.id[:_ID]}")
    if len(os.fsencode(beside)) + len(f"/{_UNREADY_PREFIX}") + MAX_NAME_CHARACTERS <= _MAX_PATH_BYTES:
        return beside
    return _TEMPORARY / f"trunkline-{hashlib.blake2b(os.fsencode(beside), digest_size=12).hexdigest()}"


class UnixBus:
    """A way to the other processes that share a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder: Path
        self._signer: FrameSigner
        self._name = ""  # as long as it is not open
        self._listener = GuardedListener()
        self._closed = False
        self._socket_paths: list[Path] = []  # of our socket
        self._server: asyncio.AbstractServer | None = None
        self._peers: dict[str, OutgoingLink | None] = {}  # None: no line for now
        self._incoming: dict[str, IncomingLink] = {}
        self._links: set[IncomingLink | OutgoingLink] = set()  # that have not ended
        self._dial_tasks: set[asyncio.Task[None]] = set()
        self._unannounced_losses: set[str] = set()  # reported since they were dialled last, and may not know it
        self._flush_scheduled = False

    # --- from open to closed ---------------------------------------------------------------------

    async def open(self, name: str, ears: BusListener, identity: StoreIdentity) -> None:
        """Puts a socket into the folder, and dials all others there."""
        validation.check_process_name(name)
        if self._closed:
            raise StoreUnavailable(f"the bus of {self._file} is closed")
        if self._name:
            raise MisuseError(f"the bus of {self._file} is open already")
        self._name = name
        self._folder, self._signer = socket_folder(self._file, identity), FrameSigner(identity, name)
        self._listener.open(ears)
        try:
            await self._listen()
            await self._dial_peers()
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise StoreUnavailable(f"no bus at {self._folder}: {error.strerror or error}") from error
            raise

    async def _listen(self) -> None:
        hidden, place = self._folder / f"{_UNREADY_PREFIX}{self._name}", self._folder / self._name
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _bind(bound, hidden)
            self._socket_paths = [hidden, place]
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(self._accept, sock=bound, backlog=_BACKLOG)
        except BaseException:
            bound.close()
            raise
        hidden.rename(place)

    async def _dial_peers(self) -> None:
        """Dials all that are there, and waits for their answers; not for ever, since one may be stopped."""
        for found in _list_peers(self._folder):
            if found not in {self._name, *self._peers}:
                self._dial(found)
        dialled = [link for link in self._peers.values() if link is not None]
        if dialled:
            await asyncio.wait([link.answered for link in dialled], timeout=PEER_TIMEOUT)
        for link in dialled:
            if not link.welcomed and link.to in self._peers:
                self._listener.met(link.to)

    async def close(self) -> None:
        """Takes the socket away, sends what is left to those who read, and hangs up."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        for place in self._socket_paths:
            place.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        if self._dial_tasks:
            await asyncio.wait(self._dial_tasks)
        self._flush()
        await self._close_links()
        if self._socket_paths:
            with contextlib.suppress(OSError):  # somebody else is there
                self._folder.rmdir()

    async def _close_links(self) -> None:
        await asyncio.sleep(0)  # what was accepted by now has its line then; and uvloop closes on the next turn
        for line in [*self._links]:
            line.close()
        for _ in range(2):
            if lines := [*self._links]:
                await asyncio.wait([line.ended for line in lines], timeout=PEER_TIMEOUT)
            for line in lines:
                line.abort()

    # --- sending ---------------------------------------------------------------------------------

    def send(self, to: str, message: bytes) -> bool:
        """Sends a message to one process."""
        self._check(message)
        if self._closed:
            return True
        link = self._peers.get(to) or self._dial(to)
        if link is None:
            return False
        self._add(link, add_length_prefix(self._signer.sign(to, message)))
        return True

    def publish(self, message: bytes) -> None:
        """Sends a message to all."""
        self._check(message)
        if self._closed:
            return
        links = [self._peers[name] or self._dial(name) for name in [*self._peers]]
        frame = add_length_prefix(self._signer.sign(ALL, message))  # after those that say hello
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
        """Waits for those who read slowly."""
        self._flush()
        while slow := [link.drained for link in self._peers.values() if link is not None and link.drained is not None]:
            await asyncio.wait(slow)

    def _check(self, message: bytes) -> None:
        validation.check_message(message)
        if not self._name:
            raise MisuseError(f"the bus of {self._file} is not open yet")

    # --- lines -----------------------------------------------------------------------------------

    def _dial(self, name: str) -> OutgoingLink | None:
        """A line to a process; None if nobody is there. A Unix socket says so at once."""
        validation.check_process_name(name)
        place = self._folder / name
        hello = self._signer.sign(name, _HELLO_AFTER_LOSS if name in self._unannounced_losses else b"")
        link = OutgoingLink(name, hello, on_welcome=self._listener.met, on_lost=self._outgoing_lost)
        self._unannounced_losses.discard(name)
        try:
            dialled = _connect(place)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self._peers.pop(name, None)
            if isinstance(error, ConnectionRefusedError):
                place.unlink(missing_ok=True)
            return None
        except OSError:  # too many wait for it already, or we have too much open
            link.fail_later(LOSS_REPORT_INTERVAL)
        else:
            task = asyncio.get_running_loop().create_task(self._attach(link, dialled))
            self._dial_tasks.add(task)
            task.add_done_callback(self._dial_tasks.discard)
        self._peers[name] = link
        self._links.add(link)
        return link

    @staticmethod
    async def _attach(link: OutgoingLink, dialled: socket.socket) -> None:
        try:
            # Not create_unix_connection: when the first write fails, uvloop closes the descriptor without telling the
            # socket object, which closes the number again later, whatever it stands for by then.
            await asyncio.get_running_loop().connect_accepted_socket(lambda: link, dialled)
        except OSError:
            dialled.close()
            link.connection_lost(None)

    def _outgoing_lost(self, link: OutgoingLink) -> None:
        """A line that we have dialled has ended."""
        self._links.discard(link)
        if self._peers.get(link.to) is link:
            self._peers[link.to] = None
        self._unannounced_losses.add(link.to)
        self._listener.lost(link.to)
        if not self._closed and link.welcomed and self._peers.get(link.to, link) is None:
            self._dial(link.to)

    def _accept(self) -> IncomingLink:
        line = IncomingLink(
            verify=self._verify,
            on_hello=self._hello_received,
            on_message=self._listener.heard,
            on_lost=self._incoming_lost,
        )
        self._links.add(line)
        return line

    def _verify(self, sender: str, data: bytes) -> Frame | None:
        """Return the frame that came over a line of a process, or over a new line; None if it is dropped."""
        frame = self._signer.verify(data)
        if isinstance(frame, Frame) and (frame.sender != sender if sender else frame.for_all):
            frame = Rejection.MISDIRECTED
        if isinstance(frame, Rejection):
            self._listener.rejected(frame, str(self._folder))
            return None
        return frame

    def _hello_received(self, line: IncomingLink, hello: bytes) -> None:
        """Another process has dialled us. Of several lines of its own, the last one counts: it has given up the others,
        and what may still come over them would be out of its order. (The hello of an earlier one is rejected.)"""
        name, known = line.sender, self._incoming.get(line.sender)
        if self._closed:
            line.abort()
            return
        self._incoming[name] = line
        if known is not None:
            known.abort()
        if known is not None or hello == _HELLO_AFTER_LOSS:
            self._listener.lost(name)
        self._listener.met(name)
        if not self._closed and self._peers.get(name) is None:
            self._dial(name)
        line.welcome()

    def _incoming_lost(self, line: IncomingLink) -> None:
        """A line that we were dialled by has ended."""
        self._links.discard(line)
        if self._incoming.get(line.sender) is line:
            del self._incoming[line.sender]
            self._listener.lost(line.sender)


# --- sockets -----------------------------------------------------------------------------------------


def _bind(unbound: socket.socket, path: Path) -> None:
    """Makes a socket's file in a folder that is ours alone."""
    for _ in range(_ATTEMPTS):
        _make_folder(path.parent)
        with contextlib.suppress(FileNotFoundError):  # the last one who left has taken the folder with it
            unbound.bind(str(path))
            path.chmod(0o600)
            return
    raise StoreUnavailable(f"no bus at {path.parent}: somebody removes the folder")


def _make_folder(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    with contextlib.suppress(FileNotFoundError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StoreUnusable(f"{folder} is not a folder that is ours alone (0700); remove it")


def _list_peers(folder: Path) -> list[str]:
    """The names of those that are there. What has never got a name is removed."""
    names: list[str] = []
    for place in [*folder.iterdir()]:
        with contextlib.suppress(FileNotFoundError):  # somebody has just left
            found = place.lstat()
            if not stat.S_ISSOCK(found.st_mode):
                continue
            if validation.is_process_name(place.name):
                names.append(place.name)
            elif time.time() - found.st_mtime > _UNREADY_MAX_AGE:
                place.unlink()
    return names


def _connect(path: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.setblocking(False)
        line.connect(str(path))
    except BaseException:
        line.close()
        raise
    return line
