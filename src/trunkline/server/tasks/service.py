"""Task service: create, find and run the tasks of a server, and take over those of dead processes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from os import urandom
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from msgspec import UNSET

from trunkline.errors import NotExecuted, StoreError, StoreUnavailable
from trunkline.protocol.tasks import TaskRecord
from trunkline.registry.tools import ToolEntry
from trunkline.server.access.principal_codec import decode_principal
from trunkline.server.context import Context
from trunkline.server.tasks.errors import TaskNotFound, TooManyTasks
from trunkline.server.tasks.lease import TaskLeases
from trunkline.server.tasks.notify import TaskNotifier
from trunkline.server.tasks.question_delivery import QuestionDelivery
from trunkline.server.tasks.repository import StoredTask, TaskRepository
from trunkline.server.tasks.runner import TaskRunner
from trunkline.server.tasks.unconfirmed import UnconfirmedTasks
from trunkline.server.tasks.watchers import TaskWatchers
from trunkline.stores.store import Lease, Put

if TYPE_CHECKING:
    from trunkline.rpc.connection import PeerConnection
    from trunkline.server.runtime_services import RuntimeServices

__all__ = ["TaskService", "WorkFactory"]

WorkFactory = Callable[[Context | None], Any]
"""Create the work of a tool call, for a context if the tool wants one."""


class Recovery(Protocol):
    """Takes over the tasks of dead processes."""

    def schedule_scan(self, when: float) -> None:
        """Schedule a scan for a time, unless one is due earlier."""
        ...

    async def close(self) -> None:
        """Cancel the scan and its timer."""
        ...


RecoveryFactory = Callable[["TaskService", "RuntimeServices"], Recovery]


class TaskService:
    """Tasks as seen by one process: its runners, the shared repository, and the watchers."""

    def __init__(
        self,
        shared: "RuntimeServices",
        make_recovery: RecoveryFactory,
        *,
        on_ended: "Callable[[TaskRecord], None] | None" = None,
    ) -> None:
        """`make_recovery` creates the part that takes over tasks of dead processes. `on_ended` is called with each task
        that this process has ended."""
        store, wall, settings = shared.store, shared.wall_clock, shared.catalog.settings
        self._shared = shared
        self._make_recovery = make_recovery
        self._on_ended = on_ended
        self.repository = TaskRepository(store, wall, self._on_change)
        self.watchers = TaskWatchers(store, self.repository)
        self.question_delivery = QuestionDelivery(self.repository)
        self.leases = TaskLeases(store, shared.cluster, wall, settings.task_lease)
        if shared.cluster is not None:
            shared.cluster.on_evicted(self._on_evicted)
        self._lasting = store.lasting
        self._wall = wall
        self._settings = settings
        self._id = urandom(8).hex()
        self._runners: dict[str, TaskRunner] = {}
        self._count_by_owner: Counter[str] = Counter()
        self._recovery: Recovery | None = None
        self._closing = False
        self._creating: dict[str, asyncio.Future[None]] = {}  # by id, for each task being created
        self._unconfirmed = UnconfirmedTasks(self.repository, self.leases, limit=settings.max_tasks)
        # Connections on which a client has created a 2025-11-25 task.
        self.augmenting_connections: WeakSet[PeerConnection] = WeakSet()

    def session_of(self, connection: "PeerConnection") -> str | None:
        """Return a globally unique name for the session in which a task is created; None on a stateless channel."""
        info = connection.channel.info
        return None if info.stateless else info.session or f"process {self._id}/{connection.number}"

    # --- creating --------------------------------------------------------------------------------

    def check_limits(self, owner: str) -> None:
        """Raise `TooManyTasks` if this process runs `max_tasks`, or `max_tasks_per_principal` of this owner."""
        settings = self._settings
        for count, limit in (
            (len(self._runners), settings.max_tasks),
            (self._count_by_owner[owner], settings.max_tasks_per_principal),
        ):
            if limit is not None and count >= limit:
                raise TooManyTasks(limit)

    async def create_and_start(
        self,
        record: TaskRecord,
        entry: ToolEntry,
        work: WorkFactory,
        *,
        principal: Any,
        exposes_errors: bool,
        notifier: TaskNotifier | None,
        extra_writes: Sequence[Put],
    ) -> TaskRecord:
        """Store a task together with `extra_writes`, and start it; it is stored when this returns. The record of a
        founding task is stored as PENDING, and the start is a change of its own. If the store does not confirm the
        creation, the task is not started here. Once the store answers again, a stored task is started if one of
        `extra_writes` names it, and cancelled otherwise."""
        self.start_recovery()
        holder = await self.leases.get_holder()
        self.check_limits(record.client)

        def start(stored: StoredTask, lease: Lease) -> None:
            runner = TaskRunner(
                self, self._shared, stored, lease, entry, principal=principal, exposes_errors=exposes_errors
            )
            self._start(runner, stored, work, notifier)

        self._count_by_owner[record.client] += 1  # counts against the limit while it is being stored
        created = asyncio.get_running_loop().create_future()
        self._creating[record.task_id] = created
        try:
            if not record.caller.founding:
                record = record.start(self._wall.now())
            # The limit of an owner counts over all processes that share the store.
            slots = self._settings.max_tasks_per_principal if self._lasting else None
            ttl = self.leases.ttl_of(record)
            stored, lease = await self.repository.create(record, holder, ttl, extra_writes, slots=slots)
            start(stored, lease)
        except StoreUnavailable as error:
            if not isinstance(error, NotExecuted):
                self._unconfirmed.add(record, start if extra_writes else None)
            raise
        finally:
            self._uncount(record.client)
            del self._creating[record.task_id]
            created.set_result(None)
        return stored.record

    def _uncount(self, owner: str) -> None:
        """Decrement the number of running tasks of an owner."""
        self._count_by_owner[owner] -= 1
        if not self._count_by_owner[owner]:
            del self._count_by_owner[owner]

    def take_over(self, stored: StoredTask, lease: Lease, entry: ToolEntry, work: WorkFactory) -> None:
        """Run a task that another process has left."""
        caller = stored.record.caller
        principal = None if caller.principal is UNSET else decode_principal(caller.principal)
        exposes = bool(self._settings.expose_errors)  # the connection that created it is unknown
        runner = TaskRunner(self, self._shared, stored, lease, entry, principal=principal, exposes_errors=exposes)
        self._start(runner, stored, work, None if caller.modern else TaskNotifier(self._shared, stored.record))

    def start_recovery(self) -> None:
        """Start to take over the tasks of dead processes."""
        if self._recovery is None:
            self._recovery = self._make_recovery(self, self._shared)
            if self._lasting:
                self._recovery.schedule_scan(self._wall.now())

    def is_handled_here(self, task_id: str) -> bool:
        """Return whether this process runs or creates a task, or still has to find out whether it was stored. Recovery
        leaves these alone: it acquires leases under the same name, and so would fence their runners."""
        return any(task_id in handled for handled in (self._runners, self._creating, self._unconfirmed))

    def cancel_orphan(self, creation: "asyncio.Task[TaskRecord]") -> None:
        """Cancel a task whose creator has gone, so that no client knows its id."""
        runner = None if creation.cancelled() or creation.exception() else self._runners.get(creation.result().task_id)
        if runner is not None:
            runner.spawn(lambda: runner.update(lambda record, now: record.cancel(now)))

    def _start(self, runner: TaskRunner, stored: StoredTask, work: WorkFactory, notifier: TaskNotifier | None) -> None:
        self._count_by_owner[stored.record.client] += 1
        if notifier is not None:
            self.watchers.follow(stored, notifier.dialect, notifier.send_status)
        self._runners[runner.record.task_id] = runner
        self.watchers.attach_runner(runner.record, runner.on_change)
        runner.start(work, notifier)
        if self.leases.is_lost(runner.lease):  # this process was evicted while it acquired the lease
            runner.lose_lease()

    def _on_evicted(self) -> None:
        """Stop all runs: other processes may take over the tasks."""
        for runner in list(self._runners.values()):
            runner.lose_lease()

    async def finish_run(self, runner: TaskRunner) -> None:
        """Clean up after a run. An ended task needs no run; any other may be taken over."""
        record = runner.record
        self._runners.pop(record.task_id, None)
        self._uncount(record.client)
        self.watchers.detach_runner(record)
        try:
            if record.ended:
                await self.repository.delete_mark(record.task_id)
            elif self._closing and not runner.lease_lost:
                await self.repository.change(
                    record.client, record.task_id, lambda found, now: found.release(now), runner.lease
                )
            if not (runner.lease_lost or runner.lease_released):
                await self.leases.release(runner.lease)
            if record.ended:
                return
        except StoreError:
            pass  # the next scan takes the task over, or removes the mark
        if self._recovery is not None and not self._closing:
            self._recovery.schedule_scan(self._wall.now())

    # --- reading -----------------------------------------------------------------------------------

    async def get(self, owner: str, task_id: str) -> StoredTask:
        """Return a task of an owner. Raise `TaskNotFound` if it does not exist or belongs to another owner."""
        stored = await self.repository.find(owner, task_id)
        if stored is None:
            raise TaskNotFound(task_id)
        return stored

    def _on_change(self, before: StoredTask, after: StoredTask) -> None:
        self.watchers.notify(after)
        if self._on_ended is not None and after.record.ended and not before.record.ended:
            self._on_ended(after.record)

    # --- shutdown --------------------------------------------------------------------------------

    @property
    def runners(self) -> "Sequence[TaskRunner]":
        """The runs of this process."""
        return [*self._runners.values()]

    async def drain(self) -> None:
        """Wait for the tasks whose work would be lost with the process."""
        while needed := [runner for runner in self._runners.values() if not runner.can_be_abandoned]:
            await asyncio.wait([runner.run_task for runner in needed], return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Stop all runs. Other processes, or this one when it serves again, continue the tasks as their recovery
        policies say."""
        self._closing = True
        if self._recovery is not None:
            await self._recovery.close()
        if self._creating:
            await asyncio.wait(self._creating.values())
        await self._unconfirmed.close()
        runners = list(self._runners.values())
        for runner in runners:
            runner.stop()
        if runners:
            await asyncio.wait([runner.run_task for runner in runners])
        self.watchers.close()
