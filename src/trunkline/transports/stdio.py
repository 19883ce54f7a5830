"""stdio, the server's side: messages on standard input and output, and nothing but messages.

From then on the process's own standard output points at standard error, and its standard input at nothing; the wire
keeps private copies of both. So whatever a handler, a library or a child process prints cannot reach the peer: not
even what lies in a library's buffer until the process ends, or what a thread prints that was given up.

The peer ends it by closing our input. What is in flight may finish, within a time, and the process ends with 0; so it
does on the first Ctrl+C, on SIGTERM, and when the process that started us has died without saying so.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Final

from trunkline.config import Settings
from trunkline.transports.channel import ChannelInfo, Closed
from trunkline.transports.stream import StreamChannel

if TYPE_CHECKING:
    from trunkline.transports.channel import Accept

__all__ = ["END_OF_INPUT", "private_streams", "serve_stdio"]

READ_SIZE: Final = 64 * 1024
PIPE_SIZE: Final = 1024 * 1024  # what an unprivileged process may ask for on Linux
END_OF_INPUT: Final = "end of input"
PARENT_CHECK: Final = 1.0  # seconds; a parent that died is noticed within two
_F_SETPIPE_SZ: Final = 1031  # fcntl has the name only where the platform has the call


@contextlib.contextmanager
def private_streams() -> Generator[tuple[int, int]]:
    """Takes standard input and output for the wire, for good; gives descriptors for it, and closes them at the end."""
    sys.stdout.flush()
    wire_in, wire_out = os.dup(0), os.dup(1)
    blocking = os.get_blocking(wire_in), os.get_blocking(wire_out)  # of a terminal both are the same
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        with contextlib.suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        yield wire_in, wire_out
    finally:
        os.set_blocking(wire_in, blocking[0])
        os.set_blocking(wire_out, blocking[1])
        for descriptor in (wire_in, wire_out, nothing):
            os.close(descriptor)


async def serve_stdio(accept: "Accept", settings: Settings, wire_in: int, wire_out: int) -> str:
    """Serves the peer at the other end of two descriptors; gives the reason why it ended.

    The channel is still open then, so that what is in flight can be answered; closing it is left to the caller.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def end(reason: str) -> None:
        if not ended.done():
            ended.set_result(reason)

    channel = StreamChannel(ChannelInfo("stdio"), max_frame=settings.stdio_message_size_limit, settings=settings)
    reader = _reader(loop, wire_in, channel.feed, partial(end, END_OF_INPUT))
    writer = _writer(loop, wire_out, channel, end)
    channel.open(accept(channel), reader, writer)
    _on_signals(loop, end)
    with _parent_watched(loop, end):
        reader.resume()
        return await ended


# --- descriptors that can be polled: pipes, sockets, terminals ------------------------------------------


def _reader(
    loop: asyncio.AbstractEventLoop, descriptor: int, feed: Callable[[bytes], None], at_end: Callable[[], None]
) -> "PolledReader | ThreadReader":
    if _pollable(loop, descriptor):
        return PolledReader(loop, descriptor, feed, at_end)
    return ThreadReader(loop, descriptor, feed, at_end)


def _writer(
    loop: asyncio.AbstractEventLoop, descriptor: int, channel: StreamChannel, end: Callable[[str], None]
) -> "PolledWriter | ThreadWriter":
    kind = PolledWriter if _pollable(loop, descriptor) else ThreadWriter
    return kind(loop, descriptor, channel, end)


def _pollable(loop: asyncio.AbstractEventLoop, descriptor: int) -> bool:
    """Whether the loop can wait for a descriptor: not for a plain file, and not on Windows."""
    try:
        loop.add_reader(descriptor, lambda: None)
    except (NotImplementedError, OSError, ValueError):
        return False
    loop.remove_reader(descriptor)
    return True


class PolledReader:
    """Reads when there is something to read: more than most messages need, and much more once that was not enough."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        feed: Callable[[bytes], None],
        at_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._feed = feed
        self._at_end = at_end
        self._size = READ_SIZE
        self._reading = False
        self._done = False
        os.set_blocking(descriptor, False)
        _enlarge(descriptor)

    def resume(self) -> None:
        """Reads, until paused."""
        if not self._reading and not self._done:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._readable)

    def pause(self) -> None:
        """Leaves bytes where they are."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, self._size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._size = PIPE_SIZE if len(data) == self._size else READ_SIZE
        self._feed(data)

    def close(self) -> None:
        """Reads no more, whoever decided that."""
        if not self._done:
            self.pause()
            self._done = True
            self._at_end()


class PolledWriter:
    """Writes what can be written at once, and the rest when there is room."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, channel: StreamChannel, end: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._channel = channel
        self._end = end
        self._queue: deque[memoryview] = deque()
        self.unsent = 0
        self._emptied: asyncio.Future[None] | None = None
        self._broken = False
        os.set_blocking(descriptor, False)
        _enlarge(descriptor)

    def write(self, data: bytes) -> None:
        """Takes bytes."""
        if self._broken:
            return
        written = 0
        if not self._queue:
            try:
                written = os.write(self._descriptor, data)
            except OSError as error:
                written = self._unwritten(error, data)
            if written == len(data):
                return
            self._loop.add_writer(self._descriptor, self._writable)
        self._queue.append(memoryview(data)[written:])
        self.unsent += len(data) - written

    def _unwritten(self, error: OSError, data: bytes | memoryview) -> int:
        """How much can be forgotten of what could not be written: nothing for now, or all of it for good."""
        if isinstance(error, BlockingIOError | InterruptedError):
            return 0
        self._broke(error)
        return len(data)

    def _writable(self) -> None:
        while self._queue:
            piece = self._queue[0]
            try:
                written = os.write(self._descriptor, piece)
            except OSError as error:
                written = self._unwritten(error, piece)
            if self._broken:
                return
            self.unsent -= written
            if written < len(piece):
                self._queue[0] = piece[written:]
                break
            self._queue.popleft()
        if not self._queue:
            self._loop.remove_writer(self._descriptor)
            if self._emptied is not None and not self._emptied.done():
                self._emptied.set_result(None)
        self._channel.sent()

    def _broke(self, error: OSError) -> None:
        """Nobody reads any more: there is no way to answer, so there is no reason to go on."""
        self._broken = True
        self._loop.remove_writer(self._descriptor)
        self._queue.clear()
        self.unsent = 0
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
        self._channel.lost(Closed(f"output broke: {error.strerror}", error))
        self._end("output broke")

    async def finish(self) -> None:
        """Waits until all is written, or until that makes no sense any more."""
        if self._queue and not self._broken:
            self._emptied = self._loop.create_future()
            await self._emptied


def _enlarge(descriptor: int) -> None:
    """Makes a pipe as large as we may; fewer turns for large messages."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_SIZE)


# --- descriptors that cannot be polled: plain files, and pipes on Windows -------------------------------


class ThreadReader:
    """Reads on a thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        feed: Callable[[bytes], None],
        at_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._feed = feed
        self._at_end = at_end
        self._go = threading.Event()
        self._taken = threading.Semaphore()  # so that no read is begun before the last one was taken
        self._done = False
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Reads, until paused."""
        self._go.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="trunkline-stdin", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Leaves bytes where they are, after the read that may be under way."""
        self._go.clear()

    def close(self) -> None:
        """Reads no more, whoever decided that."""
        if not self._done:
            self._done = True
            self._go.set()
            self._taken.release()
            self._at_end()

    def _work(self) -> None:
        while self._taken.acquire() and self._go.wait() and not self._done:
            try:
                data = os.read(self._descriptor, READ_SIZE)
            except OSError:
                data = b""
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._take, data)

    def _take(self, data: bytes) -> None:
        if not data:
            self.close()
        elif not self._done:
            self._feed(data)
            self._taken.release()


class ThreadWriter:
    """Writes where it stands, waiting if it must: a plain file never makes it wait for long."""

    unsent = 0

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, channel: StreamChannel, end: Callable[[str], None]
    ) -> None:
        del loop
        self._descriptor = descriptor
        self._channel = channel
        self._end = end

    def write(self, data: bytes) -> None:
        """Writes bytes."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self._channel.lost(Closed(f"output broke: {error.strerror}", error))
            self._end("output broke")

    async def finish(self) -> None:
        """All is written already."""


# --- what else ends a server --------------------------------------------------------------------------


def _on_signals(loop: asyncio.AbstractEventLoop, end: Callable[[str], None]) -> None:
    """The first Ctrl+C or SIGTERM ends in good order; a second one does not wait for it."""
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        end(number.name)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
            loop.add_signal_handler(number, stop, number)  # until the loop closes: also while draining


@contextlib.contextmanager
def _parent_watched(loop: asyncio.AbstractEventLoop, end: Callable[[str], None]) -> Generator[None]:
    """Ends when the process that started us is gone, even if somebody else still holds our input open."""
    parent = os.getppid()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if os.getppid() != parent:
            end("the parent process died")
        else:
            timer = loop.call_later(PARENT_CHECK, look)

    if parent > 1:  # 1 is the system's first process, or a container's: it does not die before us
        look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
