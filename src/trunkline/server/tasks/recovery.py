"""Task recovery: take over tasks whose process has died, and resume, restart or fail them as their tools have chosen.

A scan goes through the marks of all unfinished tasks and acquires their leases, which it can do if the holder is dead
(`lease.py`). It runs when this process starts, when it has joined again, and as soon as a peer has departed. The tasks
of this process are left alone.

What no such event announces is found by a periodic scan. Of the processes that share a store, the first in the order of
names scans every `task_lease` seconds. The others scan the less often the more processes precede them, so that all
together they scan little more often than a single one would.
"""

import asyncio
import contextlib
from collections.abc import Container
from typing import TYPE_CHECKING, Final

from trunkline.clock import Timer
from trunkline.errors import Conflict, Fenced, InternalError, InvalidParams, StoreError
from trunkline.protocol.tasks import TaskRecord, TaskState
from trunkline.protocol.types import CallToolParams
from trunkline.registry.tools import ToolEntry
from trunkline.server.features.tools import prepare_run
from trunkline.server.tasks.errors import TooManyTasks
from trunkline.server.tasks.lease import OrphanedTask, end_orphan, take_over_task
from trunkline.server.tasks.repository import TaskMark
from trunkline.stores.bus import is_process_name
from trunkline.stores.store import ABSENT, Held, Put, key_of
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

if TYPE_CHECKING:
    from trunkline.server.runtime_services import RuntimeServices
    from trunkline.server.tasks.service import TaskService, WorkFactory

__all__ = ["TaskRecovery"]

_read_params: Final = codec.decoder(CallToolParams)
_MIN_SCAN_INTERVAL: Final = 0.01  # seconds between two scans
_RETRY_DELAY: Final = 1.0  # seconds before a scan that failed is repeated
_CHECKS_PER_LEASE: Final = 3  # of a holder that is no known peer, during its process lease
_IMMEDIATE_SCANNERS: Final = 2  # processes that scan at once when a peer has departed
_AUDIT_KEY: Final = key_of("recovery", "audit")  # key that exists while no audit is due
_AUDIT_INTERVAL: Final = 3600.0  # seconds
_AUDIT_TIMEOUT: Final = 60.0  # seconds after which another process may repeat an unfinished audit


def _lost_error(record: TaskRecord) -> ErrorObject:
    message = "the process that ran this task has died; its work may or may not have been done"
    return ErrorObject(InternalError.code, message, {"kind": "task_failed", "attempts": record.attempt})


def _next_attempt(held: Held, peers: Container[str], now: float, process_lease: float) -> float | None:
    """Return when to try again to take over a task from a holder that is not known to be dead; None if its departure
    will be reported."""
    if held.holder in peers:
        return None
    if is_process_name(held.holder):  # of a deployment that was killed, and its process lease has not expired
        return now + process_lease / _CHECKS_PER_LEASE
    return held.expires  # without a cluster, or of an earlier version: such a holder renews its lease


class TaskRecovery:
    """Periodic scan for tasks of dead processes."""

    def __init__(self, tasks: "TaskService", shared: "RuntimeServices") -> None:
        self._tasks = tasks
        self._shared = shared
        self._lasting = shared.store.lasting  # other processes may leave tasks in the store
        self._timer: Timer | None = None
        self._due = 0.0  # time of the timer, on the loop's clock
        self._scan_task: asyncio.Task[None] | None = None
        self._rescan = False  # a scan fell due during a scan
        self._alive: set[str] = set()  # holders that this scan has checked
        self._closed = False
        self._audit_due = 0.0
        if shared.cluster is not None:
            shared.cluster.on_lost(self._on_peer_lost)
            shared.cluster.on_missed(self._scan_soon)

    @property
    def _rank(self) -> int:
        """Number of peers that precede this process."""
        cluster = self._shared.cluster
        return 0 if cluster is None else sum(name < cluster.name for name in cluster.peers)

    def _on_peer_lost(self, name: str | None) -> None:
        """Scan after a peer has departed."""
        if name is not None:
            self._scan_soon()

    def _scan_soon(self) -> None:
        """Scan at once if few peers precede this process."""
        if self._rank < _IMMEDIATE_SCANNERS:
            self.schedule_scan(self._shared.wall_clock.now())

    def schedule_scan(self, when: float) -> None:
        """Schedule a scan for a time on the wall clock, unless one is due earlier."""
        clock = self._shared.clock  # monotonic: a step of the wall clock must not delay a scan
        due = clock.now() + max(when - self._shared.wall_clock.now(), _MIN_SCAN_INTERVAL)
        if self._closed or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, clock.call_at(due, self._start_scan)

    def _start_scan(self) -> None:
        self._timer = None
        if self._scan_task is None or self._scan_task.done():
            self._scan_task = self._shared.threads.loop.create_task(self._scan())
        else:
            self._rescan = True

    async def close(self) -> None:
        """Cancel the scan and its timer."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._scan_task is not None:
            self._scan_task.cancel()
            await asyncio.wait([self._scan_task])

    async def _scan(self) -> None:
        """Scan all marks once, and schedule the next scan."""
        wall, rank = self._shared.wall_clock, self._rank
        self._rescan = False
        self._alive.clear()
        if self._lasting:
            self.schedule_scan(wall.now() + self._interval * (1 + rank))
        try:
            if self._lasting and wall.now() >= self._audit_due:
                await self._audit(wall.now())
            after = ""
            while page := await self._tasks.repository.list_marks(after):
                for mark in page:
                    after = mark.task_id
                    if self._tasks.is_handled_here(mark.task_id):
                        continue
                    again = await self._try_take_over(mark)
                    if again is not None and rank < _IMMEDIATE_SCANNERS:
                        self.schedule_scan(again)
        except StoreError:
            self.schedule_scan(wall.now() + _RETRY_DELAY * (1 + rank))
        if self._rescan:
            self.schedule_scan(wall.now())

    @property
    def _interval(self) -> float:
        """Seconds between two periodic scans of the first process."""
        return self._shared.catalog.settings.task_lease

    async def _audit(self, now: float) -> None:
        """Restore the marks of unfinished tasks, once an hour for all processes that share the store."""
        store = self._shared.store
        if (found := await store.get(_AUDIT_KEY)) is not None:
            self._audit_due = found.expires or now
            return
        with contextlib.suppress(Conflict):  # another process was faster
            version = await store.commit([Put(_AUDIT_KEY, b"", now + _AUDIT_TIMEOUT, ABSENT)])
            await self._tasks.repository.restore_missing_marks()
            await store.commit([Put(_AUDIT_KEY, b"", now + _AUDIT_INTERVAL, version)])

    async def _try_take_over(self, mark: TaskMark) -> float | None:
        """Take over a task without a live runner, or return when to try again."""
        now = self._shared.wall_clock.now()
        found = await take_over_task(self._tasks.repository, self._tasks.leases, mark, self._alive)
        if isinstance(found, Held):
            self._alive.add(found.holder)
            peers = () if self._shared.cluster is None else self._shared.cluster.peers
            return _next_attempt(found, peers, now, self._shared.catalog.settings.process_lease)
        if found is None:
            return None
        try:
            await self._recover(found)
        except TooManyTasks:
            await self._tasks.leases.release(found.lease)
            return now + self._interval
        except Fenced:
            pass  # this process was evicted meanwhile, and another one has taken over the task
        return None

    async def _recover(self, orphan: OrphanedTask) -> None:
        record = orphan.stored.record
        params = _read_params(record.params)
        entry = self._shared.catalog.tools.live.get(params.name)
        try:
            work = None if entry is None else prepare_run(entry, self._shared, params)
        except InvalidParams:  # the tool has changed since
            work = None
        begun = record.state is not TaskState.PENDING
        if entry is None or work is None or entry.task is None or not entry.task.goes_on(record.tries, begun=begun):
            await end_orphan(self._tasks.repository, orphan, lambda found, now: found.fail(now, _lost_error(found)))
        else:
            await self._resume(orphan, entry, work)

    async def _resume(self, orphan: OrphanedTask, entry: ToolEntry, work: "WorkFactory") -> None:
        self._tasks.check_limits(orphan.stored.record.client)

        def taken(record: TaskRecord, now: float) -> TaskRecord:
            return record.start(now) if record.state is TaskState.PENDING else record.resume(now)

        record = orphan.stored.record
        changed = await self._tasks.repository.change(record.client, record.task_id, taken, orphan.lease)
        if changed is not None and not changed[1].record.ended:
            self._tasks.take_over(changed[1], orphan.lease, entry, work)
