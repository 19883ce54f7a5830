"""Byte streams over file descriptors: pipes, terminals and regular files. Both sides of stdio use these.

The loop polls the descriptor if it can. Otherwise, for a regular file or on Windows, a thread reads.
"""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = [
    "PIPE_SIZE",
    "READ_SIZE",
    "PolledReader",
    "PolledWriter",
    "ThreadReader",
    "ThreadWriter",
    "open_reader",
    "open_writer",
]

READ_SIZE: Final = 64 * 1024
PIPE_SIZE: Final = 1024 * 1024  # the largest pipe of an unprivileged process on Linux
_F_SETPIPE_SZ: Final = 1031  # fcntl defines the name only on some platforms

Feed = Callable[[bytes], None]
OnBroken = Callable[[OSError], None]


def open_reader(
    loop: asyncio.AbstractEventLoop, descriptor: int, feed: Feed, at_end: Callable[[], None]
) -> "PolledReader | ThreadReader":
    """Return a reader that feeds the bytes of a descriptor after `resume`, and calls `at_end` once at the end."""
    kind = PolledReader if _is_pollable(loop, descriptor) else ThreadReader
    return kind(loop, descriptor, feed, at_end)


def open_writer(
    loop: asyncio.AbstractEventLoop, descriptor: int, sent: Callable[[], None], broke: OnBroken
) -> "PolledWriter | ThreadWriter":
    """Return a writer to a descriptor. It calls `sent` when the unsent bytes decrease, and `broke` when the reader
    has gone."""
    kind = PolledWriter if _is_pollable(loop, descriptor) else ThreadWriter
    return kind(loop, descriptor, sent, broke)


def _discard(_: bytes) -> None:
    """Ignore bytes."""


def _is_pollable(loop: asyncio.AbstractEventLoop, descriptor: int) -> bool:
    """Return whether the loop can poll a descriptor: not a regular file, and not on Windows."""
    try:
        loop.add_reader(descriptor, lambda: None)
    except (NotImplementedError, OSError, ValueError):
        return False
    loop.remove_reader(descriptor)
    return True


# --- descriptors that can be polled: pipes, sockets, terminals ------------------------------------------


class PolledReader:
    """Reads when the descriptor is readable, with a larger buffer after a read that filled the small one."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, feed: Feed, at_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._feed = feed
        self._on_eof = at_end
        self._size = READ_SIZE
        self._reading = False
        self._done = False
        os.set_blocking(descriptor, False)
        _enlarge_pipe(descriptor)

    def resume(self) -> None:
        """Read until paused."""
        if not self._reading and not self._done:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._read)

    def discard(self) -> None:
        """Discard the bytes from now on."""
        self._feed = _discard

    def pause(self) -> None:
        """Stop reading."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def _read(self, size: int | None = None) -> int:
        size = size or self._size
        try:
            data = os.read(self._descriptor, size)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            return 0
        got = len(data)
        self._size = PIPE_SIZE if got == size else READ_SIZE
        self._feed(data)
        return got

    def read_available(self) -> None:
        """Read the available bytes, paused or not; at most one pipe's capacity, since the other end may still write."""
        left = PIPE_SIZE
        while left > 0 and not self._done and (read := self._read(PIPE_SIZE)):
            left -= read

    def close(self) -> None:
        """Stop reading for good and report the end."""
        if not self._done:
            self.pause()
            self._done = True
            self._on_eof()

    async def wait_closed(self) -> None:
        """Return at once: the caller owns the descriptor."""


class PolledWriter:
    """Writes as much as possible at once, and the rest when the descriptor is writable."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, sent: Callable[[], None], broke: OnBroken
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._on_progress = sent
        self._on_broken = broke
        self._queue: deque[memoryview] = deque()
        self.unsent = 0
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        os.set_blocking(descriptor, False)
        _enlarge_pipe(descriptor)

    def write(self, data: bytes | bytearray) -> None:
        """Write bytes, or queue them."""
        if self._closed:
            return
        written = 0
        if not self._queue:
            try:
                written = os.write(self._descriptor, data)
            except OSError as error:
                written = self._handle_write_error(error, data)
            if written == len(data):
                return
            self._loop.add_writer(self._descriptor, self._on_writable)
        self._queue.append(memoryview(data)[written:])
        self.unsent += len(data) - written

    def _handle_write_error(self, error: OSError, data: bytes | bytearray | memoryview) -> int:
        """Return how many bytes to discard: none if writing would block, all of them if the descriptor is broken."""
        if isinstance(error, BlockingIOError | InterruptedError):
            return 0
        self.close()
        self._on_broken(error)
        return len(data)

    def _on_writable(self) -> None:
        while self._queue:
            piece = self._queue[0]
            try:
                written = os.write(self._descriptor, piece)
            except OSError as error:
                written = self._handle_write_error(error, piece)
            if self._closed:
                return
            self.unsent -= written
            if written < len(piece):
                self._queue[0] = piece[written:]
                break
            self._queue.popleft()
        if not self._queue:
            self._loop.remove_writer(self._descriptor)
            self._notify_drained()
        self._on_progress()

    def _notify_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def close(self) -> None:
        """Stop writing and discard the unsent bytes."""
        if not self._closed:
            self._closed = True
            self._loop.remove_writer(self._descriptor)
            self._queue.clear()
            self.unsent = 0
            self._notify_drained()

    async def finish(self) -> None:
        """Wait until everything is written or the writer has closed."""
        if self._queue:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)


def _enlarge_pipe(descriptor: int) -> None:
    """Enlarge a pipe to `PIPE_SIZE`, so that large messages take fewer reads."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_SIZE)


# --- descriptors that cannot be polled: plain files, and pipes on Windows -------------------------------


class ThreadReader:
    """Reads on a thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, feed: Feed, at_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._feed = feed
        self._on_eof = at_end
        self._resumed = threading.Event()
        self._consumed = threading.Semaphore()  # the next read waits until the last one is processed
        self._done = False
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Read until paused."""
        self._resumed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trunkline-reader", daemon=True)
            self._thread.start()

    def discard(self) -> None:
        """Discard the bytes from now on."""
        self._feed = _discard

    def pause(self) -> None:
        """Stop reading, after a read that may be in progress."""
        self._resumed.clear()

    def read_available(self) -> None:
        """Continue to read even if paused."""
        self._resumed.set()

    def close(self) -> None:
        """Stop reading for good and report the end."""
        if not self._done:
            self._done = True
            self._resumed.set()
            self._consumed.release()
            self._on_eof()

    async def wait_closed(self) -> None:
        """Return at once: the thread ends with its current read."""

    def _run(self) -> None:
        while self._consumed.acquire() and self._resumed.wait() and not self._done:
            try:
                data = os.read(self._descriptor, READ_SIZE)
            except OSError:
                data = b""
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                self._loop.call_soon_threadsafe(self._on_data, data)

    def _on_data(self, data: bytes) -> None:
        if not data:
            self.close()
        elif not self._done:
            self._feed(data)
            self._consumed.release()


class ThreadWriter:
    """Writes synchronously: a regular file blocks only briefly."""

    unsent = 0

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, sent: Callable[[], None], broke: OnBroken
    ) -> None:
        del loop, sent
        self._descriptor = descriptor
        self._on_broken = broke
        self._closed = False

    def write(self, data: bytes | bytearray) -> None:
        """Write bytes."""
        if self._closed:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self.close()
            self._on_broken(error)

    def close(self) -> None:
        """Stop writing."""
        self._closed = True

    async def finish(self) -> None:
        """Return at once: everything is written."""
