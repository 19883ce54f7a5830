"""Thread pool for plain functions, optimized for many short calls.

All jobs are in one queue. A thread that takes a job and leaves others in the queue wakes the next thread, and only one
thread is waking up at a time: a running thread handles all short jobs, while a job that blocks does not delay the
others. Results and other actions for the event loop are in one queue, too: the loop runs them in the order in which a
thread posted them, with one wake-up for all that have gathered.

Threads are daemons: a function that never returns does not keep the process alive.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from trunkline.event_loop import EAGER_START

__all__ = ["Job", "ThreadPool"]

OnJobDone = Callable[[Any, BaseException | None], None]


class Job:
    """A call of a plain function on a thread. `on_done` is called on the loop, with its value or its exception."""

    __slots__ = ("_context", "cancelled", "error", "function", "on_done", "thread", "value")

    def __init__(self, function: Callable[[], Any], on_done: OnJobDone) -> None:
        self.function = function
        self.on_done = on_done
        self.cancelled = False  # a cancelled job is not started any more, and never reported
        self.thread: int | None = None  # that runs it
        self.value: Any = None
        self.error: BaseException | None = None
        self._context: Context = copy_context()

    def cancel(self) -> None:
        """Discard the job. A running function cannot be stopped; its result is ignored."""
        self.cancelled = True

    def run(self) -> None:
        """Run the function on the current thread."""
        self.thread = threading.get_ident()
        try:
            self.value = self._context.run(self.function)
        except BaseException as error:  # noqa: BLE001 - passed to `on_done`, including a handler's SystemExit
            self.error = error

    def report(self) -> None:
        """Call `on_done` on the loop, and drop the result: an exception refers to this job by its traceback."""
        done, value, error = self.on_done, self.value, self.error
        self.on_done, self.value, self.error = _ignore_result, None, None
        if not self.cancelled:
            done(value, error)


def _ignore_result(_value: Any, _error: BaseException | None) -> None:
    """Replace `on_done` once a job has reported."""


class ThreadPool:
    """A thread pool that belongs to one event loop. It is created on the thread of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.loop = loop
        self._loop_thread = threading.get_ident()
        # Arguments of `asyncio.Task`, in a dictionary that is made once: passing keywords takes 8 % longer.
        self.task_options = {"loop": loop} | EAGER_START
        self._limit = limit
        self._lock = threading.Lock()  # guards the attributes below; held for a few instructions only
        self._jobs: deque[Job] = deque()
        self._posted: deque[Callable[[], object]] = deque()  # actions for the loop
        self._idle: list[threading.Lock] = []  # one lock per parked thread, which waits for it
        self._count = 0
        self._busy = 0  # threads that run a job; one that is neither busy nor parked is on its way to the queue
        self._wakeup_scheduled = False  # the loop will run the posted actions
        self._closed = False
        self._context = copy_context()  # posted actions must not run in the context of one thread's call

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._lock:
            self._jobs.append(job)
            self._wake_thread()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function on a thread and return its value. Called on the loop."""
        ended: asyncio.Future[Any] = self.loop.create_future()

        def report(value: Any, error: BaseException | None) -> None:
            if not ended.done():  # the caller may have been cancelled
                ended.set_result(value) if error is None else ended.set_exception(error)

        self.submit(Job(function, report))
        return await ended

    @property
    def busy(self) -> int:
        """Threads that run a job."""
        return self._busy

    @property
    def queued(self) -> int:
        """Jobs that wait for a thread."""
        return len(self._jobs)

    def close(self) -> None:
        """Discard queued jobs and let idle threads end. Running jobs still report."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
            for parked in self._idle:
                parked.release()
            self._idle.clear()

    def _wake_thread(self) -> None:
        """Wake or start one thread, if none is on its way to the queue. Called with the lock held."""
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
            scheduled = self._schedule_wakeup()
        if not scheduled:
            self._wake_loop()

    def post(self, action: Callable[[], object]) -> None:
        """Run an action on the loop soon. Callable from any thread."""
        self._posted.append(action)
        with self._lock:
            scheduled = self._schedule_wakeup()
        if not scheduled:
            self._wake_loop()

    def run_on_loop(self, action: Callable[[], object]) -> bool:
        """Run an action at once on the thread of the loop, soon from any other. Return whether it has run."""
        if threading.get_ident() == self._loop_thread:
            action()
            return True
        self.post(action)
        return False

    def _schedule_wakeup(self) -> bool:
        """Mark the loop's wake-up as scheduled; return whether it already was. Called with the lock held."""
        scheduled, self._wakeup_scheduled = self._wakeup_scheduled, True
        return scheduled

    def _wake_loop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed, and with it every waiting call
            self.loop.call_soon_threadsafe(self._run_posted, context=self._context)

    def _run_posted(self) -> None:
        with self._lock:
            self._wakeup_scheduled = False
        # Threads that post meanwhile wake the loop again, so that other callbacks run in between.
        for _ in range(len(self._posted)):
            action = self._posted.popleft()
            try:
                action()
            except Exception as error:  # noqa: BLE001 - the other actions must still run
                self.loop.call_exception_handler({"message": f"{action} failed", "exception": error})


_PARK = Job(lambda: None, lambda _value, _error: None)  # sentinel: the queue is empty
