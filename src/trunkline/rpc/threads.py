"""Threads for plain functions, made for many short calls.

Jobs lie in one queue. A thread that takes a job and leaves others behind wakes the next, and never more than one
thread is being woken at a time: short jobs are all done by the thread that is running already, while a job that
blocks does not keep the others waiting. What threads have for the loop, finished jobs and whatever else, lies in one
queue too: it gets there in the order in which a thread gave it, with one wake-up for all that has gathered.

Threads are daemons: a function that never returns does not keep the process from ending.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

__all__ = ["Job", "ThreadPool"]

OnJobDone = Callable[[Any, BaseException | None], None]


class Job:
    """A call of a plain function on a thread. `done` is called on the loop, with its value or what it raised."""

    __slots__ = ("_context", "cancelled", "error", "function", "on_done", "value")

    def __init__(self, function: Callable[[], Any], on_done: OnJobDone) -> None:
        self.function = function
        self.on_done = on_done
        self.cancelled = False  # not wanted any more: not started if it has not been, not reported in any case
        self.value: Any = None
        self.error: BaseException | None = None
        self._context: Context = copy_context()

    def cancel(self) -> None:
        """Drops the job. A function that runs already cannot be stopped; nobody waits for it any more."""
        self.cancelled = True

    def run(self) -> None:
        """Runs the function, on whatever thread this is."""
        try:
            self.value = self._context.run(self.function)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits, SystemExit of a handler included
            self.error = error

    def report(self) -> None:
        """Tells of the end, on the loop, and keeps nothing of it: an error refers to this job by its traceback."""
        done, value, error = self.on_done, self.value, self.error
        self.on_done, self.value, self.error = _ignore_result, None, None
        if not self.cancelled:
            done(value, error)


def _ignore_result(_value: Any, _error: BaseException | None) -> None:
    """Stands in for `done` once a job has reported."""


class ThreadPool:
    """A pool that belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.loop = loop
        self._limit = limit
        self._lock = threading.Lock()  # guards all below; held for a few instructions only
        self._jobs: deque[Job] = deque()
        self._posted: deque[Callable[[], object]] = deque()  # for the loop to do
        self._idle: list[threading.Lock] = []  # each parked thread waits for its own
        self._count = 0
        self._busy = 0  # threads that run a job; one that is neither busy nor parked is on its way to the queue
        self._wakeup_scheduled = False  # the loop has been told that there is something to collect
        self._closed = False
        self._context = copy_context()  # what the loop does for all must not seem to be part of one thread's call

    def submit(self, job: Job) -> None:
        """Queues a job."""
        with self._lock:
            self._jobs.append(job)
            self._wake_thread()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Runs a function on a thread and waits for it, on the loop."""
        ended: asyncio.Future[Any] = self.loop.create_future()

        def report(value: Any, error: BaseException | None) -> None:
            if not ended.done():  # whoever waited may have been cancelled
                ended.set_result(value) if error is None else ended.set_exception(error)

        self.submit(Job(function, report))
        return await ended

    def close(self) -> None:
        """Lets threads end when they have nothing to do; drops what has not been started. What runs is told of."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
            for parked in self._idle:
                parked.release()
            self._idle.clear()

    def _wake_thread(self) -> None:
        """Gets one more thread going, if none is on its way and one is to be had. Called with the state locked."""
        if not self._jobs or self._count > self._busy + len(self._idle):
            return
        if self._idle:
            self._idle.pop().release()
        elif self._count < self._limit:
            self._count += 1
            threading.Thread(target=self._run_worker, name=f"trunkline-{self._count}", daemon=True).start()

    def _run_worker(self) -> None:
        parked = threading.Lock()
        parked.acquire()
        while (job := self._next_job(parked)) is not None:
            if job is _PARK:
                parked.acquire()
                continue
            if not job.cancelled:
                job.run()
            self._post_result(job)

    def _next_job(self, parked: threading.Lock) -> Job | None:
        with self._lock:
            if self._jobs:
                self._busy += 1
                job = self._jobs.popleft()
                self._wake_thread()
                return job
            if self._closed:
                return None
            self._idle.append(parked)
            return _PARK

    def _post_result(self, job: Job) -> None:
        self._posted.append(job.report)
        with self._lock:
            self._busy -= 1
            told = self._schedule_wakeup()
        if not told:
            self._wake_loop()

    def post(self, action: Callable[[], object]) -> None:
        """Does something on the loop, soon. Callable from any thread."""
        self._posted.append(action)
        with self._lock:
            told = self._schedule_wakeup()
        if not told:
            self._wake_loop()

    def _schedule_wakeup(self) -> bool:
        """Whether the loop knows that there is something to collect. Called with the state locked."""
        told, self._wakeup_scheduled = self._wakeup_scheduled, True
        return told

    def _wake_loop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it everybody who waited
            self.loop.call_soon_threadsafe(self._run_posted, context=self._context)

    def _run_posted(self) -> None:
        with self._lock:
            self._wakeup_scheduled = False
        # Threads that post meanwhile wake the loop again, so that other work gets a turn in between.
        for _ in range(len(self._posted)):
            action = self._posted.popleft()
            try:
                action()
            except Exception as error:  # noqa: BLE001 - what comes after it is not to blame
                self.loop.call_exception_handler({"message": f"{action} failed", "exception": error})


_PARK = Job(lambda: None, lambda _value, _error: None)  # stands for "nothing to do"
