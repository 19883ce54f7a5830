"""Who serves together, seen from one process: who was met, who was silent for how long, and who is gone.

A process's standing in the store: the lease that says it is alive, and what it takes to be declared dead.

A process is dead when somebody else holds the lease of its name. That can be only once it has run out, or by one who
knows for certain that nobody is there. Such a lease is held for so long that whoever wakes up later finds out.

A store that loses its data loses all leases, the record of every eviction, and its identity. So a process that has to
acquire its lease again compares the identity with the one that it joined under: if it is another, the process counts as
evicted, for another process may have been given what it holds. And while an identity is younger than a lease, silence
evicts no process: one that has not noticed the loss counts on its lease until it should have been renewed.

The place of this process among the others: its name, the lease that goes with it, and the bus on which it is known
by it. Who was declared dead has no place, until it comes back under another name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from secrets import token_hex
from typing import Final, TypeVar

from trunkline.clock import Clock
from trunkline.errors import Fenced, StoreError, StoreUnavailable
from trunkline.server.cluster.messages import CHECK_LEASE, HEARTBEAT, PING, BufferedListener, ClusterCallbacks
from trunkline.stores.bus import Bus, BusListener
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.shared_values import load_identity, read_identity
from trunkline.stores.store import Held, Lease, Store, key_of

__all__ = ["CLOCK_MARGIN", "Membership", "PeerTable", "ProcessLease", "evict_process"]

_MAX_DEPARTED: Final = 1000  # names of those who are gone; of others it is found out again
_NEVER: Final = float("-inf")


class PeerTable:
    """All of them but this process."""

    def __init__(self, lease_ttl: float) -> None:
        """`seconds` is how long one may be silent."""
        self._lease_ttl = lease_ttl
        self._alive_until: dict[str, float] = {}  # of those who were met: until when nobody needs to ask after them
        self._departed: dict[str, None] = {}

    @property
    def names(self) -> frozenset[str]:
        """Those who were met and are not gone."""
        return frozenset(self._alive_until)

    def __len__(self) -> int:
        return len(self._alive_until)

    def add(self, name: str, now: float) -> bool:
        """One is there; False if that is known, or if it is not really."""
        if name in self._alive_until or name in self._departed:
            return False
        self._alive_until[name] = now + self._lease_ttl
        return True

    def mark_alive(self, name: str, until: float) -> None:
        """Nobody needs to ask after that one until then."""
        if name in self._alive_until:
            self._alive_until[name] = until

    def mark_all_alive(self, until: float) -> None:
        """Nobody needs to ask after anybody until then: it was this process that has heard nothing."""
        self._alive_until = dict.fromkeys(self._alive_until, until)

    def remove(self, name: str) -> bool:
        """One is gone, for ever; False if that is known."""
        if name in self._departed:
            return False
        self._alive_until.pop(name, None)
        self._departed[name] = None
        if len(self._departed) > _MAX_DEPARTED:
            del self._departed[next(iter(self._departed))]
        return True

    def clear(self) -> None:
        """Nobody was met."""
        self._alive_until.clear()

    def has_departed(self, name: str) -> bool:
        """Whether that one is known to be gone."""
        return name in self._departed

    def is_silent(self, name: str, now: float) -> bool:
        """Whether somebody needs to ask after that one."""
        return self._alive_until.get(name, _NEVER) <= now

    def next_silent_at(self, names: Iterable[str], now: float) -> float | None:
        """When the next of those who are not silent will be, if nothing is heard; None if all are."""
        return min((until for name in names if (until := self._alive_until.get(name, _NEVER)) > now), default=None)

    @property
    def most_silent(self) -> str | None:
        """The one that was not heard of for longest."""
        return min(self._alive_until, key=self._alive_until.__getitem__, default=None)


CLOCK_MARGIN: Final = 0.1  # of a lease: for clocks that do not go alike
_EVICTION_TTL: Final = 24 * 3600.0  # seconds that it can be found out
_RELEASE_TIMEOUT: Final = 1.0  # seconds, at most, that are spent on giving a lease back

_log: Final = logging.getLogger("trunkline")

T = TypeVar("T")


class ProcessLease:
    """The lease of one process, under one name."""

    def __init__(self, store: Store, ttl: float, clock: Clock, wall: Clock) -> None:
        self.name = token_hex(8)
        self.valid_until = float("-inf")  # on the clock of the loop: nobody can have declared this process dead
        self.may_evict_from = float("inf")  # on the clock of the loop: from then on silence may be taken for death
        self.identity: StoreIdentity | None = None  # of the store, when this process joined
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._wall = wall
        self._lease: Lease | None = None

    async def acquire(self) -> bool:
        """Takes the lease, for the first time or again; False if somebody has declared this process dead, or may have,
        since the store has lost its data."""
        last, asked = self._lease, self._clock.now()
        if last is not None and self._wall.now() >= last.expires + _EVICTION_TTL / 2:
            return False  # somebody may have, and nobody would know by now
        lease = await await_store(self._store.acquire(_lease_key(self.name), self.name, self._ttl), self._ttl)
        if isinstance(lease, Held):
            return False
        if self.identity is None:
            self._lease = lease  # so that it is released if the rest fails
            await self._load_store_identity(lease, asked)
        elif not await self._is_same_store():  # asked after the lease was given, so it was given by the same store
            return False
        self._set_lease(lease, asked)
        return True

    async def _load_store_identity(self, lease: Lease, requested_at: float) -> None:
        now = lease.expires - self._ttl  # on the store's clock
        self.identity = await await_store(load_identity(self._store, now), self._ttl)
        age = max(0.0, now - self.identity.created)
        self.may_evict_from = requested_at + max(0.0, self._ttl - age)

    async def _is_same_store(self) -> bool:
        """Whether the store has kept its data since this process joined."""
        same = await await_store(read_identity(self._store), self._ttl) == self.identity
        if not same:
            _log.warning("the store has lost its data: sessions and tasks that were kept there are gone")
        return same

    async def renew(self) -> bool:
        """Keeps the lease; False if it has run out."""
        if self._lease is None:
            return False
        asked = self._clock.now()
        try:
            self._set_lease(await await_store(self._store.renew(self._lease, self._ttl), self._ttl), asked)
        except Fenced:
            return False
        return True

    def _set_lease(self, lease: Lease, requested_at: float) -> None:
        self._lease = lease
        self.valid_until = requested_at + self._ttl * (1 - CLOCK_MARGIN)

    async def release(self) -> None:
        """Gives the lease back."""
        self.invalidate()
        lease, self._lease = self._lease, None
        if lease is not None:
            await await_store(self._store.release(lease), min(self._ttl, _RELEASE_TIMEOUT))

    def invalidate(self) -> None:
        """Nothing is sure any more."""
        self.valid_until = float("-inf")


async def evict_process(store: Store, name: str, evictor: str, timeout: float, *, known_dead: bool) -> Lease | Held:
    """Declares a process dead: a lease if that is done now; who holds it if it cannot be, or was done before."""
    found = await await_store(store.acquire(_lease_key(name), evictor, _EVICTION_TTL), timeout)
    if known_dead and isinstance(found, Held) and found.holder == name:
        found = await await_store(store.acquire(_lease_key(name), evictor, _EVICTION_TTL, over=found.token), timeout)
    return found


async def await_store(operation: Awaitable[T], timeout: float) -> T:
    """What a store answers in so many seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await operation
    except TimeoutError:
        raise StoreUnavailable(f"the store has not answered within {timeout:g} seconds") from None


def _lease_key(name: str) -> str:
    return key_of("process", name)


class Membership:
    """One place at a time."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        peers: PeerTable,
        callbacks: ClusterCallbacks,
        *,
        lease_ttl: float,
        clock: Clock,
        wall: Clock,
    ) -> None:
        """`bus` is for the first place; the store has others."""
        self._store = store
        self._peers = peers
        self._callbacks = callbacks
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._wall = wall
        self._initial_bus: Bus | None = bus
        self._bus: Bus | None = None  # open, between entering and leaving
        self._listener: BufferedListener | None = None
        self.lease = self._new_lease()

    def _new_lease(self) -> ProcessLease:
        return ProcessLease(self._store, self._lease_ttl, self._clock, self._wall)

    @property
    def name(self) -> str:
        """What this process is called, or was called last."""
        return self.lease.name

    @property
    def lease_valid(self) -> bool:
        """Whether nobody can have declared this process dead."""
        return self._clock.now() < self.lease.valid_until

    @property
    def may_evict(self) -> bool:
        """Whether this process may declare others dead that are silent: it is sure that it lives itself, and all that
        were sure of it before the store lost its data have found out."""
        return self.lease_valid and self._clock.now() >= self.lease.may_evict_from

    @property
    def joined(self) -> bool:
        """Whether this process has a place now."""
        return self._bus is not None

    async def join(self, target: BusListener) -> None:
        """Makes up a name, and has it known."""
        bus, self._initial_bus = self._initial_bus or self._store.bus(), None
        standing = self._new_lease()
        ears = BufferedListener(target)
        try:
            if bus is None or not await standing.acquire() or standing.identity is None:
                raise StoreUnavailable("there is no way to the processes that share the store")
            await bus.open(standing.name, ears, standing.identity)
        except BaseException:
            with suppress(StoreError):
                await standing.release()
            raise
        self.lease, self._bus, self._listener = standing, bus, ears
        self._callbacks.report_step("Join", standing.name)
        ears.start()
        bus.publish(HEARTBEAT)

    async def leave(self) -> None:
        """Says and hears nothing any more."""
        bus, self._bus = self._bus, None
        self._peers.clear()
        if self._listener is not None:
            self._listener.stop()
        if bus is not None:
            await bus.close()

    # --- saying ------------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes = b"") -> bool:
        """Sends something to one process. False if nothing was sent: it is certain that nobody is there, or this
        process has no name for now."""
        if self._peers.has_departed(to):
            return False
        return self._bus is not None and self._bus.send(to, kind + body)

    def broadcast(self, kind: bytes, body: bytes = b"") -> None:
        """Sends something to all others."""
        if self._bus is not None:
            self._bus.publish(kind + body)

    async def drain(self) -> None:
        """Waits while much of what was sent has not left yet."""
        if self._bus is not None:
            await self._bus.sent()

    def ping(self, name: str) -> bool:
        """False if it is certain that a process is not there; otherwise it is asked to say that it is."""
        return self._bus is None or self._bus.send(name, PING)

    def warn_evicted(self, name: str) -> None:
        """Tells a process that others take for dead, and that does not know, to see for itself."""
        if self._bus is not None:
            self._bus.send(name, CHECK_LEASE)
