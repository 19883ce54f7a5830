"""Concurrency limit of a tool across all processes that share a store: a distributed semaphore.

A permit is a numbered item in the store with a lease. A process acquires it by creating the item and renews the lease
every few seconds. The permits of a dead process therefore expire soon. If a process is paused for longer than the
lease, another process may acquire its permit while its call still runs.

A process with waiting calls creates a ticket, also an item with a lease. Free permits go to the process with the oldest
ticket: a process acquires one only if more are free than there are older tickets. Calls of one process pass a permit on
among themselves for a moment, which costs no store access, and then release it, so no process starves.
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

_LOCAL_HANDOVER: Final = 1.0  # seconds for which calls of one process may pass a permit on
_RETRY_DELAY: Final = 0.1  # seconds between attempts while the store is unavailable
_MIN_POLL_INTERVAL: Final = 0.05  # seconds between scans without a change
_SCAN_PAGE_SIZE: Final = 500


def _unavailable(tool: str) -> NotNow:
    return NotNow(f"the concurrency limit of tool {tool!r} cannot be checked now; try again later")


class SharedSemaphores:
    """The shared semaphores of all tools of a server."""

    def __init__(self, store: Store, wall_clock: Clock, server: str, lease: float) -> None:
        """`lease` is the time in seconds after which a permit expires unless it is renewed."""
        self.store = store
        self.wall_clock = wall_clock
        self.lease = lease
        self.process = secrets.token_hex(8)
        self._server = server
        self._serial_numbers = count()
        self._semaphores: dict[ConcurrencyLimit, SharedSemaphore] = {}
        self._background: set[asyncio.Task[None]] = set()

    def semaphore_for(self, limit: ConcurrencyLimit) -> "SharedSemaphore":
        """Return the semaphore of a tool."""
        semaphore = self._semaphores.get(limit)
        if semaphore is None:
            prefix = key_of("tool", key_of(self._server, limit.tool))
            semaphore = self._semaphores[limit] = SharedSemaphore(self, limit, prefix)
        return semaphore

    def new_holder_id(self) -> bytes:
        """Return an id that is unique across processes."""
        return f"{self.process}-{next(self._serial_numbers)}".encode()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Reject all waiting calls, and wait until permits are released."""
        for semaphore in self._semaphores.values():
            semaphore.close()
        if self._background:
            await asyncio.wait(self._background)


class Permit(Struct, eq=False):
    """The right to run one call, until its lease expires."""

    key: str
    holder_id: bytes  # unique, the value of the item
    version: int
    acquired_at: float
    lost: bool = False
    renewal_timer: Timer | None = None
    renewal: "asyncio.Task[None] | None" = None


class SharedSemaphore:
    """The semaphore of one tool, shared by the processes on a store."""

    def __init__(self, semaphores: SharedSemaphores, limit: ConcurrencyLimit, prefix: str) -> None:
        self._semaphores = semaphores
        self._limit = limit
        self._permit_prefix = f"{prefix}/slots/"
        self._ticket_prefix = f"{prefix}/waiting/"
        self._prefix = f"{prefix}/"
        self._queue: WaitQueue[Permit] = WaitQueue(limit)
        self._ticket: str | None = None  # key of this process's ticket, if it has one
        self._ticket_expires = 0.0
        self._changed = asyncio.Event()
        self._acquire_task: asyncio.Task[None] | None = None
        self._contended = False  # no permit was free; a watch reports changes

    async def acquire(self) -> Permit:
        """Wait for a permit. Raises `TooManyCalls`, or `NotNow` if the store is unavailable."""
        if self._contended and self._queue.full:
            raise TooManyCalls(self._limit)
        if self._acquire_task is None:
            self._acquire_task = self._semaphores.run_in_background(self._serve_waiters())
        return await self._queue.wait(self.release)

    def release(self, permit: Permit) -> None:
        """Return a permit: pass it to the next call of this process, or release it for other processes."""
        reusable = not permit.lost and self._semaphores.wall_clock.now() - permit.acquired_at < _LOCAL_HANDOVER
        if not (reusable and self._queue.grant(permit)):
            self._semaphores.run_in_background(self._release_permit(permit))

    def close(self) -> None:
        """Reject all waiting calls."""
        self._queue.fail_all(_unavailable(self._limit.tool))
        self._changed.set()

    # --- acquiring --------------------------------------------------------------------------------

    async def _serve_waiters(self) -> None:
        """Acquire permits until no call waits."""
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
        """Acquire free permits. Without any, return the time of the next attempt; with a watch in place, also create or
        renew the ticket."""
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
        """Return whether a key is the ticket of a process with precedence; the keys of tickets begin with their time. A
        ticket of this process that is being deleted does not count."""
        if not key.startswith(self._ticket_prefix) or key.endswith(self._semaphores.process):
            return False
        return self._ticket is None or key < self._ticket

    async def _acquire_permits(self, held: set[str], number: int) -> None:
        """Acquire permits in one commit; acquire none if another process has created one of them."""
        semaphores, now = self._semaphores, self._semaphores.wall_clock.now()
        free = [
            key
            for key in (f"{self._permit_prefix}{each:06}" for each in range(self._limit.max_concurrency))
            if key not in held
        ]
        acquired = [
            Permit(key, semaphores.new_holder_id(), ABSENT, now) for key in secrets.SystemRandom().sample(free, number)
        ]
        writes: list[Write] = [Put(permit.key, permit.holder_id, now + semaphores.lease, ABSENT) for permit in acquired]
        if self._ticket is not None:
            writes.append(Delete(self._ticket))
        with contextlib.suppress(Conflict):
            version = await semaphores.store.commit(writes)
            self._ticket = None
            for permit in acquired:
                permit.version = version
                self._schedule_renewal(permit)
                self.release(permit)

    async def _renew_ticket(self, now: float) -> None:
        """Create the ticket of this process, or renew its lease."""
        ticket = self._ticket or f"{self._ticket_prefix}{int(now * 1000):012x}-{self._semaphores.process}"
        until = now + self._semaphores.lease
        await self._semaphores.store.commit([Put(ticket, b"", until)])
        self._ticket, self._ticket_expires = ticket, until

    async def _delete_ticket(self, ticket: str) -> None:
        with contextlib.suppress(StoreError):  # the lease expires anyway
            await self._semaphores.store.commit([Delete(ticket)])

    async def _wait_for_change(self, until: float) -> None:
        """Wait for a change in the store, or until a time."""
        wall = self._semaphores.wall_clock
        timer = wall.call_at(max(until, wall.now() + _MIN_POLL_INTERVAL), self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    # --- renewing and releasing--------------------------------------------------------------------------

    def _schedule_renewal(self, permit: Permit, delay: float | None = None) -> None:
        wall = self._semaphores.wall_clock
        due = wall.now() + (self._semaphores.lease / 3 if delay is None else delay)
        permit.renewal_timer = wall.call_at(due, lambda: self._start_renewal(permit))

    def _start_renewal(self, permit: Permit) -> None:
        permit.renewal_timer = None
        permit.renewal = self._semaphores.run_in_background(self._renew_or_retry(permit))

    async def _renew_or_retry(self, permit: Permit) -> None:
        try:
            await self._extend_lease(permit)
        except StoreUnavailable:
            self._schedule_renewal(permit, _RETRY_DELAY)
        except StoreError:
            permit.lost = True
        else:
            self._schedule_renewal(permit)

    async def _extend_lease(self, permit: Permit) -> None:
        """Renew the lease of a permit. Raises `Conflict` if another process holds the permit.

        A conflict is resolved if an earlier write succeeded although the store reported that it is unavailable, or if
        the lease has expired and the permit is still free.
        """
        until = self._semaphores.wall_clock.now() + self._semaphores.lease
        store = self._semaphores.store
        try:
            permit.version = await store.commit([Put(permit.key, permit.holder_id, until, permit.version)])
        except Conflict:
            item = await store.get(permit.key)
            if item is not None and item.value != permit.holder_id:
                raise
            version = ABSENT if item is None else item.version
            permit.version = await store.commit([Put(permit.key, permit.holder_id, until, version)])

    async def _release_permit(self, permit: Permit) -> None:
        """Release a permit for all processes."""
        if permit.renewal is not None:
            await asyncio.wait([permit.renewal])
        if permit.renewal_timer is not None:
            permit.renewal_timer.cancel()
        if not permit.lost:
            with contextlib.suppress(StoreError):  # the lease expires anyway
                await self._semaphores.store.commit([Delete(permit.key, permit.version)])


async def scan_all(store: Store, prefix: str) -> list[Item]:
    """Return all items under a prefix."""
    found: list[Item] = []
    while page := await store.scan(prefix, after=found[-1].key if found else "", limit=_SCAN_PAGE_SIZE):
        found += page
    return found
