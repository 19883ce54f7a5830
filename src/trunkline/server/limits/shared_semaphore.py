"""Turns at a tool that several processes share, because they share a store: all of them together call it only so often
at once.

A turn is a slot: an item with a number, which whoever runs a call puts where there is none, and which runs out unless
that is said again every few seconds. So what a process held that has died is free soon after, and what one holds that
has only stood still for that long may be another's by then, while its call still runs.

A process whose calls have to wait stands in line with a ticket, also an item that runs out. A slot that comes free is
for the process that has waited longest: nobody takes one while as many are ahead. Calls of one process hand a slot on
among themselves for a moment, which costs nothing, and let go of it then, so that no process waits for ever.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine
from itertools import count
from typing import Any, Final

from msgspec import Struct

from trunkline.clock import Clock, Timer
from trunkline.errors import Conflict, NotNow, StoreError, StoreUnavailable
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, TooManyCalls, WaitQueue
from trunkline.stores.store import ABSENT, Delete, Item, Put, Store, Watch, Write, key_of

__all__ = ["Permit", "SharedSemaphore", "SharedSemaphores", "scan_all"]

_LOCAL_HANDOVER: Final = 1.0  # seconds that calls of one process may hand a slot on
_RETRY_DELAY: Final = 0.1  # seconds until a store that could not be reached is tried again
_MIN_POLL_INTERVAL: Final = 0.05  # seconds between two looks, if nothing has changed
_SCAN_PAGE_SIZE: Final = 500


def _unavailable(tool: str) -> NotNow:
    return NotNow(f"who calls tool {tool!r} cannot be found out now; try again later")


class SharedSemaphores:
    """The turns at all tools of a server."""

    def __init__(self, store: Store, wall_clock: Clock, server: str, lease: float) -> None:
        """`lease` is for how long a slot is held by who does not say that it still is."""
        self.store = store
        self.wall_clock = wall_clock
        self.lease = lease
        self.process = secrets.token_hex(8)
        self._server = server
        self._serial_numbers = count()
        self._semaphores: dict[ConcurrencyLimit, SharedSemaphore] = {}
        self._background: set[asyncio.Task[None]] = set()

    def semaphore_for(self, limit: ConcurrencyLimit) -> "SharedSemaphore":
        """The turns at one tool."""
        turns = self._semaphores.get(limit)
        if turns is None:
            where = key_of("tool", key_of(self._server, limit.tool))
            turns = self._semaphores[limit] = SharedSemaphore(self, limit, where)
        return turns

    def new_holder_id(self) -> bytes:
        """A name that nothing else has, in any process."""
        return f"{self.process}-{next(self._serial_numbers)}".encode()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Does something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Waits for what is being given back, and keeps nobody waiting."""
        for turns in self._semaphores.values():
            turns.close()
        if self._background:
            await asyncio.wait(self._background)


class Permit(Struct, eq=False):
    """The right to run one call, until it runs out."""

    key: str
    holder_id: bytes  # as nothing else is called
    version: int
    acquired_at: float  # when it was taken
    lost: bool = False
    renewal_timer: Timer | None = None
    renewal: "asyncio.Task[None] | None" = None


class SharedSemaphore:
    """The turns at one tool."""

    def __init__(self, semaphores: SharedSemaphores, limit: ConcurrencyLimit, prefix: str) -> None:
        self._semaphores = semaphores
        self._limit = limit
        self._permit_prefix = f"{prefix}/slots/"
        self._ticket_prefix = f"{prefix}/waiting/"
        self._prefix = f"{prefix}/"
        self._queue: WaitQueue[Permit] = WaitQueue(limit)
        self._ticket: str | None = None  # the key of ours, while there is one
        self._ticket_expires = 0.0
        self._changed = asyncio.Event()
        self._acquire_task: asyncio.Task[None] | None = None
        self._contended = False  # nothing was free, and we are told when that changes

    async def acquire(self) -> Permit:
        """A slot, once there is one."""
        if self._contended and self._queue.full:
            raise TooManyCalls(self._limit)
        if self._acquire_task is None:
            self._acquire_task = self._semaphores.run_in_background(self._serve_waiters())
        return await self._queue.wait(self.release)

    def release(self, permit: Permit) -> None:
        """A call has ended: another one of this process goes on with its slot, or whoever is next anywhere."""
        mine = not permit.lost and self._semaphores.wall_clock.now() - permit.acquired_at < _LOCAL_HANDOVER
        if not (mine and self._queue.grant(permit)):
            self._semaphores.run_in_background(self._release_permit(permit))

    def close(self) -> None:
        """Turns those away who still wait."""
        self._queue.fail_all(_unavailable(self._limit.tool))
        self._changed.set()

    # --- getting one -----------------------------------------------------------------------------

    async def _serve_waiters(self) -> None:
        """Gets slots for those who wait, until nobody does."""
        watch: Watch | None = None
        try:
            while self._queue:
                self._changed.clear()
                until = await self._try_acquire()
                if until is None:
                    continue
                if watch is None:
                    watch = self._semaphores.store.watch(self._prefix, lambda _: self._changed.set())
                    self._contended = True
                    self._queue.reject_overflow()
                else:
                    await self._wait_for_change(until)
        except StoreError:
            self._queue.fail_all(_unavailable(self._limit.tool))
        finally:
            self._acquire_task, self._contended = None, False
            if watch is not None:
                watch.close()
            if self._ticket is not None:
                self._semaphores.run_in_background(self._delete_ticket(self._ticket))
                self._ticket = None

    async def _try_acquire(self) -> float | None:
        """Takes what is free and ours to take. If that is nothing, says when to look again; who is told of changes by
        then stands in line."""
        now, lease = self._semaphores.wall_clock.now(), self._semaphores.lease
        items = await scan_all(self._semaphores.store, self._prefix)
        held = {item.key for item in items if item.key.startswith(self._permit_prefix)}
        ahead = sum(self._is_ahead(item.key) for item in items)
        free = min(self._limit.max_concurrency - len(held) - ahead, len(self._queue))
        if free > 0:
            await self._acquire_permits(held, free)
            return None
        if self._contended and (self._ticket is None or self._ticket_expires - lease / 2 <= now):
            await self._renew_ticket(now)
        ends = (item.expires for item in items if item.expires is not None)
        return min(*ends, self._ticket_expires - lease / 2)

    def _is_ahead(self, key: str) -> bool:
        """Whether a key is the ticket of a process that is served before this one; their names begin with the time. One
        of our own that is being given back is nobody's."""
        if not key.startswith(self._ticket_prefix) or key.endswith(self._semaphores.process):
            return False
        return self._ticket is None or key < self._ticket

    async def _acquire_permits(self, held: set[str], number: int) -> None:
        """Takes some slots at once, unless somebody else is faster with one of them."""
        slots, now = self._semaphores, self._semaphores.wall_clock.now()
        free = [
            key
            for key in (f"{self._permit_prefix}{each:06}" for each in range(self._limit.max_concurrency))
            if key not in held
        ]
        taken = [Permit(key, slots.new_holder_id(), ABSENT, now) for key in secrets.SystemRandom().sample(free, number)]
        writes: list[Write] = [Put(slot.key, slot.holder_id, now + slots.lease, ABSENT) for slot in taken]
        if self._ticket is not None:
            writes.append(Delete(self._ticket))
        with contextlib.suppress(Conflict):
            version = await slots.store.commit(writes)
            self._ticket = None
            for slot in taken:
                slot.version = version
                self._schedule_renewal(slot)
                self.release(slot)

    async def _renew_ticket(self, now: float) -> None:
        """Gets a ticket, or says that it still counts."""
        ticket = self._ticket or f"{self._ticket_prefix}{int(now * 1000):012x}-{self._semaphores.process}"
        until = now + self._semaphores.lease
        await self._semaphores.store.commit([Put(ticket, b"", until)])
        self._ticket, self._ticket_expires = ticket, until

    async def _delete_ticket(self, ticket: str) -> None:
        with contextlib.suppress(StoreError):  # it runs out by itself
            await self._semaphores.store.commit([Delete(ticket)])

    async def _wait_for_change(self, until: float) -> None:
        """Waits until something has changed, or that time has come."""
        wall = self._semaphores.wall_clock
        timer = wall.call_at(max(until, wall.now() + _MIN_POLL_INTERVAL), self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    # --- having one ------------------------------------------------------------------------------

    def _schedule_renewal(self, slot: Permit, delay: float | None = None) -> None:
        wall = self._semaphores.wall_clock
        due = wall.now() + (self._semaphores.lease / 3 if delay is None else delay)
        slot.renewal_timer = wall.call_at(due, lambda: self._start_renewal(slot))

    def _start_renewal(self, slot: Permit) -> None:
        slot.renewal_timer = None
        slot.renewal = self._semaphores.run_in_background(self._renew_or_retry(slot))

    async def _renew_or_retry(self, slot: Permit) -> None:
        try:
            await self._extend_lease(slot)
        except StoreUnavailable:
            self._schedule_renewal(slot, _RETRY_DELAY)
        except StoreError:
            slot.lost = True
        else:
            self._schedule_renewal(slot)

    async def _extend_lease(self, slot: Permit) -> None:
        """Says that a slot is still held. Who was told that the store is away finds what it has written all the same,
        and who has slept for too long has it again if nobody wants it. Raises `Conflict` if somebody else has it."""
        until = self._semaphores.wall_clock.now() + self._semaphores.lease
        store = self._semaphores.store
        try:
            slot.version = await store.commit([Put(slot.key, slot.holder_id, until, slot.version)])
        except Conflict:
            item = await store.get(slot.key)
            if item is not None and item.value != slot.holder_id:
                raise
            version = ABSENT if item is None else item.version
            slot.version = await store.commit([Put(slot.key, slot.holder_id, until, version)])

    async def _release_permit(self, slot: Permit) -> None:
        """Lets others have a slot."""
        if slot.renewal is not None:
            await asyncio.wait([slot.renewal])
        if slot.renewal_timer is not None:
            slot.renewal_timer.cancel()
        if not slot.lost:
            with contextlib.suppress(StoreError):  # it runs out by itself
                await self._semaphores.store.commit([Delete(slot.key, slot.version)])


async def scan_all(store: Store, prefix: str) -> list[Item]:
    """All that is kept under a prefix."""
    found: list[Item] = []
    while page := await store.scan(prefix, after=found[-1].key if found else "", limit=_SCAN_PAGE_SIZE):
        found += page
    return found
