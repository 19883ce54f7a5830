"""A proxy in front of a server, on which lines break as a test says and when it says it.

    async with proxied(server_port) as proxy:
        proxy.cut(b"tools/call", after=100)       # the answer to the next such request ends after 100 bytes
        proxy.stall()                             # nothing passes any more, and every socket stays open

It copies bytes and knows nothing of HTTP. What a client sends is only looked through for what a fault waits for.
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
    """An answer that breaks off."""

    def __init__(self, asked: bytes, after: int, *, reset: bool) -> None:
        self.asked = asked
        self.left = after
        self.reset = reset


class Proxy:
    """Where clients connect instead."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.lines: set[_Line] = set()
        self.answered = 0  # bytes that followed what `measure` waits for
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.refusing = False
        self.pending: _Cut | None = None
        self.measured: bytes | None = None
        self.holding: bytes | None = None
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Joins a client to the server."""
        there = None if self.refusing else await self._reach()
        if there is None:
            writer.transport.abort()
            return
        line = _Line(self, writer, there[1])
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

    # --- what goes wrong -----------------------------------------------------------------------

    def cut(self, asked: bytes, *, after: int, reset: bool = False) -> Self:
        """Ends the line of the next request that has these bytes, once so many of its answer have passed."""
        self.pending = _Cut(asked, after, reset=reset)
        return self

    def measure(self, asked: bytes) -> Self:
        """Counts what follows the next request that has these bytes, on its line."""
        self.measured, self.answered = asked, 0
        return self

    def stall(self) -> Self:
        """Passes nothing on, either way; what is sent lies in the sockets."""
        self.flowing.clear()
        return self

    def hold(self, asked: bytes) -> Self:
        """Passes nothing on from the next client that sends these bytes, from them on."""
        self.holding = asked
        return self

    def go_on(self) -> Self:
        """Passes on again."""
        self.flowing.set()
        for line in self.lines:
            line.flowing.set()
        return self

    def half_open(self) -> Self:
        """Ends every line towards the server, of which the client hears nothing."""
        for line in self.lines:
            line.leave_server()
        return self

    def reset(self) -> Self:
        """Ends every line towards the client, with a reset."""
        for line in self.lines:
            line.close(reset=True)
        return self


class _Line:
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
        """From the client to the server."""
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
        """From the server to the client."""
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

    def leave_server(self) -> None:
        """Hangs up on the server, and keeps the client."""
        self._left = True
        self._server.transport.abort()

    def close(self, *, reset: bool = False) -> None:
        """Ends both sides."""
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
