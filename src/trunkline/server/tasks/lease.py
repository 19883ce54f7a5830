"""Task leases: of all processes that share a store, one at a time may run a task and write its record.

A process holds the leases of its tasks under its name in the cluster. A lease lasts as long as the record and is not
renewed: the death of a process is detected by other means (`server/cluster`), and from that moment on its peers may
take over its leases. So a lease is lost when its holder was evicted, and the store refuses writes under it as soon as
another process has acquired it.

Where a store outlives the process but has no bus, no process can tell whether another one is alive. There a lease lasts
for `task_lease`, and runners renew it.

A process takes over a task that it finds by its mark if it can acquire the lease.
"""

from collections.abc import Container
from os import urandom
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from trunkline.clock import Clock
from trunkline.errors import NotExecuted, StoreUnavailable
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.tasks.repository import StoredTask, TaskMark, TaskRepository, Transition, key_of_task
from trunkline.stores.store import Held, Lease, Store

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster

__all__ = ["OrphanedTask", "TaskLeases", "end_orphan", "take_over_task"]

_MARGIN: Final = 60.0  # seconds by which a lease outlasts its record, for clocks that differ
_UNLIMITED_TTL: Final = 10 * 365 * 86400.0  # seconds, for a record that does not expire


class TaskLeases:
    """Leases of the tasks of one process."""

    def __init__(self, store: Store, cluster: "Cluster | None", wall: Clock, ttl: float) -> None:
        """`ttl` is how many seconds a lease lasts in a lasting store without a bus."""
        self._store = store
        self._cluster = cluster
        self._wall = wall
        self._ttl = ttl if store.lasting and cluster is None else None
        # Without a cluster. No process has such a name in a cluster, so no process is evicted by mistake.
        self._local_name = f"process {urandom(8).hex()}"

    @property
    def renewal_interval(self) -> float | None:
        """Seconds between two renewals of a lease; None if leases are not renewed."""
        return None if self._ttl is None else self._ttl / 3

    # --- acquiring ---------------------------------------------------------------------------------

    async def get_holder(self) -> str:
        """Return the name under which this process may acquire leases now. Raise `NotExecuted` if it may have been
        evicted and cannot find out."""
        if self._cluster is None:
            return self._local_name
        try:
            return await self._cluster.confirm_name()
        except StoreUnavailable as error:
            raise NotExecuted(str(error)) from error

    def ttl_of(self, record: TaskRecord) -> float:
        """Return how many seconds the lease of a task lasts."""
        if self._ttl is not None:
            return self._ttl
        if record.expires_at is None:
            return _UNLIMITED_TTL
        return max(record.expires_at - self._wall.now(), 0.0) + _MARGIN

    async def acquire(self, record: TaskRecord, alive: Container[str] = ()) -> Lease | Held:
        """Acquire the lease of a task, and take it over if its holder is dead; or return its holder. The processes in
        `alive` were checked before. The caller makes sure that this process does not run the task."""
        key, ttl = key_of_task(record.client, record.task_id), self.ttl_of(record)
        if self._cluster is None:
            return await self._store.acquire(key, self._local_name, ttl)
        return await self._cluster.acquire(key, ttl, alive)

    # --- holding -----------------------------------------------------------------------------------

    def is_lost(self, lease: Lease) -> bool:
        """Return whether this process has certainly lost a lease: it was evicted, or the lease has expired."""
        if self._cluster is not None and not self._cluster.is_own_name(lease.holder):
            return True
        return self._wall.now() >= lease.expires

    def may_be_lost(self, lease: Lease) -> bool:
        """Return whether another process may have taken over a lease."""
        return self.is_lost(lease) or (self._cluster is not None and not self._cluster.lease_valid)

    async def renew(self, lease: Lease) -> Lease:
        """Renew a lease in a store without a bus. Raise `Fenced` if it is lost."""
        return lease if self._ttl is None else await self._store.renew(lease, self._ttl)

    async def release(self, lease: Lease) -> None:
        """Release a lease."""
        await self._store.release(lease)


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
        await repository.delete_mark(mark.task_id)
        return None
    lease = await leases.acquire(stored.record, known_alive)
    if isinstance(lease, Held):
        return lease
    stored = await repository.find(mark.owner, mark.task_id)  # read again, now that no other process can run it
    if stored is None or stored.record.ended:
        await leases.release(lease)
        return None
    return OrphanedTask(stored, lease)


async def end_orphan(repository: TaskRepository, orphan: OrphanedTask, transition: Transition) -> None:
    """End an orphaned task without a run."""
    record = orphan.stored.record
    await repository.change(record.client, record.task_id, transition, orphan.lease)
    await repository.delete_mark(record.task_id)
