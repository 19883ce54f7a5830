"""The tasks of a server: made, found, changed, and taken over from processes that have died."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from os import urandom
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from msgspec import Raw
from msgspec.structs import replace

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import StoreError, StoreUnavailable
from trunkline.protocol.tasks import TaskCaller, TaskRecord
from trunkline.registry.tasks import TaskPolicy
from trunkline.registry.tools import ToolEntry
from trunkline.server.context import Context
from trunkline.server.tasks.detached_peer import principal_of
from trunkline.server.tasks.errors import TaskNotFound, TooManyTasks
from trunkline.server.tasks.notify import TaskNotifier
from trunkline.server.tasks.repository import StoredTask, TaskRepository, Transition
from trunkline.server.tasks.result import QuestionDelivery
from trunkline.server.tasks.runner import TaskRunner
from trunkline.server.tasks.unconfirmed import UnconfirmedTasks
from trunkline.server.tasks.watchers import TaskWatchers
from trunkline.stores.store import Lease, Put, Store

if TYPE_CHECKING:
    from trunkline.server.connection import Connection, SharedServices
    from trunkline.server.tasks.recovery import TaskRecovery

__all__ = ["TaskService", "WorkFactory"]

WorkFactory = Callable[[Context | None], Any]
"""Gives the work of a tool, for a context if it wants one."""


class TaskService:
    """All of them, as one process sees them."""

    def __init__(self, store: Store, wall: Clock, settings: Settings, recovery_type: "type[TaskRecovery]") -> None:
        """`recover` sees to tasks whose process has died."""
        self._recovery_type = recovery_type
        self.repository = TaskRepository(store, wall)
        self.watchers = TaskWatchers(store, self.repository)
        self.question_delivery = QuestionDelivery()
        self.lease_ttl = settings.task_lease
        self._store = store
        self._wall = wall
        self._settings = settings
        self.holder = f"process {urandom(8).hex()}"
        self._runners: dict[str, TaskRunner] = {}
        self._count_by_owner: Counter[str] = Counter()
        self._recovery: TaskRecovery | None = None
        self._closing = False
        self._creating: set[asyncio.Future[None]] = set()  # done when a task is kept and begun, or is not
        self._unconfirmed = UnconfirmedTasks(self, settings.max_tasks)
        self.augmenting_connections: WeakSet[Connection] = (
            WeakSet()
        )  # where somebody has asked for a task as 2025-11-25 does

    def session_of(self, connection: "Connection") -> str | None:
        """A name for the conversation that a task is asked for in, unlike that of any other of any process."""
        info = connection.channel.info
        return None if info.stateless else info.session or f"{self.holder}/{connection.number}"

    # --- making ----------------------------------------------------------------------------------

    def new_record(
        self, owner: str, caller: TaskCaller, request: tuple[str, Raw], policy: TaskPolicy, *, ttl: float | None = None
    ) -> TaskRecord:
        """The record of a task that is yet to be kept, of a method and its params. `ttl` is for how long its client
        wants it to be kept."""
        now, settings = self._wall.now(), self._settings
        wanted = policy.ttl or settings.task_ttl if ttl is None else ttl
        poll = policy.poll_interval or settings.task_poll_interval
        return TaskRecord(
            task_id=f"{int(now * 1000):012x}-{urandom(16).hex()}",
            client=owner,
            caller=caller,
            method=request[0],
            params=request[1],
            created_at=now,
            updated_at=now,
            expires_at=now + min(wanted, settings.max_task_ttl),
            timeout_ms=None if policy.timeout is None else round(policy.timeout * 1000),
            poll_interval_ms=round(poll * 1000),
        )

    def check_limits(self, owner: str) -> None:
        """Raises `TooManyTasks` if an owner may have no more of them at work, as far as this process knows, or the
        process has no room."""
        settings = self._settings
        for count, most in (
            (len(self._runners), settings.max_tasks),
            (self._count_by_owner[owner], settings.max_tasks_per_principal),
        ):
            if most is not None and count >= most:
                raise TooManyTasks(most)

    @property
    def _owner_limit(self) -> int | None:
        """How many tasks an owner may have at work in all processes together, where that has to be counted."""
        return self._settings.max_tasks_per_principal if self._store.lasting else None

    async def create_and_start(
        self,
        shared: "SharedServices",
        record: TaskRecord,
        entry: ToolEntry,
        work: WorkFactory,
        *,
        principal: Any,
        exposes_errors: bool = False,
        notifier: TaskNotifier | None = None,
        pending: bool = False,
        extra_writes: Sequence[Put] = (),
    ) -> TaskRecord:
        """Keeps a task, with what is to be kept beside it, and begins to work on it; it is kept when this returns.
        `pending`: that it is begun with is a change of its own. If the store does not say whether the task is kept, it
        is not begun here; when the store answers again, a task that was kept is begun if something beside it names it,
        and cancelled if not."""
        self.start_recovery(shared, lasting=self._store.lasting)
        self.check_limits(record.client)

        def start(kept: StoredTask, lease: Lease) -> None:
            self._count_by_owner[kept.record.client] += 1
            attempt = TaskRunner(self, shared, kept, lease, entry, principal=principal, exposes_errors=exposes_errors)
            self._start(attempt, kept, work, notifier)

        self._count_by_owner[record.client] += 1  # it has a place while it is being kept
        made = asyncio.get_running_loop().create_future()
        self._creating.add(made)
        try:
            if not pending:
                record = record.start(self._wall.now())
            kept, lease = await self.repository.create(
                record, self.holder, self.lease_ttl, extra_writes, slots=self._owner_limit
            )
            start(kept, lease)
        except StoreUnavailable:
            self._unconfirmed.add(record, start if extra_writes else None)
            raise
        finally:
            self._uncount(record.client)
            self._creating.discard(made)
            made.set_result(None)
        return kept.record

    def _uncount(self, owner: str) -> None:
        """Count one task less of an owner."""
        self._count_by_owner[owner] -= 1
        if not self._count_by_owner[owner]:
            del self._count_by_owner[owner]

    def take_over(
        self, shared: "SharedServices", stored: StoredTask, lease: Lease, entry: ToolEntry, work: WorkFactory
    ) -> None:
        """Works on a task that somebody else has left."""
        self._count_by_owner[stored.record.client] += 1
        caller = stored.record.caller
        exposes = bool(self._settings.expose_errors)  # its client may be anywhere by now
        attempt = TaskRunner(self, shared, stored, lease, entry, principal=principal_of(caller), exposes_errors=exposes)
        self._start(attempt, stored, work, None if caller.modern else TaskNotifier(shared, stored.record))
        self.watchers.notify(stored)

    def start_recovery(self, shared: "SharedServices", *, lasting: bool) -> None:
        """Sees to tasks whose process has died, from now on; `lasting`: also to those of other processes."""
        if self._recovery is None:
            self._recovery = self._recovery_type(self, shared, lasting=lasting)
            if lasting:
                self._recovery.schedule_scan(self._wall.now())

    def is_handled_here(self, task_id: str) -> bool:
        """Whether this process works on a task, or is about to decide what becomes of it."""
        return task_id in self._runners or task_id in self._unconfirmed

    def cancel_orphan(self, creation: "asyncio.Task[TaskRecord]") -> None:
        """A task was made, and nobody knows of it: it is cancelled."""
        attempt = None if creation.cancelled() or creation.exception() else self._runners.get(creation.result().task_id)
        if attempt is not None:
            attempt.spawn(lambda: attempt.update(lambda record, now: record.cancel(now)))

    def _start(self, runner: TaskRunner, stored: StoredTask, work: WorkFactory, notifier: TaskNotifier | None) -> None:
        if notifier is not None:
            self.watchers.follow(stored, notifier.dialect, notifier.send_status)
        self._runners[runner.record.task_id] = runner
        self.watchers.attach_runner(runner.record, runner.on_change)
        runner.start(work, notifier)

    async def finish_run(self, runner: TaskRunner) -> None:
        """Somebody does not work on a task any more. If it has ended, nobody has to; if not, somebody else may."""
        record = runner.record
        self._runners.pop(record.task_id, None)
        self._uncount(record.client)
        self.watchers.detach_runner(record)
        try:
            if record.ended:
                await asyncio.gather(self.repository.delete_mark(record), self.repository.release(runner.lease))
                return
            if self._closing:
                await self.change(record.client, record.task_id, lambda found, now: found.release(now), runner.lease)
            await self.repository.release(runner.lease)
            if self._recovery is not None and not self._closing:
                self._recovery.schedule_scan(self._wall.now())
        except StoreError:
            pass  # the lease runs out by itself, and who looks for work finds that there is none

    # --- finding and changing --------------------------------------------------------------------

    async def get(self, owner: str, task_id: str) -> StoredTask:
        """A task of somebody's. Raises `TaskNotFound` if it is not there, or another's."""
        kept = await self.repository.find(owner, task_id)
        if kept is None:
            raise TaskNotFound(task_id)
        return kept

    async def change(
        self, owner: str, task_id: str, transition: Transition, fence: Lease | None = None
    ) -> tuple[TaskRecord, TaskRecord] | None:
        """Has something happen to a task, and tells of it; gives what it was and what it is. None: it is not there."""
        changed = await self.repository.change(owner, task_id, transition, fence)
        if changed is None:
            return None
        self.watchers.notify(changed[1])
        return changed[0].record, changed[1].record

    # --- the end ---------------------------------------------------------------------------------

    @property
    def running_count(self) -> int:
        """How many tasks are worked on here."""
        return len(self._runners)

    async def drain(self) -> None:
        """Waits for the work that would be lost with the process."""
        while dear := [attempt for attempt in self._runners.values() if not attempt.can_be_abandoned]:
            await asyncio.wait([attempt.run_task for attempt in dear], return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Lets go of all work, which others, or this one when it serves again, go on with as each tool has chosen."""
        self._closing = True
        if self._recovery is not None:
            await self._recovery.close()
        if self._creating:
            await asyncio.wait(self._creating)
        await self._unconfirmed.close()
        attempts = list(self._runners.values())
        for attempt in attempts:
            attempt.stop()
        if attempts:
            await asyncio.wait([attempt.run_task for attempt in attempts])
        self.watchers.close()


def with_prior_state(record: TaskRecord, answers: Any, effects: Any) -> TaskRecord:
    """A record that knows what was answered and done before there was a task."""
    return replace(record, answers=dict(answers), effects=dict(effects))
