"""Reads of files: in chunks, on a thread, within a budget of bytes in memory.

The size of a file is known before the read, so a file over the limit costs nothing. All reads of a server share one
budget. A read that fits the budget continues on its thread. Any other read leaves its thread and waits on the event
loop, in order of arrival, so large files do not block the threads of sync handlers.
"""

import asyncio
import io
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

from trunkline.rpc.threads import ThreadPool

__all__ = ["ByteBudget", "FileReader", "OpenFile", "read_chunks"]

_CHUNK_SIZE: Final = 256 * 1024  # bytes; other threads can run between two chunks


def read_chunks(descriptor: int, size: int) -> bytearray:
    """Read a file from its start: `size` bytes, or fewer if it ends before."""
    data = bytearray(size)
    filled = 0
    with io.FileIO(descriptor, closefd=False) as file, memoryview(data) as room:
        while filled < size:
            count = file.readinto(room[filled : filled + _CHUNK_SIZE])
            if not count:
                break
            filled += count
    del data[filled:]
    return data


class BudgetShare:
    """A share of a budget. It is returned once: after its use, or when it is abandoned unused."""

    def __init__(self, budget: "ByteBudget", size: int) -> None:
        self._budget = budget
        self._size = size
        self._lock = threading.Lock()
        self._started = False
        self._returned = False

    def start(self) -> bool:
        """Start to use the share; return False if it was abandoned."""
        with self._lock:
            self._started = not self._returned
            return self._started

    def finish(self) -> None:
        """Return the share after use."""
        self._budget.give_back(self._size)

    def abandon(self) -> None:
        """Return the share, unless its use has started: then `finish` returns it."""
        with self._lock:
            if self._started or self._returned:
                return
            self._returned = True
        self._budget.give_back(self._size)


class ByteBudget:
    """A budget of bytes. Shares are taken on any thread; waiting for a share happens on the event loop, in order."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = capacity
        self._lock = threading.Lock()
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    def try_take(self, size: int) -> bool:
        """Take a share, unless the budget is exhausted or reads are waiting. Return it with `give_back`."""
        size = min(size, self._capacity)  # a larger file uses the whole budget
        with self._lock:
            if self._waiters or size > self._free:
                return False
            self._free -= size
            return True

    async def take(self, size: int) -> BudgetShare:
        """Wait for a share, after the reads that already wait."""
        size = min(size, self._capacity)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiters.append((waiter, size))
        self.give_back(0)  # the budget may suffice by now
        try:
            await waiter
        except asyncio.CancelledError:
            self._stop_waiting(waiter, size)
            raise
        return BudgetShare(self, size)

    def _stop_waiting(self, waiter: "asyncio.Future[None]", size: int) -> None:
        with self._lock:
            waited = (waiter, size) in self._waiters
            if waited:
                self._waiters.remove((waiter, size))
        self.give_back(0 if waited else size)

    def give_back(self, size: int) -> None:
        """Return a share, and grant shares to the next waiters."""
        size = min(size, self._capacity)
        granted: list[tuple[asyncio.Future[None], int]] = []
        with self._lock:
            self._free += size
            while self._waiters and self._waiters[0][1] <= self._free:
                granted.append(self._waiters.popleft())
                self._free -= granted[-1][1]
        for waiter, granted_size in granted:
            try:
                waiter.get_loop().call_soon_threadsafe(_grant, waiter)
            except RuntimeError:  # the waiter's event loop is closed
                self.give_back(granted_size)


def _grant(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():  # a cancelled waiter returns its share itself
        waiter.set_result(None)


class OpenFile:
    """An open file: its descriptor, the number of bytes to read, and the conversion of its contents."""

    __slots__ = ("convert", "descriptor", "size")

    def __init__(self, descriptor: int, size: int, convert: Callable[[bytearray], Any]) -> None:
        self.descriptor = descriptor
        self.size = size
        self.convert = convert


class FileReader:
    """Reads the files of one server."""

    def __init__(self, max_bytes: int, threads: Callable[[], ThreadPool]) -> None:
        self._budget = ByteBudget(max_bytes)
        self._threads = threads

    def read(self, open_: Callable[[], OpenFile]) -> Any:
        """Read a file, on a thread: return its converted contents, or an awaitable of them if the budget is exhausted.
        In that case `open_` is called again later, so that waiting reads need no descriptors."""
        opened = open_()
        try:
            if self._budget.try_take(opened.size):
                try:
                    return opened.convert(read_chunks(opened.descriptor, opened.size))
                finally:
                    self._budget.give_back(opened.size)
        finally:
            os.close(opened.descriptor)
        return _LazyAwaitable(partial(self._read_when_granted, open_, opened.size))

    async def _read_when_granted(self, open_: Callable[[], OpenFile], size: int) -> Any:
        while True:
            share = await self._budget.take(size)
            try:
                read = await self._threads().run(partial(_read_granted, open_, size, share))
            finally:
                share.abandon()
            if not isinstance(read, _FileGrew):
                return read
            size = read.size


class _LazyAwaitable:
    """An awaitable that starts when it is awaited, and may be dropped unused."""

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._start().__await__()


class _FileGrew:
    """The file has grown while the read waited, so its share is too small."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def _read_granted(open_: Callable[[], OpenFile], size: int, share: BudgetShare) -> Any:
    """Read a file within its share of the budget."""
    if not share.start():
        return None  # the read was cancelled
    try:
        opened = open_()
        try:
            if opened.size > size:
                return _FileGrew(opened.size)
            return opened.convert(read_chunks(opened.descriptor, opened.size))
        finally:
            os.close(opened.descriptor)
    finally:
        share.finish()
