"""Task repository: the records of tasks in the store, changed by compare-and-set.

All tasks of an owner share one home, so that they can be listed. Tasks of unknown callers share one owner; there the
ids are also indexed by session. In another home, under `working/`, every unfinished task has a mark; recovery scans the
marks for tasks whose process has died.

A new record and the lease of its creator are one commit. The mark is in another home and so cannot be part of it; it is
committed before, and deleted only after the record is known to have ended. Two invariants follow, however long a
process pauses between its writes: an unfinished task that was acknowledged has a mark, and either its creator holds the
lease or another process may acquire it. Recovery leaves a mark alone whose record does not exist (yet); it expires with
the task. The record of the end and the release of the lease are one commit, too.

Where the number of running tasks of an owner is limited over all processes, each of these tasks has a slot: a number
that no other one has. The slot is written with the record and deleted with its end, in the same commits, so it costs no
extra operation.
"""

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec.structs import replace

from trunkline.clock import Clock
from trunkline.errors import Conflict, InternalError, StoreUnavailable
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.access.owner_id import ANONYMOUS_OWNER
from trunkline.server.tasks.errors import TooManyTasks
from trunkline.stores.store import ABSENT, Delete, Held, Item, Lease, Put, Store, Write, home, key_of
from trunkline.wire import codec

__all__ = ["StoredTask", "TaskMark", "TaskRepository", "Transition", "key_of_task"]

_WORKING_PREFIX: Final = "working/"
_OWNER_PREFIX: Final = "owner/"
_MAX_ID_LENGTH: Final = 100  # characters; ours are shorter
_PAGE_SIZE: Final = 500
_decode_record: Final = codec.decoder(TaskRecord)


class StoredTask(NamedTuple):
    """A task record with its version in the store."""

    record: TaskRecord
    version: int


class TaskMark(NamedTuple):
    """Mark of an unfinished task."""

    owner: str
    task_id: str


Transition = Callable[[TaskRecord, float], TaskRecord]
"""Return the record after an event, given the record before it and the time. Returning the same record means no change.
"""


@lru_cache(maxsize=1024)  # a task is created, changed and watched under its key
def key_of_task(owner: str, task_id: str) -> str:
    """Return the store key of a task, which is also the name of its lease."""
    return key_of("owner", owner, "tasks", task_id)


def _list_prefix(owner: str, session: str | None) -> str:
    """Return the prefix of the keys of an owner's tasks, or of the index entries of a session's tasks."""
    parts = ("tasks",) if session is None else ("sessions", session)
    return key_of("owner", owner, *parts) + "/"


def _slots_prefix(owner: str) -> str:
    return key_of("owner", owner, "places") + "/"


def _slot_key(record: TaskRecord) -> str:
    """Return the key of a task's slot."""
    return f"{_slots_prefix(record.client)}{record.place}"


def _creation_writes(record: TaskRecord, extra_writes: Sequence[Put]) -> list[Put]:
    """Return the writes that store a new task. If its owner is unknown, they include an index entry, by which
    `tasks/list` finds the tasks of a session."""
    caller = record.caller
    writes = [Put(key_of_task(record.client, record.task_id), codec.to_json(record), record.expires_at, ABSENT)]
    if record.client == ANONYMOUS_OWNER and caller.session is not None and not caller.modern:
        writes.append(Put(_list_prefix(record.client, caller.session) + record.task_id, b"", record.expires_at))
    return [*writes, *extra_writes]


class TaskRepository:
    """Task records in a store."""

    def __init__(
        self, store: Store, wall: Clock, on_change: Callable[[StoredTask, StoredTask], None] | None = None
    ) -> None:
        """`on_change` receives each task to which this process applies a transition, before and after it."""
        self._store = store
        self._wall = wall
        self._on_change = on_change
        # By owner: slots of the tasks that this process created.
        self._slots_in_use: defaultdict[str, set[int]] = defaultdict(set)

    async def find(self, owner: str, task_id: str) -> StoredTask | None:
        """Return a task by its id; None if it does not exist."""
        if not task_id or len(task_id) > _MAX_ID_LENGTH:
            return None
        item = await self._store.get(key_of_task(owner, task_id))
        return None if item is None else _decode_stored(item)

    async def list_page(
        self, owner: str, session: str | None, after: str, size: int
    ) -> tuple[list[TaskRecord], str | None]:
        """Return a page of an owner's tasks after an id, oldest first, because ids begin with the time. With `session`,
        return those of that session. Also return the id after which the next page starts, or None on the last page."""
        prefix = _list_prefix(owner, session)
        items = await self._scan_up_to(prefix, prefix + after if after else "", size + 1)
        names = [item.key.removeprefix(prefix) for item in items[:size]]
        if session is None:
            found = [_decode_stored(item) for item in items[:size]]
        else:
            found = await asyncio.gather(*(self.find(owner, name) for name in names))
        return [stored.record for stored in found if stored is not None], names[-1] if len(items) > size else None

    async def _scan_up_to(self, prefix: str, after: str, limit: int) -> list[Item]:
        """Return up to `limit` items under a prefix."""
        found: list[Item] = []
        while page := await self._store.scan(prefix, after=after, limit=min(limit - len(found), _PAGE_SIZE)):
            found += page
            after = found[-1].key
            if len(found) == limit:
                break
        return found

    async def create(
        self, record: TaskRecord, holder: str, ttl: float, extra_writes: Sequence[Put] = (), *, slots: int | None = None
    ) -> tuple[StoredTask, Lease]:
        """Store a new task and acquire its lease. The extra writes are stored in the same commit, or it raises
        `Conflict`. With `slots`, the owner has at most that many running tasks, or it raises `TooManyTasks`."""
        try:
            if slots is None:
                return await self._create_with_mark(holder, ttl, record, extra_writes)
            return await self._create_in_slot(holder, ttl, record, extra_writes, slots)
        except (Conflict, TooManyTasks):
            await self.delete_mark(record.task_id)
            raise

    async def _create_in_slot(
        self, holder: str, ttl: float, record: TaskRecord, extra_writes: Sequence[Put], slots: int
    ) -> tuple[StoredTask, Lease]:
        """Store a new task in a free slot. The first attempt is a random slot that this process has not used; the store
        is scanned for free ones only if it is taken, since most owners have few tasks."""
        ours = self._slots_in_use.get(record.client, ())
        free = [number for number in range(slots) if number not in ours] or list(range(slots))
        while free:
            placed = replace(record, place=secrets.choice(free))
            put = Put(_slot_key(placed), b"", record.expires_at, ABSENT)
            self._slots_in_use[record.client].add(placed.place or 0)
            try:
                return await self._create_with_mark(holder, ttl, placed, (put, *extra_writes))
            except BaseException as error:
                self._release_slot(placed)
                if not isinstance(error, Conflict) or error.key != put.key:
                    raise
            free = await self._free_slots(record.client, slots)
        raise TooManyTasks(slots)

    async def _create_with_mark(
        self, holder: str, ttl: float, record: TaskRecord, extra_writes: Sequence[Put]
    ) -> tuple[StoredTask, Lease]:
        """Commit the mark of a new task, then its record together with its lease. Both operations start in one turn of
        the loop, so that the store can batch them, in this order."""
        key = key_of_task(record.client, record.task_id)
        marked, lease = await asyncio.gather(
            self._store.commit([_put_mark(record)]),
            self._store.acquire(key, holder, ttl, writes=_creation_writes(record, extra_writes)),
            return_exceptions=True,
        )
        if isinstance(lease, BaseException):
            raise lease
        if isinstance(marked, BaseException):  # the record is stored, so that recovery may find it nevertheless
            raise StoreUnavailable(f"the store has a task without its mark: {marked}") from marked
        if isinstance(lease, Held):
            raise InternalError(f"{lease.holder} holds the lease of a task that was only just created")
        return StoredTask(record, lease.token), lease

    async def _free_slots(self, owner: str, slots: int) -> list[int]:
        """Return the free slots of an owner."""
        prefix = _slots_prefix(owner)
        taken = {item.key for item in await self._scan_up_to(prefix, "", slots)}
        return [number for number in range(slots) if f"{prefix}{number}" not in taken]

    def _release_slot(self, record: TaskRecord) -> None:
        """Make the slot of an ended task available in this process."""
        ours = self._slots_in_use.get(record.client)
        if ours is not None and record.place is not None:
            ours.discard(record.place)
            if not ours:
                del self._slots_in_use[record.client]

    async def create_without_lease(self, record: TaskRecord, extra_writes: Sequence[Put] = ()) -> int:
        """Store a new task without a lease, for a task that needs no run. Return its version."""
        return await self._store.commit(_creation_writes(record, extra_writes))

    async def change(
        self,
        owner: str,
        task_id: str,
        transition: Transition,
        fence: Lease | None = None,
        known: StoredTask | None = None,
    ) -> tuple[StoredTask, StoredTask] | None:
        """Apply a transition, unless the task has ended. Return the task before and after it; None if it does not
        exist. If the task ends, its lease, the fence, is released with it. Raise `Fenced` if the holder has lost the
        lease. `known` is the task as last seen: it is not read first. After a conflict, the transition is applied to
        the newer record."""
        while True:
            before = known or await self.find(owner, task_id)
            if before is None:
                return None
            record = before.record if before.record.ended else transition(before.record, self._wall.now())
            if record is before.record:
                if known is None:
                    return self._report_change(before, before)
            else:
                with contextlib.suppress(Conflict):
                    return self._report_change(before, await self._write_change(before, record, fence))
            known = None

    def _report_change(self, before: StoredTask, after: StoredTask) -> tuple[StoredTask, StoredTask]:
        if self._on_change is not None:
            self._on_change(before, after)
        return before, after

    async def _write_change(self, before: StoredTask, record: TaskRecord, fence: Lease | None) -> StoredTask:
        """Write a changed record. Raise `Conflict` if it has changed meanwhile."""
        key = key_of_task(record.client, record.task_id)
        writes: list[Write] = [Put(key, codec.to_json(record), record.expires_at, before.version)]
        if record.ended and record.place is not None:
            writes.append(Delete(_slot_key(record)))
        version = await self._store.commit(writes, fence=fence, release=record.ended)
        if record.ended:
            self._release_slot(record)
        return StoredTask(record, version)

    async def delete_mark(self, task_id: str) -> None:
        """Delete the mark of a task that needs no run any more."""
        await self._store.commit([Delete(_WORKING_PREFIX + task_id)])

    async def list_marks(self, after: str = "") -> list[TaskMark]:
        """Return a page of the marks after a task id."""
        items = await self._store.scan(_WORKING_PREFIX, after=_WORKING_PREFIX + after if after else "")
        return [TaskMark(item.value.decode(), item.key.removeprefix(_WORKING_PREFIX)) for item in items]

    async def restore_missing_marks(self) -> None:
        """Write the missing marks of unfinished tasks, of all owners. This version always writes a mark; earlier ones
        could leave a task without, if a process paused for longer than a lease while it created a task."""
        after = ""
        while first := await self._store.scan(_OWNER_PREFIX, after=after, limit=1):
            at = home(first[0].key)
            after = f"{at}0"  # the character after "/": beyond all keys of that owner
            tasks, last = f"{at}/tasks/", ""
            while page := await self._store.scan(tasks, after=last):
                last = page[-1].key
                for record in (_decode_record(item.value) for item in page):
                    if not record.ended and await self._store.get(_WORKING_PREFIX + record.task_id) is None:
                        await self._store.commit([_put_mark(record)])


def _put_mark(record: TaskRecord) -> Put:
    return Put(_WORKING_PREFIX + record.task_id, record.client.encode(), record.expires_at)


def _decode_stored(item: Item) -> StoredTask:
    return StoredTask(_decode_record(item.value), item.version)
