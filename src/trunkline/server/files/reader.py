"""Reading files: in pieces, on a thread, and never too many bytes at once.

A file's size is known before any of it is read, so one over the limit costs nothing. All reads of a server share one
budget. A read that finds room goes ahead on the thread that it is on; any other gives up its thread and waits for its
turn on the loop, in the order in which they came, so that large files keep no plain function from running.
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

_CHUNK_SIZE: Final = 256 * 1024  # bytes; between two pieces other threads have their turn


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
    """A share of a budget. It goes back once: when the read that started has ended, or is abandoned before."""

    def __init__(self, budget: "ByteBudget", size: int) -> None:
        self._budget = budget
        self._size = size
        self._lock = threading.Lock()
        self._started = False
        self._returned = False

    def start(self) -> bool:
        """Begin to use it; False if it was abandoned."""
        with self._lock:
            self._started = not self._returned
            return self._started

    def finish(self) -> None:
        """Give it back after use."""
        self._budget.give_back(self._size)

    def abandon(self) -> None:
        """Give it back, unless its use has begun: then that ends it."""
        with self._lock:
            if self._started or self._returned:
                return
            self._returned = True
        self._budget.give_back(self._size)


class ByteBudget:
    """How many bytes may be read at once. Shares are taken on any thread, and waited for on the loop, in order."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = capacity
        self._lock = threading.Lock()
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    def try_take(self, size: int) -> bool:
        """Take a share, if there is room and nothing waits. It is given back by `give_back`."""
        size = min(size, self._capacity)  # a file that is larger is read alone
        with self._lock:
            if self._waiters or size > self._free:
                return False
            self._free -= size
            return True

    async def take(self, size: int) -> BudgetShare:
        """A share, after all that have been waiting for one."""
        size = min(size, self._capacity)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiters.append((turn, size))
        self.give_back(0)  # there may be room by now
        try:
            await turn
        except asyncio.CancelledError:
            self._stop_waiting(turn, size)
            raise
        return BudgetShare(self, size)

    def _stop_waiting(self, waiter: "asyncio.Future[None]", size: int) -> None:
        with self._lock:
            waited = (waiter, size) in self._waiters
            if waited:
                self._waiters.remove((waiter, size))
        self.give_back(0 if waited else size)

    def give_back(self, size: int) -> None:
        """Take a share back, and give it to the next in turn."""
        size = min(size, self._capacity)
        granted: list[tuple[asyncio.Future[None], int]] = []
        with self._lock:
            self._free += size
            while self._waiters and self._waiters[0][1] <= self._free:
                granted.append(self._waiters.popleft())
                self._free -= granted[-1][1]
        for turn, wanted in granted:
            try:
                turn.get_loop().call_soon_threadsafe(_grant, turn)
            except RuntimeError:  # its loop is closed
                self.give_back(wanted)


def _grant(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():  # cancelled: it gives back what it was granted
        waiter.set_result(None)


class OpenFile:
    """A file that is open: how much of it to read, and what to make of that."""

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
        """Read a file, on a thread: what `Opened.read` returns, or an awaitable of it if it has to wait for its turn.
        `open_` is called again then, so that files that wait take no descriptors."""
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
            lease = await self._budget.take(size)
            try:
                read = await self._threads().run(partial(_read_granted, open_, size, lease))
            finally:
                lease.abandon()
            if not isinstance(read, _FileGrew):
                return read
            size = read.size


class _LazyAwaitable:
    """An awaitable that begins when it is awaited, and can be dropped before."""

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._start().__await__()


class _FileGrew:
    """A file that has grown while it waited for its turn: its share is too small."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def _read_granted(open_: Callable[[], OpenFile], size: int, share: BudgetShare) -> Any:
    """Read a file whose turn has come."""
    if not share.start():
        return None  # nothing waits for it any more
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
