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

from trunkline.rpc.threads import Threads

__all__ = ["Budget", "FileReader", "Opened", "read_pieces"]

_PIECE: Final = 256 * 1024  # bytes; between two pieces other threads have their turn


def read_pieces(descriptor: int, size: int) -> bytearray:
    """Read a file from its start: `size` bytes, or fewer if it ends before."""
    data = bytearray(size)
    filled = 0
    with io.FileIO(descriptor, closefd=False) as file, memoryview(data) as room:
        while filled < size:
            count = file.readinto(room[filled : filled + _PIECE])
            if not count:
                break
            filled += count
    del data[filled:]
    return data


class Lease:
    """A share of a budget. It goes back once: when the read that started has ended, or is abandoned before."""

    def __init__(self, budget: "Budget", size: int) -> None:
        self._budget = budget
        self._size = size
        self._lock = threading.Lock()
        self._started = False
        self._over = False

    def start(self) -> bool:
        """Begin to use it; False if it was abandoned."""
        with self._lock:
            self._started = not self._over
            return self._started

    def end(self) -> None:
        """Give it back after use."""
        self._budget.give_back(self._size)

    def abandon(self) -> None:
        """Give it back, unless its use has begun: then that ends it."""
        with self._lock:
            if self._started or self._over:
                return
            self._over = True
        self._budget.give_back(self._size)


class Budget:
    """How many bytes may be read at once. Shares are taken on any thread, and waited for on the loop, in order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def take_now(self, size: int) -> bool:
        """Take a share, if there is room and nothing waits. It is given back by `give_back`."""
        size = min(size, self._most)  # a file that is larger is read alone
        with self._lock:
            if self._waiting or size > self._free:
                return False
            self._free -= size
            return True

    async def take(self, size: int) -> Lease:
        """A share, after all that have been waiting for one."""
        size = min(size, self._most)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((turn, size))
        self.give_back(0)  # there may be room by now
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(turn, size)
            raise
        return Lease(self, size)

    def _leave(self, turn: "asyncio.Future[None]", size: int) -> None:
        with self._lock:
            waited = (turn, size) in self._waiting
            if waited:
                self._waiting.remove((turn, size))
        self.give_back(0 if waited else size)

    def give_back(self, size: int) -> None:
        """Take a share back, and give it to the next in turn."""
        size = min(size, self._most)
        granted: list[tuple[asyncio.Future[None], int]] = []
        with self._lock:
            self._free += size
            while self._waiting and self._waiting[0][1] <= self._free:
                granted.append(self._waiting.popleft())
                self._free -= granted[-1][1]
        for turn, wanted in granted:
            try:
                turn.get_loop().call_soon_threadsafe(_grant, turn)
            except RuntimeError:  # its loop is closed
                self.give_back(wanted)


def _grant(turn: "asyncio.Future[None]") -> None:
    if not turn.done():  # cancelled: it gives back what it was granted
        turn.set_result(None)


class Opened:
    """A file that is open: how much of it to read, and what to make of that."""

    __slots__ = ("descriptor", "make", "size")

    def __init__(self, descriptor: int, size: int, make: Callable[[bytearray], Any]) -> None:
        self.descriptor = descriptor
        self.size = size
        self.make = make


class FileReader:
    """Reads the files of one server."""

    def __init__(self, most_at_once: int, threads: Callable[[], Threads]) -> None:
        self._budget = Budget(most_at_once)
        self._threads = threads

    def read(self, open_: Callable[[], Opened]) -> Any:
        """Read a file, on a thread: what `Opened.read` returns, or an awaitable of it if it has to wait for its turn.
        `open_` is called again then, so that files that wait take no descriptors."""
        opened = open_()
        try:
            if self._budget.take_now(opened.size):
                try:
                    return opened.make(read_pieces(opened.descriptor, opened.size))
                finally:
                    self._budget.give_back(opened.size)
        finally:
            os.close(opened.descriptor)
        return _Later(partial(self._read_in_turn, open_, opened.size))

    async def _read_in_turn(self, open_: Callable[[], Opened], size: int) -> Any:
        while True:
            lease = await self._budget.take(size)
            try:
                read = await self._threads().run(partial(_read_again, open_, size, lease))
            finally:
                lease.abandon()
            if not isinstance(read, _Grown):
                return read
            size = read.size


class _Later:
    """An awaitable that begins when it is awaited, and can be dropped before."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()


class _Grown:
    """A file that has grown while it waited for its turn: its share is too small."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def _read_again(open_: Callable[[], Opened], size: int, lease: Lease) -> Any:
    """Read a file whose turn has come."""
    if not lease.start():
        return None  # nothing waits for it any more
    try:
        opened = open_()
        try:
            if opened.size > size:
                return _Grown(opened.size)
            return opened.make(read_pieces(opened.descriptor, opened.size))
        finally:
            os.close(opened.descriptor)
    finally:
        lease.end()
