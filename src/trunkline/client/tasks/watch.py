"""Who waits for news of tasks, and tasks that nobody wants any more.

That something has happened to a task is a reason to look at it, and never the truth: a server need not tell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

from trunkline.errors import TrunklineError

__all__ = ["BackgroundCancellations", "TaskChangeWaiters"]

_STATUS_NOTIFICATIONS: Final = ("notifications/tasks", "notifications/tasks/status")  # of 2026-07-28, and of 2025-11-25


class TaskChangeWaiters:
    """Those who wait, on one loop."""

    def __init__(self) -> None:
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The tasks of which there should be news."""
        return tuple(self._waiters)

    @contextmanager
    def expect_change(self, task_id: str) -> "Generator[asyncio.Future[None]]":
        """Something to await until there is news of a task. Who looks at it after that misses nothing."""
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
        """What has to hear of which notifications."""
        return dict.fromkeys(_STATUS_NOTIFICATIONS, self._on_task_status)

    def _on_task_status(self, params: Any) -> None:
        self._wake(self._waiters.get(params.task_id, ()))

    def close(self) -> None:
        """There will be no news any more: whoever waits for some looks once more, and learns why."""
        for waiting in self._waiters.values():
            self._wake(waiting)

    def _wake(self, waiters: "list[asyncio.Future[None]] | tuple[()]") -> None:
        for news in waiters:
            if not news.done():
                news.set_result(None)


class BackgroundCancellations:
    """Tells servers of tasks that nobody wants any more. Nobody waits for that but who closes the line."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Does it, as well as that can be done."""
        task = asyncio.get_running_loop().create_task(_suppress_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Waits until all of it is done, for so long; what is not done by then is given up."""
        left = set(self._tasks)
        if left and seconds:
            await asyncio.wait(left, timeout=seconds)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


async def _suppress_errors(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(TrunklineError):  # the server has gone, or its task has
        await work
