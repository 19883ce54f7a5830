"""A load balancer: each new connection goes to the next of several servers, and carries one response.

It parses only the first line of a response, and adds that the connection will be closed. So requests of one session
reach one process after another, and no client sends anything on a connection that is about to close.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

__all__ = ["Forwarder", "forwarded"]

_READ = 1 << 16
_PAUSE = 0.05  # seconds between two attempts to connect
_LAST = b"connection: close\r\n"


class Forwarder:
    """The address that clients connect to."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.port = 0
        self.avoided: set[int] = set()  # ports of processes that are known not to respond
        self._ports = ports
        self._turns = count()
        self._lines: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client to a server."""
        line = asyncio.ensure_future(self._join(reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await self._next()
        try:
            ways = [asyncio.ensure_future(way) for way in (_pass(reader, there[1]), _back(there[0], writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
        finally:
            writer.close()
            there[1].transport.abort()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the next server that accepts one; if none does, to the first that comes back."""
        while True:
            for _ in self._ports:
                port = self._ports[next(self._turns) % len(self._ports)]
                if port not in self.avoided:
                    with contextlib.suppress(OSError):
                        return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(_PAUSE)

    async def close(self) -> None:
        """Close all connections."""
        for line in list(self._lines):
            line.cancel()
        if self._lines:
            await asyncio.wait(list(self._lines))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ):
            writer.write(data)
            await writer.drain()


async def _back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Mark a response as the only one."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        writer.write(await reader.readuntil(b"\r\n") + _LAST)
        await _pass(reader, writer)


@asynccontextmanager
async def forwarded(*ports: int) -> AsyncIterator[Forwarder]:
    """A forwarder to some ports of this machine."""
    forwarder = Forwarder(ports)
    async with await asyncio.start_server(forwarder.accept, "127.0.0.1", 0, backlog=1000) as listening:
        forwarder.port = listening.sockets[0].getsockname()[1]
        try:
            yield forwarder
        finally:
            await forwarder.close()
