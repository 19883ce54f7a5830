"""A client of HTTP/1.1 that sends bytes as they are, and reads responses strictly.

It uses a plain socket: a transport of asyncio drops what was received when a later write finds the connection reset, and a
server that refuses a request may well close the connection before the client has sent all of it.
"""

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

__all__ = ["Answer", "Connection", "parse_answers"]

STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) [\t -~]*\r\n")
FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r\n")
ABORT: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection, and leaves no port waiting
TURNS: Final = 3  # of the event loop, in which a server that shares it reads what was sent
READ_SIZE: Final = 1 << 16


class Answer(NamedTuple):
    """One response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Return the values of a header field, line by line."""
        return [value for known, value in self.headers if known == name]

    @property
    def final(self) -> bool:
        """Whether no other response to the same request follows."""
        return self.status >= 200 or self.status == 101

    @property
    def closes(self) -> bool:
        """Whether the response says that the connection ends behind it."""
        options = ",".join(self.values("connection")).lower().split(",")
        return "close" in [option.strip() for option in options]

    @property
    def message_id(self) -> Any:
        """The id of the JSON-RPC message in the body, which may be an event stream; None if there is none."""
        found = re.search(rb'\{"jsonrpc".*\}', self.body)
        return None if found is None else json.loads(found[0]).get("id")


class Incomplete(Exception):
    """More bytes are needed."""


def parse_answers(data: bytes, *, head: bool = False, ended: bool = False) -> list[Answer]:
    """Return the complete responses in the received bytes. The first final one has no body if `head` is true."""
    answers: list[Answer] = []
    at = 0
    try:
        while at < len(data):
            answer, at = _parse_answer(data, at, head=head and all(each.status < 200 for each in answers), ended=ended)
            answers.append(answer)
            if answer.status == 101:
                break
    except Incomplete:
        assert not ended, f"the last response is incomplete: {data[at:]!r}"
    return answers


def _parse_answer(data: bytes, at: int, *, head: bool, ended: bool) -> tuple[Answer, int]:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        raise Incomplete
    first = STATUS_LINE.match(data, at)
    assert first is not None, f"no status line: {data[at : at + 100]!r}"
    headers: list[tuple[str, str]] = []
    at = first.end()
    while at < end + 2:
        field = FIELD.match(data, at)
        assert field is not None, f"no header field: {data[at : at + 100]!r}"
        headers.append((field[1].decode().lower(), field[2].decode("latin-1")))
        at = field.end()
    answer = Answer(int(first[1]), headers, b"")
    at += 2
    lengths, codings = answer.values("content-length"), answer.values("transfer-encoding")
    if head or answer.status in {204, 304} or answer.status < 200:
        return answer, at
    if codings:
        assert (codings, lengths) == (["chunked"], []), headers
        body, at = _parse_chunks(data, at)
    elif lengths:
        assert len(lengths) == 1, headers
        body = _take(data, at, int(lengths[0]))
        at += len(body)
    elif ended:
        body, at = data[at:], len(data)
    else:
        raise Incomplete
    return answer._replace(body=body), at


def _parse_chunks(data: bytes, at: int) -> tuple[bytes, int]:
    pieces: list[bytes] = []
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            raise Incomplete
        piece = _take(data, end + 2, int(data[at:end], 16) + 2)
        assert piece.endswith(b"\r\n"), f"a chunk does not end with its size: {piece!r}"
        at = end + 2 + len(piece)
        pieces.append(piece[:-2])
        if len(piece) == 2:
            return b"".join(pieces), at


def _take(data: bytes, at: int, size: int) -> bytes:
    if len(data) < at + size:
        raise Incomplete
    return data[at : at + size]


class Connection:
    """A connection to a server on this machine."""

    def __init__(self, port: int, *, head: bool = False) -> None:
        self._port = port
        self._head = head
        self._socket = socket.socket()
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self.ended = False  # the server has closed the connection, or reset it

    async def __aenter__(self) -> Self:
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        try:
            await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def send(self, *pieces: bytes) -> None:
        """Send bytes piece by piece, as far as the server accepts them. A server on this loop reads each by itself."""
        if len(pieces) > 1:
            await turn(2 * TURNS)  # the server accepts the connection
        try:
            for piece in pieces:
                await self._loop.sock_sendall(self._socket, piece)
                if len(pieces) > 1:
                    await turn(TURNS)
        except OSError:  # it has refused what was sent before
            pass

    def half_close(self) -> None:
        """Send no more."""
        with contextlib.suppress(OSError):  # the server has reset the connection
            self._socket.shutdown(socket.SHUT_WR)

    async def receive(self) -> None:
        """Wait for more bytes, or for the end of the connection."""
        try:
            data = await self._loop.sock_recv(self._socket, READ_SIZE)
        except OSError:
            data = b""
        self._received += data
        self.ended = not data

    async def receive_all(self) -> list[Answer]:
        """Wait for the end of the connection, and return all responses."""
        while not self.ended:
            await self.receive()
        return self.answers

    @property
    def answers(self) -> list[Answer]:
        """The responses that have arrived."""
        return parse_answers(self._received, head=self._head, ended=self.ended)


async def turn(times: int) -> None:
    """Let the event loop turn."""
    for _ in range(times):
        await asyncio.sleep(0)


def cut(data: bytes, offsets: Iterable[int]) -> list[bytes]:
    """Return bytes in pieces, cut at the given offsets."""
    edges = [0, *offsets, len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]
