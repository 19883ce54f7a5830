"""Starts calls; nothing else does.

A handler is driven at once. If it is done without waiting, that was all: no task outlives this call, and no turn
of the loop was taken. If it waits, it is a task from then on, owned by whoever holds what `start` gives back. Plain
functions go to a thread. `done` is told once, on the loop, of how it ended; of a thread that is given up, at once.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import Any, Protocol

from trunkline.registry.handlers import Needing, OnThread
from trunkline.rpc.run_handler import After, provide
from trunkline.rpc.threads import Done, Job, Threads

__all__ = ["After", "Told", "Work", "Working", "start"]


class Working(Protocol):
    """Something under way that can be stopped. Whoever waits for its end is told of that too."""

    def cancel(self) -> object: ...


_COROUTINE: Any = CoroutineType

Told = Callable[[Any, Any, BaseException | None], None]
"""Who is told of the end of a call: the call, the value it gave, or what it raised."""

Work = Coroutine[Any, Any, Any] | OnThread | Needing | After | Any
"""What a feature gives back: a coroutine, a function for a thread, one that needs others, or the outcome itself, now or
after something else."""


if sys.version_info >= (3, 12):
    _task = partial(asyncio.Task, eager_start=True)  # runs a coroutine until it first waits, right here
else:
    _task = asyncio.Task  # without eager tasks, the coroutine starts on the next turn of the loop


def start(work: Work, threads: Threads, done: Told, call: Any) -> Working | None:
    """Gets the work of a call going, on the running loop. None: it is done, and `done` has been told."""
    if type(work) is _COROUTINE:
        task: asyncio.Task[Any] = _task(work, loop=threads.loop)  # pyright: ignore[reportArgumentType]
        if not task.done():
            task.add_done_callback(lambda ended: _ended(ended, done, call))
            return task
        _ended(task, done, call)
        return None
    if type(work) is OnThread:
        return _start_thread(work, threads, done, call)
    if type(work) is Needing:
        return start(provide(work, threads), threads, done, call)
    if type(work) is After:
        return _Later(work, done, call)
    done(call, work, None)
    return None


class _Later:
    """An outcome that is told when something else is done. It takes no task."""

    __slots__ = ("_call", "_done", "_outcome")

    def __init__(self, work: After, done: Told, call: Any) -> None:
        self._outcome = work.outcome
        self._done: Told | None = done
        self._call = call
        work.first.add_done_callback(self._tell)

    def _tell(self, first: "asyncio.Future[Any]") -> None:
        done, self._done = self._done, None
        if done is None:
            return  # nobody waits for it any more
        error = asyncio.CancelledError() if first.cancelled() else first.exception()
        done(self._call, self._outcome if error is None else None, error)

    def cancel(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self._call, None, asyncio.CancelledError())


def _ended(task: "asyncio.Task[Any]", done: Told, call: Any) -> None:
    try:
        value = task.result()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - told to whoever waits
        # Leave this frame out of the traceback: it refers to the task, and so to the error.
        beyond = None if error.__traceback__ is None else error.__traceback__.tb_next
        done(call, None, error.with_traceback(beyond))
    else:
        done(call, value, None)


def _start_thread(work: OnThread, threads: Threads, done: Told, call: Any) -> Working:
    def finished(value: Any, error: BaseException | None) -> None:
        if error is None:
            if isawaitable(value):  # a plain function that gave an awaitable: the loop has to wait for it
                follow.next = start(_awaited(value, work.finish), threads, done, call)
                return
            try:
                value = work.finish(value)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as raised:  # noqa: BLE001 - told to whoever waits
                error = raised
        done(call, value, error)

    job = Job(work.function, finished)
    follow = _OnThreadWork(job, partial(done, call))
    threads.submit(job)
    return follow


class _OnThreadWork:
    """A job on a thread, and what it may turn into."""

    __slots__ = ("done", "job", "next")

    def __init__(self, job: Job, done: Done) -> None:
        self.job = job
        self.done = done
        self.next: Working | None = None

    def cancel(self) -> None:
        if self.next is not None:
            self.next.cancel()
        elif not self.job.dropped:
            self.job.cancel()
            self.done(None, asyncio.CancelledError())  # a thread may go on with it, but nobody waits for that


async def _awaited(value: Any, finish: Callable[[Any], Any]) -> Any:
    return finish(await value)
