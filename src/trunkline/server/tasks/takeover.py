"""Task takeover: acquire a task whose process has died."""

from collections.abc import Container

from msgspec import Struct

from trunkline.server.tasks.lease import TaskLeases
from trunkline.server.tasks.repository import StoredTask, TaskMark, TaskRepository
from trunkline.stores.store import Held, Lease

__all__ = ["OrphanedTask", "take_over_task"]


class OrphanedTask(Struct):
    """An unfinished task without a live runner, and its lease, which this process holds now."""

    stored: StoredTask
    lease: Lease


async def take_over_task(
    repository: TaskRepository, leases: TaskLeases, mark: TaskMark, known_alive: Container[str] = ()
) -> OrphanedTask | Held | None:
    """Take over the task of a mark. Return its live holder instead if it has one, or None if there is nothing to run:
    the task has ended, or its record does not exist. The processes in `known_alive` are not checked."""
    stored = await repository.find(mark.owner, mark.task_id)
    if stored is None:
        return None  # its creator may be about to write the record
    if stored.record.ended:
        await repository.delete_mark_key(mark.key)
        return None
    lease = await leases.acquire(stored.record, known_alive)
    if isinstance(lease, Held):
        return lease
    stored = await repository.find(mark.owner, mark.task_id)  # read again, now that no other process can run it
    if stored is None or stored.record.ended:
        await leases.release(lease)
        return None
    return OrphanedTask(stored, lease)
