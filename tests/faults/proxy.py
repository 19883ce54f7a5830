"""A proxy in front of a server that breaks connections on command.

    async with proxied(server_port) as proxy:
        proxy.cut(b"tools/call", after=100)       # the response to the next such request ends after 100 bytes
        proxy.stall()                             # nothing passes any more, and every socket stays open

It copies bytes and does not parse HTTP. It only searches the bytes of clients for the trigger of a fault.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

READ = 1 << 16


class _Cut:
    """A response that breaks off."""

    def __init__(self, asked: bytes, after: int, *, reset: bool) -> None:
        self.asked = asked
        self.left = after
        self.reset = reset


class Proxy:
    """The address that clients connect to."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.lines: set[_Connection] = set()
        self.answered = 0  # bytes after the trigger of `measure`
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.refusing = False
        self.pending: _Cut | None = None
        self.measured: bytes | None = None
        self.holding: bytes | None = None
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client to the server."""
        there = None if self.refusing else await self._reach()
        if there is None:
            writer.transport.abort()
            return
        line = _Connection(self, writer, there[1])
        self.lines.add(line)
        try:
            await asyncio.gather(line.forward(reader), line.back(there[0]))
        finally:
            self.lines.discard(line)
            line.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", self._target)
        return None

    # --- faults --------------------------------------------------------------------------------

    def cut(self, asked: bytes, *, after: int, reset: bool = False) -> Self:
        """Close the connection of the next request with these bytes, after so many bytes of its response."""
        self.pending = _Cut(asked, after, reset=reset)
        return self

    def measure(self, asked: bytes) -> Self:
        """Count the bytes after the next request with these bytes, on its connection."""
        self.measured, self.answered = asked, 0
        return self

    def stall(self) -> Self:
        """Pass nothing in either direction; bytes stay in the sockets."""
        self.flowing.clear()
        return self

    def hold(self, asked: bytes) -> Self:
        """Pass nothing more from the next client that sends these bytes, starting with them."""
        self.holding = asked
        return self

    def go_on(self) -> Self:
        """Resume."""
        self.flowing.set()
        for line in self.lines:
            line.flowing.set()
        return self

    def half_open(self) -> Self:
        """Close all connections to the server without informing the client."""
        for line in self.lines:
            line.close_server()
        return self

    def reset(self) -> Self:
        """Reset all connections to clients."""
        for line in self.lines:
            line.close(reset=True)
        return self


class _Connection:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._cut: _Cut | None = None
        self._counted = False
        self._left = False  # the server
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def forward(self, reader: asyncio.StreamReader) -> None:
        """Copy from the client to the server."""
        with contextlib.suppress(OSError):
            while data := await reader.read(READ):
                self._look(data)
                await self._proxy.flowing.wait()
                await self.flowing.wait()
                self._server.write(data)
                await self._server.drain()
        self._server.close()

    def _look(self, data: bytes) -> None:
        proxy = self._proxy
        if proxy.pending is not None and proxy.pending.asked in data:
            self._cut, proxy.pending = proxy.pending, None
        if proxy.measured is not None and proxy.measured in data:
            self._counted, proxy.measured = True, None
        if proxy.holding is not None and proxy.holding in data:
            self.flowing.clear()
            proxy.holding = None

    async def back(self, reader: asyncio.StreamReader) -> None:
        """Copy from the server to the client."""
        with contextlib.suppress(OSError):
            while data := await reader.read(READ):
                await self._proxy.flowing.wait()
                self._proxy.answered += len(data) if self._counted else 0
                self._client.write(data if self._cut is None else data[: self._cut.left])
                await self._client.drain()
                if self._cut is not None:
                    self._cut.left -= len(data)
                    if self._cut.left <= 0:
                        self.close(reset=self._cut.reset)
                        return
        if not self._left:
            self._client.close()

    def close_server(self) -> None:
        """Close the connection to the server, but not that to the client."""
        self._left = True
        self._server.transport.abort()

    def close(self, *, reset: bool = False) -> None:
        """Close both sides."""
        bound = self._client.get_extra_info("socket")
        if reset and bound is not None and bound.fileno() >= 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._client.transport.abort()
        self._client.close()
        self._server.transport.abort()


@asynccontextmanager
async def proxied(target: int) -> AsyncIterator[Proxy]:
    """A proxy in front of a port of this machine."""
    proxy = Proxy(target)
    async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as listening:
        proxy.port = listening.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            proxy.go_on()
            for line in list(proxy.lines):
                line.close(reset=True)
            while proxy.lines:
                await asyncio.sleep(0)
