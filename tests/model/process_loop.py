"""Event loop of one simulated process: it runs what is ready when it is told to, in virtual time."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import Any, Final
from weakref import WeakSet

_MAX_CALLBACKS: Final = 10_000  # in one step


class Handle:
    """A scheduled callback."""

    __slots__ = ("action", "arguments", "cancelled_", "context", "when")

    def __init__(self, action: Callable[..., object], arguments: tuple[Any, ...], context: Context | None) -> None:
        self.action = action
        self.arguments = arguments
        self.context = context
        self.cancelled_ = False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def run(self) -> None:
        if self.cancelled_:
            return
        if self.context is None:
            self.action(*self.arguments)
        else:
            self.context.run(self.action, *self.arguments)


class ProcessLoop(asyncio.AbstractEventLoop):
    """What asyncio's tasks, futures and timeouts need of a loop, and no more."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = count()
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.errors: list[dict[str, Any]] = []

    def run(self) -> None:
        """Run everything that is ready, and what that makes ready."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(_MAX_CALLBACKS):
                if not self._ready:
                    return
                self._ready.popleft().run()
        finally:
            asyncio._set_running_loop(None)
        raise AssertionError("a process repeats something without waiting")

    def run_due(self) -> None:
        """Run the timers that are due, and everything that is ready."""
        while self._timers and self._timers[0][0] <= self._now():
            self._ready.append(heapq.heappop(self._timers)[2])
        self.run()

    def cancel_tasks(self) -> None:
        """Cancel all tasks. `asyncio.all_tasks` would look at those of all loops, also of earlier runs."""
        for task in list(self._tasks):
            task.cancel()
        self.run()

    # --- asyncio.AbstractEventLoop -----------------------------------------------------------------

    def time(self) -> float:
        return self._now()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **kwargs)
        self._tasks.add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
