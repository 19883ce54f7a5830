"""Tasks whose creation the store did not confirm: it was asked to keep them, and became unavailable before it answered.

The client was told that the task was not begun, so this process does not begin it. But the record may exist, and its
lease would run out, and recovery would take it for the work of a process that has died. So as soon as the store answers
again, each such task is looked up. One that does not exist needs nothing. One that exists is started if an idempotency
key names it, since the client finds it under that key when it tries again; otherwise no client knows its id, and it is
cancelled.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trunkline.errors import StoreError, StoreUnavailable
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.tasks.repository import StoredTask
from trunkline.stores.store import Lease

if TYPE_CHECKING:
    from trunkline.server.tasks.service import TaskService

__all__ = ["UnconfirmedTasks"]

_RETRY_DELAY: Final = 0.5  # seconds until a store that is unavailable is asked again

StartRun = Callable[[StoredTask, Lease], None]
"""Begin to work on a task."""


class UnconfirmedTasks:
    """The unconfirmed tasks of one process."""

    def __init__(self, tasks: "TaskService", limit: int | None) -> None:
        """`most` limits how many are remembered; what becomes of others is left to recovery."""
        self._tasks = tasks
        self._limit = limit
        self._unresolved: dict[str, tuple[TaskRecord, StartRun | None]] = {}
        self._resolver: asyncio.Task[None] | None = None

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._unresolved

    def add(self, record: TaskRecord, start: StartRun | None) -> None:
        """Look a task up when the store answers again. `start` begins to work on it; None: it is to be cancelled."""
        if self._limit is not None and len(self._unresolved) >= self._limit:
            return
        self._unresolved[record.task_id] = (record, start)
        if self._resolver is None or self._resolver.done():
            self._resolver = asyncio.get_running_loop().create_task(self._resolve_all())

    async def close(self) -> None:
        """Leave what is not resolved yet to recovery."""
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
        tasks, owner, task_id = self._tasks, record.client, record.task_id
        if await tasks.repository.find(owner, task_id) is None:
            return
        lease = await tasks.repository.acquire(owner, task_id, tasks.holder, tasks.lease_ttl)
        kept = await tasks.repository.find(owner, task_id)
        if not isinstance(lease, Lease) or kept is None:
            return
        if start is not None and not kept.record.ended:
            start(kept, lease)
            return
        await tasks.change(owner, task_id, _cancel_unless_ended, lease)
        await asyncio.gather(tasks.repository.delete_mark(record), tasks.repository.release(lease))


def _cancel_unless_ended(record: TaskRecord, now: float) -> TaskRecord:
    return record if record.ended else record.cancel(now)
