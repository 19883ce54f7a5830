"""Concurrency limit of a tool across all processes that share a store: a distributed semaphore.

A permit is a numbered item in the store that names its owner, the process that has created it, by its name in the
cluster. It is not renewed: a process that waits deletes the permits of processes that have departed. A process that was
evicted drops its permits, so another process may acquire one while the call still runs.

A process with waiting calls creates a ticket, also an item with an owner. Free permits go to the process with the
oldest ticket: a process acquires one only if more are free than there are older tickets. Calls of one process pass a
permit on among themselves for a moment, which costs no store access, and then release it, so no process starves.

Items of older releases have no owner. They expire unless they are renewed.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from trunkline.clock import Clock
from trunkline.errors import Conflict, NotNow, StoreError, StoreUnavailable
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, TooManyCalls, WaitQueue
from trunkline.stores.store import ABSENT, Delete, Item, Put, Store, Watch, Write, key_of, scan_all

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster

__all__ = ["Permit", "SharedSemaphore", "SharedSemaphores"]

_LOCAL_HANDOVER: Final = 1.0  # seconds for which calls of one process may pass a permit on
_RETRY_DELAY: Final = 0.1  # seconds between attempts while the store is unavailable
_MIN_POLL_INTERVAL: Final = 0.05  # seconds between scans without a change
_ITEM_TTL: Final = 24 * 3600.0  # seconds: longer than a call; older releases rely on it if an owner departs
_CHECKS_PER_LEASE: Final = 3  # of the owners of permits and tickets; the cluster reports most departures before that


def _unavailable(tool: str) -> NotNow:
    return NotNow(f"the concurrency limit of tool {tool!r} cannot be checked now; try again later")


def _owner_of(item: Item) -> str:
    """Return the process that has created a permit or ticket; an empty string for items of older releases."""
    return item.value.decode().rpartition("/")[0]


class SharedSemaphores:
    """The shared semaphores of all tools of a server."""

    def __init__(self, store: Store, wall_clock: Clock, server: str, cluster: "Cluster", process_lease: float) -> None:
        self.store = store
        self.wall_clock = wall_clock
        self.cluster = cluster
        self.check_interval = process_lease / _CHECKS_PER_LEASE
        self.closed = False
        self._server = server
        self._serial_numbers = count()
        self._semaphores: dict[ConcurrencyLimit, SharedSemaphore] = {}
        self._background: set[asyncio.Task[None]] = set()
        cluster.on_lost(lambda _: self._check_owners())

    def semaphore_for(self, limit: ConcurrencyLimit) -> "SharedSemaphore":
        """Return the semaphore of a tool."""
        semaphore = self._semaphores.get(limit)
        if semaphore is None:
            prefix = key_of("tool", key_of(self._server, limit.tool))
            semaphore = self._semaphores[limit] = SharedSemaphore(self, limit, prefix)
        return semaphore

    def new_holder_id(self) -> bytes:
        """Return an id that names this process and is unique across processes."""
        return f"{self.cluster.name}/{next(self._serial_numbers)}".encode()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def delete_later(self, key: str, holder_id: bytes, version: int | None = None) -> None:
        """Delete an item of this process in the background, once the store is available."""
        self.run_in_background(self._delete(key, holder_id, version))

    async def _delete(self, key: str, holder_id: bytes, version: int | None) -> None:
        while True:
            try:
                if version is None and (item := await self.store.get(key)) is not None and item.value == holder_id:
                    version = item.version
                if version is not None:
                    await self.store.commit([Delete(key, version)])
            except StoreUnavailable:
                if not self.closed:
                    await asyncio.sleep(_RETRY_DELAY)
                    continue
            except StoreError:
                pass  # it is deleted already, or another process has reclaimed it
            return

    def _check_owners(self) -> None:
        for semaphore in self._semaphores.values():
            semaphore.check_owners()

    async def close(self) -> None:
        """Reject all waiting calls, and wait until permits are released."""
        self.closed = True
        for semaphore in self._semaphores.values():
            semaphore.close()
        if self._background:
            await asyncio.wait(self._background)


class Permit(Struct, eq=False):
    """The right to run one call, until its owner is evicted."""

    key: str
    holder_id: bytes  # unique, the value of the item
    owner: str
    version: int
    acquired_at: float


class _Ticket(Struct, eq=False):
    """The place of a process in the queue."""

    key: str
    holder_id: bytes
    version: int | None = None  # None: the store has not confirmed it


class SharedSemaphore:
    """The semaphore of one tool, shared by the processes on a store."""

    def __init__(self, semaphores: SharedSemaphores, limit: ConcurrencyLimit, prefix: str) -> None:
        self._semaphores = semaphores
        self._limit = limit
        self._permit_prefix = f"{prefix}/slots/"
        self._ticket_prefix = f"{prefix}/waiting/"
        self._prefix = f"{prefix}/"
        self._queue: WaitQueue[Permit] = WaitQueue(limit)
        self._ticket: _Ticket | None = None  # of this process
        self._owners_checked_at = float("-inf")
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
        """Return a permit: pass it to the next call of this process, or release it for other processes. A process that
        was suspended may have been evicted, and its permits deleted, before it notices: it passes none on."""
        semaphores, cluster = self._semaphores, self._semaphores.cluster
        recent = 0 <= semaphores.wall_clock.now() - permit.acquired_at < _LOCAL_HANDOVER  # the clock may be set back
        owned = cluster.lease_valid and cluster.is_own_name(permit.owner)
        if not (recent and owned and self._queue.grant(permit)):
            semaphores.delete_later(permit.key, permit.holder_id, permit.version)

    def check_owners(self) -> None:
        """Look for departed owners with the next attempt, and start it now."""
        self._owners_checked_at = float("-inf")
        self._changed.set()

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
            self._drop_ticket()

    async def _try_acquire(self) -> float | None:
        """Acquire free permits. Without any, delete those of departed processes, or else return the time of the next
        attempt; with a watch in place, also create a ticket."""
        semaphores, now = self._semaphores, self._semaphores.wall_clock.now()
        items = await scan_all(semaphores.store, self._prefix)
        held = {item.key for item in items if item.key.startswith(self._permit_prefix)}
        ahead = sum(self._is_ahead(item.key) for item in items)
        free = min(self._limit.max_concurrency - len(held) - ahead, len(self._queue))
        if free > 0:
            await self._acquire_permits(held, free)
            return None
        if not 0 <= now - self._owners_checked_at < semaphores.check_interval:  # the clock may be set back
            self._owners_checked_at = now
            if departed := await self._find_departed(items):
                with contextlib.suppress(Conflict):  # another process was faster
                    await semaphores.store.commit([Delete(item.key, item.version) for item in departed])
                return None
        if self._contended:
            await self._ensure_ticket(now)
        ends = [item.expires for item in items if item.expires is not None]
        return min([self._owners_checked_at + semaphores.check_interval, *ends])

    async def _find_departed(self, items: Iterable[Item]) -> list[Item]:
        """Return the items of processes that have departed. Each process is checked once."""
        cluster = self._semaphores.cluster
        departed: set[str] = set()
        with contextlib.suppress(StoreUnavailable):  # the next check decides
            for owner in {_owner_of(item) for item in items} - {"", cluster.name}:
                if await cluster.evict_if_dead(owner):
                    departed.add(owner)
        return [item for item in items if _owner_of(item) in departed]

    def _is_ahead(self, key: str) -> bool:
        """Return whether a key is the ticket of a process with precedence; the keys of tickets begin with their time. A
        ticket of this process that is being deleted does not count."""
        if not key.startswith(self._ticket_prefix) or key.endswith(self._semaphores.cluster.name):
            return False
        return self._ticket is None or key < self._ticket.key

    async def _acquire_permits(self, held: set[str], number: int) -> None:
        """Acquire permits in one commit; acquire none if another process has created one of them."""
        semaphores, now = self._semaphores, self._semaphores.wall_clock.now()
        free = [
            key
            for key in (f"{self._permit_prefix}{each:06}" for each in range(self._limit.max_concurrency))
            if key not in held
        ]
        owner = await semaphores.cluster.confirm_name()  # peers delete the permits of an evicted name
        acquired = [
            Permit(key, semaphores.new_holder_id(), owner, ABSENT, now)
            for key in secrets.SystemRandom().sample(free, number)
        ]
        writes: list[Write] = [Put(permit.key, permit.holder_id, now + _ITEM_TTL, ABSENT) for permit in acquired]
        if self._ticket is not None:
            writes.append(Delete(self._ticket.key))
        try:
            version = await semaphores.store.commit(writes)
        except Conflict:
            return
        except StoreUnavailable:
            for permit in acquired:  # they may have been created
                semaphores.delete_later(permit.key, permit.holder_id)
            raise
        self._ticket = None
        for permit in acquired:
            permit.version = version
            self.release(permit)

    async def _ensure_ticket(self, now: float) -> None:
        """Create the ticket of this process. One that it has under a previous name is dropped."""
        semaphores = self._semaphores
        if self._ticket is not None and self._ticket.key.endswith(semaphores.cluster.name):
            return
        self._drop_ticket()
        key = f"{self._ticket_prefix}{int(now * 1000):012x}-{semaphores.cluster.name}"
        self._ticket = ticket = _Ticket(key, semaphores.new_holder_id())
        ticket.version = await semaphores.store.commit([Put(key, ticket.holder_id, now + _ITEM_TTL)])

    def _drop_ticket(self) -> None:
        if self._ticket is not None:
            self._semaphores.delete_later(self._ticket.key, self._ticket.holder_id, self._ticket.version)
            self._ticket = None

    async def _wait_for_change(self, until: float) -> None:
        """Wait for a change in the store, or until a time."""
        wall = self._semaphores.wall_clock
        timer = wall.call_at(max(until, wall.now() + _MIN_POLL_INTERVAL), self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
