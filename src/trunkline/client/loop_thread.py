"""An event loop on a thread of its own, for blocking clients and groups."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from trunkline.errors import MisuseError, OutcomeUnknown
from trunkline.event_loop import find_loop_factory

__all__ = ["LoopThread"]

T = TypeVar("T")
_SIGNAL_INTERVAL: Final = 0.1
"""How often a waiting thread looks for signals, in seconds. A signal that comes after Python has looked for signals and
before the thread sleeps does not wake it: a wait without a limit would not notice Ctrl+C."""
_NOT_OPEN: Final = "the {what} is not open: `with {what}:` or `{what}.open()` comes first"
_WOULD_DEADLOCK: Final = "a handler of a blocking {what} cannot wait for it: that would be for ever"


class LoopThread:
    """Runs coroutines on an event loop of its own, and waits for their results from other threads."""

    def __init__(self, what: str) -> None:
        """`what` is the name of its owner in messages, such as "client"."""
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards starting a call; never held while waiting for the server

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if self._loop is None:
                if self._thread is not None:
                    self._thread.join()  # another thread is stopping it
                self._loop = find_loop_factory()()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name=f"trunkline-{self._what}", daemon=True
                )
                self._thread.start()

    def stop(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last coroutine, and stop the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if thread is None:
                return
            if thread is threading.current_thread():
                raise MisuseError(_WOULD_DEADLOCK.format(what=self._what))
            closing = None if loop is None else _LoopCall(loop, close)
            self._loop = None
        try:
            if closing is not None:
                closing.wait().result()
        finally:
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def wait(
        self,
        ask: Callable[[], Coroutine[Any, Any, T]],
        *,
        on_interrupt: Callable[[], None] = lambda: None,
        grace: float | None = None,
    ) -> T:
        """Run a coroutine, and wait for its result. Ctrl+C calls `on_interrupt` and cancels the coroutine, which has
        `grace` seconds to end before the exception is raised."""
        with self._lock:
            if self._loop is None or threading.current_thread() is self._thread:
                message = _NOT_OPEN if self._loop is None else _WOULD_DEADLOCK
                raise MisuseError(message.format(what=self._what))
            call = _LoopCall(self._loop, ask)
        try:
            ended = call.wait()
        except BaseException:  # Ctrl+C, or what another signal handler raises
            on_interrupt()
            call.cancel()
            if grace is not None:
                with contextlib.suppress(Empty):
                    call.wait(grace)
            raise
        try:
            return ended.result()
        except asyncio.CancelledError:
            raise OutcomeUnknown(f"the {self._what} was closed") from None

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator, one wait for each."""
        while True:
            try:
                yield self.wait(partial(_next_item, items))
            except _IterationEnded:
                return


class _LoopCall(Generic[T]):
    """A coroutine on the loop of the thread. It is created there, where no Ctrl+C can come between creating and
    running it.

    Its outcome travels through a `SimpleQueue`, which takes its lock in C. `Event` and `concurrent.futures.Future` take
    theirs in Python, and a Ctrl+C in between would leave it locked: the thread of the loop then waits for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, make_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._make_coroutine = make_coroutine
        self._ended: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._start)

    def wait(self, timeout: float | None = None) -> "asyncio.Task[T]":
        """Wait until the coroutine has ended; return its task. Raise `Empty` at the time-out."""
        if timeout is not None:
            return self._ended.get(timeout=timeout)
        while True:
            with contextlib.suppress(Empty):
                return self._ended.get(timeout=_SIGNAL_INTERVAL)

    def cancel(self) -> None:
        """Cancel the coroutine."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its tasks with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._make_coroutine())
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: "asyncio.Task[T]") -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved, for a caller that has been interrupted
        self._ended.put(task)


class _IterationEnded(Exception):
    """The async iterator is exhausted."""


async def _next_item(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _IterationEnded from None


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
