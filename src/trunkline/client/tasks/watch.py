"""Waiters for changes of tasks, and background cancellations.

A notification about a task is a reason to poll it, not a source of its status: a server need not send any.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

from trunkline.errors import TrunklineError

__all__ = ["BackgroundCancellations", "TaskChangeWaiters"]

_STATUS_NOTIFICATIONS: Final = ("notifications/tasks", "notifications/tasks/status")  # of 2026-07-28, and of 2025-11-25


class TaskChangeWaiters:
    """The futures that wait for changes of tasks, on one loop."""

    def __init__(self) -> None:
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The ids of the tasks that are waited for."""
        return tuple(self._waiters)

    @contextmanager
    def expect_change(self, task_id: str) -> "Generator[asyncio.Future[None]]":
        """Yield a future that is done at the next notification about a task. A caller that polls inside misses no
        change."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(task_id, []).append(news)
        try:
            yield news
        finally:
            left = self._waiters[task_id]
            left.remove(news)
            if not left:
                del self._waiters[task_id]

    def notification_handlers(self) -> dict[str, Callable[[Any], None]]:
        """Return the handlers of task notifications."""
        return dict.fromkeys(_STATUS_NOTIFICATIONS, self._on_task_status)

    def _on_task_status(self, params: Any) -> None:
        self._wake(self._waiters.get(params.task_id, ()))

    def close(self) -> None:
        """Wake all waiters, so that they poll once more and see that the client is closed."""
        for waiting in self._waiters.values():
            self._wake(waiting)

    def _wake(self, waiters: "list[asyncio.Future[None]] | tuple[()]") -> None:
        for news in waiters:
            if not news.done():
                news.set_result(None)


class BackgroundCancellations:
    """Cancellations of abandoned tasks, run in the background. Only closing the client waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a cancellation; ignore its failure."""
        task = asyncio.get_running_loop().create_task(_suppress_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Wait up to some seconds for all cancellations, and cancel the rest."""
        left = set(self._tasks)
        if left and seconds:
            await asyncio.wait(left, timeout=seconds)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


async def _suppress_errors(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(TrunklineError):  # the server or its task no longer exists
        await work
