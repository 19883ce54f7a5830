"""Starts calls; nothing else does.

A handler is driven at once. If it is done without waiting, that was all: no task outlives this call, and no turn
of the loop was taken. If it waits, it is a task from then on, owned by whoever holds what `start` gives back. Plain
functions go to a thread. `done` is told once, on the loop, of how it ended; not of a thread that was given up.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import Any, Protocol, cast

from trunkline.server.threads import Done, Job, Threads

__all__ = ["OnThread", "Work", "Working", "start"]


class Working(Protocol):
    """Something under way that can be stopped. False: nobody will be told of its end."""

    def cancel(self) -> bool: ...


class OnThread:
    """A plain function to be run on a thread, and what to make of its value."""

    __slots__ = ("finish", "function")

    def __init__(self, function: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        self.function = function
        self.finish = finish


Work = Coroutine[Any, Any, Any] | OnThread | Any
"""What a feature gives back: a coroutine, a function for a thread, or the outcome itself."""


def start(work: Work, threads: Threads, done: Done) -> Working | None:
    """Gets work going, on the running loop. None: it is done, and `done` has been told."""
    if type(work) is CoroutineType:
        return _start_coroutine(cast("Coroutine[Any, Any, Any]", work), threads.loop, done)
    if type(work) is OnThread:
        return _start_thread(work, threads, done)
    done(work, None)
    return None


if sys.version_info >= (3, 12):
    _task = partial(asyncio.Task, eager_start=True)  # runs a coroutine until it first waits, right here

else:
    _task = asyncio.Task  # without eager tasks, the coroutine starts on the next turn of the loop


def _start_coroutine(
    coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, done: Done
) -> Working | None:
    task: asyncio.Task[Any] = _task(coroutine, loop=loop)
    if task.done():
        _ended(task, done)
        return None
    task.add_done_callback(lambda ended: _ended(ended, done))
    return task


def _ended(task: "asyncio.Task[Any]", done: Done) -> None:
    try:
        value = task.result()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - told to whoever waits
        done(None, error)
    else:
        done(value, None)


def _start_thread(work: OnThread, threads: Threads, done: Done) -> Working:
    def finished(value: Any, error: BaseException | None) -> None:
        if error is None:
            if isawaitable(value):  # a plain function that gave an awaitable: the loop has to wait for it
                follow.next = _start_coroutine(_awaited(value, work.finish), threads.loop, done)
                return
            try:
                value = work.finish(value)
            except Exception as raised:  # noqa: BLE001 - told to whoever waits
                error = raised
        done(value, error)

    job = Job(work.function, finished)
    follow = _OnThreadWork(job)
    threads.submit(job)
    return follow


class _OnThreadWork:
    """A job on a thread, and what it may turn into."""

    __slots__ = ("job", "next")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.next: Working | None = None

    def cancel(self) -> bool:
        if self.next is not None:
            return self.next.cancel()
        self.job.cancel()
        return False


async def _awaited(value: Any, finish: Callable[[Any], Any]) -> Any:
    return finish(await value)
