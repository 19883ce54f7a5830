"""Unconfirmed tasks: the store became unavailable before it confirmed that it has stored them.

The client was told that the outcome is unknown, or to try again with the same idempotency key. This process does not
start the task, but the record may exist, and after the process has ended, recovery would run it. So as soon as the
store answers again, each such task is looked up. If it does not exist, there is nothing to do. If it exists and an
idempotency key names it, it is started, because the client finds it under that key when it retries. Otherwise no client
knows its id, and it is cancelled.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from trunkline.errors import StoreError, StoreUnavailable
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.tasks.lease import OrphanedTask, TaskLeases, end_orphan, take_over_task
from trunkline.server.tasks.repository import StoredTask, TaskMark, TaskRepository
from trunkline.stores.store import Lease

__all__ = ["UnconfirmedTasks"]

_RETRY_DELAY: Final = 0.5  # seconds between two attempts while the store is unavailable

StartRun = Callable[[StoredTask, Lease], None]
"""Start to run a stored task."""


class UnconfirmedTasks:
    """Unconfirmed tasks of one process."""

    def __init__(self, repository: TaskRepository, leases: TaskLeases, *, limit: int | None) -> None:
        """`limit` is how many are remembered; further ones are left to recovery."""
        self._repository = repository
        self._leases = leases
        self._limit = limit
        self._unresolved: dict[str, tuple[TaskRecord, StartRun | None]] = {}
        self._resolver: asyncio.Task[None] | None = None

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._unresolved

    def add(self, record: TaskRecord, start: StartRun | None) -> None:
        """Look up a task when the store answers again. `start` runs it; None means to cancel it."""
        if self._limit is not None and len(self._unresolved) >= self._limit:
            return
        self._unresolved[record.task_id] = (record, start)
        if self._resolver is None or self._resolver.done():
            self._resolver = asyncio.get_running_loop().create_task(self._resolve_all())

    async def close(self) -> None:
        """Leave the remaining tasks to recovery."""
        if self._resolver is not None:
            self._resolver.cancel()
            await asyncio.wait([self._resolver])

    async def _resolve_all(self) -> None:
        while self._unresolved:
            task_id, (record, start) = next(iter(self._unresolved.items()))
            try:
                await self._resolve(record, start)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            except StoreError:
                pass  # another process has the task by now
            del self._unresolved[task_id]

    async def _resolve(self, record: TaskRecord, start: StartRun | None) -> None:
        orphan = await take_over_task(self._repository, self._leases, TaskMark(record.client, record.task_id))
        if not isinstance(orphan, OrphanedTask):
            return  # it was not stored, it has ended, or another process has it
        if start is not None:
            start(orphan.stored, orphan.lease)
        else:
            await end_orphan(self._repository, orphan, lambda found, now: found.cancel(now))
