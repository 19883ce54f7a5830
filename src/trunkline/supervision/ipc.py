"""Messages between the supervisor and a worker, over a socket pair.

A frame is a length, a one-byte kind and a body. To a worker: `C`, a connection as a file descriptor, with its ticket
and the time of dispatch; `T`, the states of all workers; `S`, the statuses of the supervisor's children; `E`, the
request to shut down; `R`, the request to load certificate files again; `L`, the request to load the program's code
again. From a worker: `B`, its state and the number of its open connections; `K`, it has accepted a connection, and the
number of its open connections; `N`, it has declined one.
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
    "CHILDREN",
    "CODE",
    "CONNECTION",
    "DECLINED",
    "RELOAD",
    "SHUTDOWN",
    "STATE",
    "TABLE",
    "IpcChannel",
    "decode_acceptance",
    "decode_state",
    "decode_ticket",
    "encode_acceptance",
    "encode_state",
    "encode_ticket",
]

CONNECTION: Final = b"C"
TABLE: Final = b"T"
CHILDREN: Final = b"S"
SHUTDOWN: Final = b"E"
RELOAD: Final = b"R"
CODE: Final = b"L"
STATE: Final = b"B"
ACCEPTED: Final = b"K"
DECLINED: Final = b"N"

_LENGTH: Final = struct.Struct("!I")
_TICKET: Final = struct.Struct("!Qd")
_ACCEPTANCE: Final = struct.Struct("!QI")
_READ_SIZE: Final = 64 * 1024
_MAX_DESCRIPTORS: Final = 16  # per read
_CLOEXEC_FLAG: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # set atomically where the platform supports it
_ANCILLARY_SIZE: Final = (
    socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0
)


def encode_ticket(ticket: int, at: float = 0.0) -> bytes:
    """Encode a ticket and the time of its dispatch."""
    return _TICKET.pack(ticket, at)


def decode_ticket(body: bytes) -> tuple[int, float]:
    """Decode a ticket and the time of its dispatch."""
    return _TICKET.unpack(body)


def encode_acceptance(ticket: int, connections: int) -> bytes:
    """Encode the ticket of an accepted connection, and the number of open connections including it."""
    return _ACCEPTANCE.pack(ticket, connections)


def decode_acceptance(body: bytes) -> tuple[int, int]:
    """Decode the ticket of an accepted connection, and the number of open connections including it."""
    return _ACCEPTANCE.unpack(body)


def encode_state(state: str, connections: int) -> bytes:
    """Encode the state of a worker and the number of its open connections."""
    return f"{state} {connections}".encode()


def decode_state(body: bytes) -> tuple[str, int]:
    """Decode the state of a worker and the number of its open connections."""
    state, connections = body.decode().split()
    return state, int(connections)


class IpcChannel:
    """One end of the socket pair. No method blocks."""

    def __init__(self, stop: socket.socket) -> None:
        stop.setblocking(False)
        self.socket = stop
        self._unsent = b""
        self._unparsed = b""
        self._descriptors: deque[int | None] = deque()  # None: lost, because this process had no free descriptor
        self.closed_by_peer = False

    @property
    def flushed(self) -> bool:
        """Whether everything was sent."""
        return not self._unsent

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Queue a frame and send as much as possible."""
        self._unsent += _encode_frame(kind, body)
        self.flush()

    def send_descriptors(self, kind: bytes, body: bytes, descriptors: Sequence[int]) -> bool:
        """Send a frame with descriptors; return False, having sent nothing, if that is not possible now."""
        self.flush()
        if self._unsent or self.closed_by_peer:
            return False
        frame = _encode_frame(kind, body)
        try:
            sent = socket.send_fds(self.socket, [frame], descriptors)
        except OSError:  # the peer does not read or is gone, which `receive` detects
            return False
        self._unsent = frame[sent:]
        return True

    def flush(self) -> None:
        """Send as much as possible."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:  # the peer is gone
            self._unsent = b""

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the kind and body of each frame that has arrived."""
        while self._read_socket():
            yield from self._decode_frames()

    def take_descriptor(self) -> int | None:
        """Return the descriptor of the current frame, which the caller then owns; None if the system could not pass
        it because this process had no free descriptor."""
        return self._descriptors.popleft() if self._descriptors else None

    def _read_socket(self) -> bool:
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(_READ_SIZE, _ANCILLARY_SIZE, _CLOEXEC_FLAG)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data, ancillary, flags = b"", [], 0
        count = len(self._descriptors)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
                self._descriptors.extend(descriptors)
        if flags & socket.MSG_CTRUNC and len(self._descriptors) == count:
            self._descriptors.append(None)  # a placeholder: otherwise the next frame's descriptor would take its place
        self.closed_by_peer = self.closed_by_peer or not data
        self._unparsed += data
        return bool(data)

    def _decode_frames(self) -> Iterator[tuple[bytes, bytes]]:
        while len(self._unparsed) >= _LENGTH.size:
            stop = _LENGTH.size + _LENGTH.unpack_from(self._unparsed)[0]
            if len(self._unparsed) < stop:
                return
            frame, self._unparsed = self._unparsed[_LENGTH.size : stop], self._unparsed[stop:]
            yield frame[:1], frame[1:]

    def close(self) -> None:
        """Close the socket and unclaimed descriptors."""
        self.socket.close()
        for descriptor in self._descriptors:
            if descriptor is not None:
                os.close(descriptor)
        self._descriptors.clear()


def _encode_frame(kind: bytes, body: bytes) -> bytes:
    return b"".join((_LENGTH.pack(len(body) + 1), kind, body))
