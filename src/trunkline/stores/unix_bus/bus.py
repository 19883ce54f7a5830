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
from trunkline.stores.bus import MOST_NAME_CHARACTERS, Ears
from trunkline.stores.bus_listener import Hearing
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.signed_frames import ALL, Frame, FrameSigner, Rejection
from trunkline.stores.unix_bus.links import Incoming, Outgoing, framed

__all__ = ["UnixBus", "folder_for"]

_MOST_PATH: Final = 103  # bytes that a socket's path may have everywhere; on Linux it is some more
_NOT_YET: Final = "+"  # before the name of a socket that does not listen yet
_FORGOTTEN: Final = 60.0  # seconds after which one that still does not never will
_TEMPORARY: Final = Path("/tmp")  # noqa: S108 - not what the environment says: all processes have to find the same one
_ID: Final = 8  # letters of an identity: it only has to differ from that of a file which was there before
_BACKLOG: Final = 1024
PATIENCE: Final = 2.0  # seconds that who joins waits for those that do not answer, and who leaves for slow readers
OFTEN: Final = 0.2  # seconds between two times that one is told that somebody who is there cannot be dialled
_ATTEMPTS: Final = 10
_AGAIN: Final = b"a"  # in a hello: its sender has reported the receiver as lost since the hello before


def folder_for(file: Path, identity: StoreIdentity) -> Path:
    """Where processes that share a file meet: beside it, or in a folder of our own if that is too long for sockets."""
    file = file.resolve()
    beside = file.with_name(f"{file.name}-bus-{identity.id[:_ID]}")
    if len(os.fsencode(beside)) + len(f"/{_NOT_YET}") + MOST_NAME_CHARACTERS <= _MOST_PATH:
        return beside
    return _TEMPORARY / f"trunkline-{hashlib.blake2b(os.fsencode(beside), digest_size=12).hexdigest()}"


class UnixBus:
    """A way to the other processes that share a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder: Path
        self._signer: FrameSigner
        self._name = ""  # as long as it is not open
        self._ears = Hearing()
        self._closed = False
        self._places: list[Path] = []  # of our socket
        self._server: asyncio.AbstractServer | None = None
        self._peers: dict[str, Outgoing | None] = {}  # None: no line for now
        self._incoming: dict[str, Incoming] = {}
        self._lines: set[Incoming | Outgoing] = set()  # that have not ended
        self._dialling: set[asyncio.Task[None]] = set()
        self._lost: set[str] = set()  # reported since they were dialled last, and may not know it
        self._flushing = False

    # --- from open to closed ---------------------------------------------------------------------

    async def open(self, name: str, ears: Ears, identity: StoreIdentity) -> None:
        """Puts a socket into the folder, and dials all others there."""
        validation.check_process(name)
        if self._closed:
            raise StoreUnavailable(f"the bus of {self._file} is closed")
        if self._name:
            raise MisuseError(f"the bus of {self._file} is open already")
        self._name = name
        self._folder, self._signer = folder_for(self._file, identity), FrameSigner(identity, name)
        self._ears.open(ears)
        try:
            await self._listen()
            await self._meet()
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise StoreUnavailable(f"no bus at {self._folder}: {error.strerror or error}") from error
            raise

    async def _listen(self) -> None:
        hidden, place = self._folder / f"{_NOT_YET}{self._name}", self._folder / self._name
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _bind(bound, hidden)
            self._places = [hidden, place]
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(self._called, sock=bound, backlog=_BACKLOG)
        except BaseException:
            bound.close()
            raise
        hidden.rename(place)

    async def _meet(self) -> None:
        """Dials all that are there, and waits for their answers; not for ever, since one may be stopped."""
        for found in _sockets(self._folder):
            if found not in {self._name, *self._peers}:
                self._dial(found)
        dialled = [link for link in self._peers.values() if link is not None]
        if dialled:
            await asyncio.wait([link.answered for link in dialled], timeout=PATIENCE)
        for link in dialled:
            if not link.welcomed and link.to in self._peers:
                self._ears.met(link.to)

    async def close(self) -> None:
        """Takes the socket away, sends what is left to those who read, and hangs up."""
        if self._closed:
            return
        self._closed = True
        self._ears.close()
        for place in self._places:
            place.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        if self._dialling:
            await asyncio.wait(self._dialling)
        self._flush()
        await self._hang_up()
        if self._places:
            with contextlib.suppress(OSError):  # somebody else is there
                self._folder.rmdir()

    async def _hang_up(self) -> None:
        await asyncio.sleep(0)  # what was accepted by now has its line then; and uvloop closes on the next turn
        for line in [*self._lines]:
            line.close()
        for _ in range(2):
            if lines := [*self._lines]:
                await asyncio.wait([line.ended for line in lines], timeout=PATIENCE)
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
        self._add(link, framed(self._signer.sign(to, message)))
        return True

    def publish(self, message: bytes) -> None:
        """Sends a message to all."""
        self._check(message)
        if self._closed:
            return
        links = [self._peers[name] or self._dial(name) for name in [*self._peers]]
        frame = framed(self._signer.sign(ALL, message))  # after those that say hello
        for link in links:
            if link is not None:
                self._add(link, frame)

    def _add(self, link: Outgoing, frame: bytes) -> None:
        link.add(frame)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        for link in self._peers.values():
            if link is not None:
                link.flush()

    async def sent(self) -> None:
        """Waits for those who read slowly."""
        self._flush()
        while slow := [link.relief for link in self._peers.values() if link is not None and link.relief is not None]:
            await asyncio.wait(slow)

    def _check(self, message: bytes) -> None:
        validation.check_message(message)
        if not self._name:
            raise MisuseError(f"the bus of {self._file} is not open yet")

    # --- lines -----------------------------------------------------------------------------------

    def _dial(self, name: str) -> Outgoing | None:
        """A line to a process; None if nobody is there. A Unix socket says so at once."""
        validation.check_process(name)
        place = self._folder / name
        hello = self._signer.sign(name, _AGAIN if name in self._lost else b"")
        link = Outgoing(name, hello, met=self._ears.met, lost=self._bereft)
        self._lost.discard(name)
        try:
            dialled = _connected(place)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self._peers.pop(name, None)
            if isinstance(error, ConnectionRefusedError):
                place.unlink(missing_ok=True)
            return None
        except OSError:  # too many wait for it already, or we have too much open
            link.give_up(OFTEN)
        else:
            task = asyncio.get_running_loop().create_task(self._attach(link, dialled))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        self._peers[name] = link
        self._lines.add(link)
        return link

    @staticmethod
    async def _attach(link: Outgoing, dialled: socket.socket) -> None:
        try:
            # Not create_unix_connection: when the first write fails, uvloop closes the descriptor without telling the
            # socket object, which closes the number again later, whatever it stands for by then.
            await asyncio.get_running_loop().connect_accepted_socket(lambda: link, dialled)
        except OSError:
            dialled.close()
            link.connection_lost(None)

    def _bereft(self, link: Outgoing) -> None:
        """A line that we have dialled has ended."""
        self._lines.discard(link)
        if self._peers.get(link.to) is link:
            self._peers[link.to] = None
        self._lost.add(link.to)
        self._ears.lost(link.to)
        if not self._closed and link.welcomed and self._peers.get(link.to, link) is None:
            self._dial(link.to)

    def _called(self) -> Incoming:
        line = Incoming(verify=self._verify, greeted=self._greeted, heard=self._ears.heard, lost=self._left)
        self._lines.add(line)
        return line

    def _verify(self, sender: str, data: bytes) -> Frame | None:
        """Return the frame that came over a line of a process, or over a new line; None if it is dropped."""
        frame = self._signer.verify(data)
        if isinstance(frame, Frame) and (frame.sender != sender if sender else frame.for_all):
            frame = Rejection.MISDIRECTED
        if isinstance(frame, Rejection):
            self._ears.rejected(frame, str(self._folder))
            return None
        return frame

    def _greeted(self, line: Incoming, hello: bytes) -> None:
        """Another process has dialled us. Of several lines of its own, the last one counts: it has given up the others,
        and what may still come over them would be out of its order. (The hello of an earlier one is rejected.)"""
        name, known = line.sender, self._incoming.get(line.sender)
        if self._closed:
            line.abort()
            return
        self._incoming[name] = line
        if known is not None:
            known.abort()
        if known is not None or hello == _AGAIN:
            self._ears.lost(name)
        self._ears.met(name)
        if not self._closed and self._peers.get(name) is None:
            self._dial(name)
        line.welcome()

    def _left(self, line: Incoming) -> None:
        """A line that we were dialled by has ended."""
        self._lines.discard(line)
        if self._incoming.get(line.sender) is line:
            del self._incoming[line.sender]
            self._ears.lost(line.sender)


# --- sockets -----------------------------------------------------------------------------------------


def _bind(unbound: socket.socket, place: Path) -> None:
    """Makes a socket's file in a folder that is ours alone."""
    for _ in range(_ATTEMPTS):
        _make_folder(place.parent)
        with contextlib.suppress(FileNotFoundError):  # the last one who left has taken the folder with it
            unbound.bind(str(place))
            place.chmod(0o600)
            return
    raise StoreUnavailable(f"no bus at {place.parent}: somebody removes the folder")


def _make_folder(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    with contextlib.suppress(FileNotFoundError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StoreUnusable(f"{folder} is not a folder that is ours alone (0700); remove it")


def _sockets(folder: Path) -> list[str]:
    """The names of those that are there. What has never got a name is removed."""
    names: list[str] = []
    for place in [*folder.iterdir()]:
        with contextlib.suppress(FileNotFoundError):  # somebody has just left
            found = place.lstat()
            if not stat.S_ISSOCK(found.st_mode):
                continue
            if validation.is_process(place.name):
                names.append(place.name)
            elif time.time() - found.st_mtime > _FORGOTTEN:
                place.unlink()
    return names


def _connected(place: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.setblocking(False)
        line.connect(str(place))
    except BaseException:
        line.close()
        raise
    return line
