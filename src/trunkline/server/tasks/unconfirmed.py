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
from trunkline.server.tasks.repository import Kept
from trunkline.stores.store import Lease

if TYPE_CHECKING:
    from trunkline.server.tasks.service import Tasks

__all__ = ["Unconfirmed"]

_AGAIN: Final = 0.5  # seconds until a store that is unavailable is asked again

Start = Callable[[Kept, Lease], None]
"""Begin to work on a task."""


class Unconfirmed:
    """The unconfirmed tasks of one process."""

    def __init__(self, tasks: "Tasks", most: int | None) -> None:
        """`most` limits how many are remembered; what becomes of others is left to recovery."""
        self._tasks = tasks
        self._most = most
        self._waiting: dict[str, tuple[TaskRecord, Start | None]] = {}
        self._resolving: asyncio.Task[None] | None = None

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._waiting

    def add(self, record: TaskRecord, start: Start | None) -> None:
        """Look a task up when the store answers again. `start` begins to work on it; None: it is to be cancelled."""
        if self._most is not None and len(self._waiting) >= self._most:
            return
        self._waiting[record.task_id] = (record, start)
        if self._resolving is None or self._resolving.done():
            self._resolving = asyncio.get_running_loop().create_task(self._resolve_all())

    async def close(self) -> None:
        """Leave what is not resolved yet to recovery."""
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait([self._resolving])

    async def _resolve_all(self) -> None:
        while self._waiting:
            task_id, (record, start) = next(iter(self._waiting.items()))
            try:
                await self._resolve(record, start)
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN)
                continue
            except StoreError:
                pass  # another process has the task by now
            del self._waiting[task_id]

    async def _resolve(self, record: TaskRecord, start: Start | None) -> None:
        tasks, owner, task_id = self._tasks, record.client, record.task_id
        if await tasks.shelf.find(owner, task_id) is None:
            return
        lease = await tasks.shelf.take(owner, task_id, tasks.holder, tasks.lease)
        kept = await tasks.shelf.find(owner, task_id)
        if not isinstance(lease, Lease) or kept is None:
            return
        if start is not None and not kept.record.ended:
            start(kept, lease)
            return
        await tasks.change(owner, task_id, _cancelled, lease)
        await asyncio.gather(tasks.shelf.forget_work(record), tasks.shelf.release(lease))


def _cancelled(record: TaskRecord, now: float) -> TaskRecord:
    return record if record.ended else record.cancel(now)
