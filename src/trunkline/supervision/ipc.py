"""What a supervisor and a worker say to each other, over a pair of sockets: a length, a letter, and what goes with it.

To a worker: a connection with its ticket and the time (`C`, and a descriptor beside it), how all workers stand (`T`),
and that it shall end (`E`). From a worker: how it stands (`B`), and that it took something (`K`), or did not (`N`).
"""

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = [
    "ACCEPTED",
    "CONNECTION",
    "DECLINED",
    "SHUTDOWN",
    "STATE",
    "TABLE",
    "IpcChannel",
    "decode_ticket",
    "encode_ticket",
]

CONNECTION: Final = b"C"
TABLE: Final = b"T"
SHUTDOWN: Final = b"E"
STATE: Final = b"B"
ACCEPTED: Final = b"K"
DECLINED: Final = b"N"

_LENGTH: Final = struct.Struct("!I")
_TICKET: Final = struct.Struct("!Qd")
_READ_SIZE: Final = 64 * 1024
_MAX_DESCRIPTORS: Final = 16  # that one read may bring
_CLOEXEC_FLAG: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # from the very beginning, where that is known
_ANCILLARY_SIZE: Final = (
    socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0
)


def encode_ticket(ticket: int, at: float = 0.0) -> bytes:
    """A ticket, and when it was given out."""
    return _TICKET.pack(ticket, at)


def decode_ticket(body: bytes) -> tuple[int, float]:
    """The same, read."""
    return _TICKET.unpack(body)


class IpcChannel:
    """One end of the pair. It never waits."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self._unsent = b""
        self._unparsed = b""
        self._descriptors: deque[int | None] = deque()  # None: lost, since this process had none left
        self.closed_by_peer = False  # the other end is closed

    @property
    def flushed(self) -> bool:
        """Whether all that was said has left."""
        return not self._unsent

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Says something, as soon as the other end reads."""
        self._unsent += _encode_frame(kind, body)
        self.flush()

    def send_descriptors(self, kind: bytes, body: bytes, descriptors: Sequence[int]) -> bool:
        """Says something and passes descriptors on; False if that cannot be done now, and then nothing has left."""
        self.flush()
        if self._unsent or self.closed_by_peer:
            return False
        frame = _encode_frame(kind, body)
        try:
            sent = socket.send_fds(self.socket, [frame], descriptors)
        except OSError:  # nobody reads, or nobody is there: that is told elsewhere
            return False
        self._unsent = frame[sent:]
        return True

    def flush(self) -> None:
        """Sends what can be sent now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:  # nobody is there
            self._unsent = b""

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """What has been said since: kinds, and what goes with each."""
        while self._read_socket():
            yield from self._decode_frames()

    def take_descriptor(self) -> int | None:
        """The descriptor of the frame that is being read, for the caller to own; None if the system could not pass it
        on, since this process has no descriptor left."""
        return self._descriptors.popleft() if self._descriptors else None

    def _read_socket(self) -> bool:
        try:
            data, beside, flags, _ = self.socket.recvmsg(_READ_SIZE, _ANCILLARY_SIZE, _CLOEXEC_FLAG)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data, beside, flags = b"", [], 0
        passed = len(self._descriptors)
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                for descriptor in found:
                    os.set_inheritable(descriptor, False)
                self._descriptors.extend(found)
        if flags & socket.MSG_CTRUNC and len(self._descriptors) == passed:
            self._descriptors.append(None)  # keeps its place, or the next frame's would be taken for it
        self.closed_by_peer = self.closed_by_peer or not data
        self._unparsed += data
        return bool(data)

    def _decode_frames(self) -> Iterator[tuple[bytes, bytes]]:
        while len(self._unparsed) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._unparsed)[0]
            if len(self._unparsed) < end:
                return
            frame, self._unparsed = self._unparsed[_LENGTH.size : end], self._unparsed[end:]
            yield frame[:1], frame[1:]

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()
        for descriptor in self._descriptors:
            if descriptor is not None:
                os.close(descriptor)
        self._descriptors.clear()


def _encode_frame(kind: bytes, body: bytes) -> bytes:
    return b"".join((_LENGTH.pack(len(body) + 1), kind, body))
