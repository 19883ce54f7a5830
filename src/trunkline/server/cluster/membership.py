"""Membership: the table of known peers, the lease of this process with its heartbeat, and its connection to the bus.

A process is evicted when another process holds the lease of its name. Another process can acquire that lease only after
it has expired, or if it knows for certain that the process has ended. It then holds the lease for so long that the
evicted process, whenever it resumes, finds out.

A store that loses its data loses all leases, the record of every eviction, and its identity. So a process that has to
acquire its lease again compares the identity with the one that it joined under. If they differ, the process counts as
evicted, because a peer may have acquired the sessions that it holds. And while an identity is younger than a lease,
silence evicts no process: a process that has not noticed the loss relies on its lease until the next renewal was due.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from secrets import token_hex
from typing import Final, TypeVar

from trunkline.clock import Clock, Timer
from trunkline.errors import Fenced, StoreError, StoreUnavailable
from trunkline.server.cluster.messages import CHECK_LEASE, HEARTBEAT, PING, BufferedListener, ClusterCallbacks
from trunkline.stores.bus import Bus, BusListener
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.shared_values import load_identity, read_identity
from trunkline.stores.store import Held, Lease, Store, key_of

__all__ = ["CLOCK_MARGIN", "HEARTBEATS_PER_LEASE", "Membership", "PeerTable", "ProcessLease", "evict_process"]

HEARTBEATS_PER_LEASE: Final = 3

_MAX_DEPARTED: Final = 1000  # names of departed processes; about an older one the store is asked again
_NEVER: Final = float("-inf")


class PeerTable:
    """Known peers, with the time until which each counts as alive, and departed processes."""

    def __init__(self, lease_ttl: float) -> None:
        """`lease_ttl` is the number of seconds for which a process may be silent."""
        self._lease_ttl = lease_ttl
        self._alive_until: dict[str, float] = {}  # by name: until when the peer needs no check
        self._departed: dict[str, None] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the peers that have not departed."""
        return frozenset(self._alive_until)

    def __len__(self) -> int:
        return len(self._alive_until)

    def add(self, name: str, now: float) -> bool:
        """Add a peer. Return False if it is known or has departed."""
        if name in self._alive_until or name in self._departed:
            return False
        self._alive_until[name] = now + self._lease_ttl
        return True

    def mark_alive(self, name: str, until: float) -> None:
        """Note that a peer needs no check until a time."""
        if name in self._alive_until:
            self._alive_until[name] = until

    def mark_all_alive(self, until: float) -> None:
        """Note that no peer needs a check until a time, because this process itself was unable to receive."""
        self._alive_until = dict.fromkeys(self._alive_until, until)

    def remove(self, name: str) -> bool:
        """Remove a departed peer for good. Return False if its departure is known."""
        if name in self._departed:
            return False
        self._alive_until.pop(name, None)
        self._departed[name] = None
        if len(self._departed) > _MAX_DEPARTED:
            del self._departed[next(iter(self._departed))]
        return True

    def clear(self) -> None:
        """Remove all peers, but not the departed ones."""
        self._alive_until.clear()

    def has_departed(self, name: str) -> bool:
        """Return whether a process is known to have departed."""
        return name in self._departed

    def is_silent(self, name: str, now: float) -> bool:
        """Return whether a peer has been silent for so long that it needs a check."""
        return self._alive_until.get(name, _NEVER) <= now

    def next_silent_at(self, names: Iterable[str], now: float) -> float | None:
        """Return when the next of some peers will be silent if it sends nothing; None if all are silent now."""
        return min((until for name in names if (until := self._alive_until.get(name, _NEVER)) > now), default=None)


CLOCK_MARGIN: Final = 0.1  # of a lease, for clocks that run at different speeds
_EVICTION_TTL: Final = 24 * 3600.0  # seconds for which an eviction is recorded
_RELEASE_TIMEOUT: Final = 1.0  # seconds

_log: Final = logging.getLogger("trunkline")

T = TypeVar("T")


class ProcessLease:
    """Lease of this process in the store, under one name."""

    def __init__(self, store: Store, ttl: float, clock: Clock, wall: Clock) -> None:
        self.name = token_hex(8)
        self.valid_until = float("-inf")  # on the loop's clock: until then no peer can have evicted this process
        self.may_evict_from = float("inf")  # on the loop's clock: from then on silent peers may be evicted
        self.identity: StoreIdentity | None = None  # identity of the store when this process joined
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._wall = wall
        self._lease: Lease | None = None

    async def acquire(self) -> bool:
        """Acquire the lease, for the first time or again. Return False if this process was evicted, or may have been
        because the store lost its data."""
        last, requested_at = self._lease, self._clock.now()
        if last is not None and self._wall.now() >= last.expires + _EVICTION_TTL / 2:
            return False  # the record of an eviction may have expired by now
        lease = await await_store(self._store.acquire(_lease_key(self.name), self.name, self._ttl), self._ttl)
        if isinstance(lease, Held):
            return False
        if self.identity is None:
            self._lease = lease  # stored now so that it is released if the rest fails
            await self._load_store_identity(lease, requested_at)
        elif not await self._is_same_store():  # read after the lease was acquired, so from the store that granted it
            return False
        self._set_lease(lease, requested_at)
        return True

    async def _load_store_identity(self, lease: Lease, requested_at: float) -> None:
        now = lease.expires - self._ttl  # on the store's clock
        self.identity = await await_store(load_identity(self._store, now), self._ttl)
        age = max(0.0, now - self.identity.created)
        self.may_evict_from = requested_at + max(0.0, self._ttl - age)

    async def _is_same_store(self) -> bool:
        """Return whether the store has kept its data since this process joined."""
        same = await await_store(read_identity(self._store), self._ttl) == self.identity
        if not same:
            _log.warning("the store has lost its data: the sessions and tasks stored there are gone")
        return same

    async def renew(self) -> bool:
        """Renew the lease. Return False if it has expired or another process holds it."""
        if self._lease is None:
            return False
        requested_at = self._clock.now()
        try:
            self._set_lease(await await_store(self._store.renew(self._lease, self._ttl), self._ttl), requested_at)
        except Fenced:
            return False
        return True

    def _set_lease(self, lease: Lease, requested_at: float) -> None:
        self._lease = lease
        self.valid_until = requested_at + self._ttl * (1 - CLOCK_MARGIN)

    async def release(self) -> None:
        """Release the lease."""
        self.invalidate()
        lease, self._lease = self._lease, None
        if lease is not None:
            await await_store(self._store.release(lease), min(self._ttl, _RELEASE_TIMEOUT))

    def invalidate(self) -> None:
        """Stop relying on the lease."""
        self.valid_until = float("-inf")


async def evict_process(store: Store, name: str, evictor: str, timeout: float, *, known_dead: bool) -> Lease | Held:
    """Acquire the lease of another process, which evicts it. Return the lease, or the current holder: the process
    itself if it cannot be evicted, or the process that evicted it before. With `known_dead` an unexpired lease is taken
    over."""
    key = _lease_key(name)
    outcome = await await_store(store.acquire(key, evictor, _EVICTION_TTL), timeout)
    if known_dead and isinstance(outcome, Held) and outcome.holder == name:
        outcome = await await_store(store.acquire(key, evictor, _EVICTION_TTL, over=outcome.token), timeout)
    return outcome


async def await_store(operation: Awaitable[T], timeout: float) -> T:
    """Return the result of a store operation. Raise `StoreUnavailable` if it takes longer than `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await operation
    except TimeoutError:
        raise StoreUnavailable(f"the store did not answer within {timeout:g} seconds") from None


def _lease_key(name: str) -> str:
    return key_of("process", name)


_RETRIES_PER_LEASE: Final = 12  # while the store is unavailable


class Membership:
    """Name, lease and bus connection of this process, and the heartbeat that renews the lease and tells the peers. An
    evicted process has no membership until it has joined again under another name."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        listener: BusListener,
        peers: PeerTable,
        callbacks: ClusterCallbacks,
        *,
        lease_ttl: float,
        clock: Clock,
        wall: Clock,
    ) -> None:
        """`bus` serves the first membership; for later ones the store creates others. `listener` receives the events of
        all of them."""
        self._store = store
        self._listener = listener
        self._peers = peers
        self._callbacks = callbacks
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._wall = wall
        self._initial_bus: Bus | None = bus
        self._bus: Bus | None = None  # while this process has a membership
        self._buffer: BufferedListener | None = None  # of that bus
        self._join_lock = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._timer: Timer | None = None  # of the next heartbeat
        self.lease = self._new_lease()

    def _new_lease(self) -> ProcessLease:
        return ProcessLease(self._store, self._lease_ttl, self._clock, self._wall)

    @property
    def name(self) -> str:
        """Current name of this process, or its last one."""
        return self.lease.name

    @property
    def lease_valid(self) -> bool:
        """Whether no peer can have evicted this process."""
        return self._clock.now() < self.lease.valid_until

    @property
    def may_evict(self) -> bool:
        """Whether this process may evict silent peers: its own lease is valid, and the leases from before a loss of the
        store's data have expired."""
        return self.lease_valid and self._clock.now() >= self.lease.may_evict_from

    @property
    def joined(self) -> bool:
        """Whether this process has a name and an open bus."""
        return self._bus is not None

    @property
    def running(self) -> bool:
        """Whether this process has joined and not left, even if it is between two names."""
        return self._timer is not None

    # --- joining and leaving ---------------------------------------------------------------------

    async def start(self) -> None:
        """Join, unless this process has joined already, and start the heartbeat."""
        async with self._join_lock:
            if not self.running:
                await self._join()
                self._schedule(HEARTBEATS_PER_LEASE)

    async def _join(self) -> None:
        """Choose a name, acquire its lease and open the bus. Raise `StoreUnavailable` if that is impossible now."""
        bus, self._initial_bus = self._initial_bus or self._store.bus(), None
        lease = self._new_lease()
        buffer = BufferedListener(self._listener)
        try:
            if bus is None or not await lease.acquire() or lease.identity is None:
                raise StoreUnavailable("cannot join the cluster: the store has no bus, or refused the process lease")
            await bus.open(lease.name, buffer, lease.identity)
        except BaseException:
            with suppress(StoreError):
                await lease.release()
            raise
        self.lease, self._bus, self._buffer = lease, bus, buffer
        self._callbacks.report_step("Join", lease.name)
        buffer.start()
        bus.publish(HEARTBEAT)

    async def _rejoin(self) -> None:
        """Join again. This process may have missed any broadcast meanwhile."""
        previous_identity = self.lease.identity
        await self._join()
        if self.lease.identity != previous_identity:
            self._callbacks.notify(self._callbacks.on_store_reset)
        self._callbacks.notify(self._callbacks.on_lost, None)
        self._callbacks.notify(self._callbacks.on_rejoined)
        self._callbacks.notify(self._callbacks.on_missed)

    async def stop(self) -> None:
        """Stop the heartbeat and cancel a renewal in progress."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    async def disconnect(self) -> None:
        """Close the bus and forget the peers."""
        self._callbacks.notify(self._callbacks.on_disconnect)
        bus, self._bus = self._bus, None
        self._peers.clear()
        if self._buffer is not None:
            self._buffer.stop()
        if bus is not None:
            await bus.close()

    # --- heartbeat -------------------------------------------------------------------------------

    def _schedule(self, per_lease: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._clock.now() + self._lease_ttl / per_lease, self._on_timer)

    def _on_timer(self) -> None:
        self._schedule(HEARTBEATS_PER_LEASE)
        self.renew_now()
        self._callbacks.notify(self._callbacks.on_heartbeat)

    def renew_now(self) -> None:
        """Start a renewal, unless one is in progress."""
        if self._renewal is None and self.running:
            self._renewal = asyncio.get_running_loop().create_task(self._renew())
            self._renewal.add_done_callback(self._finish_renewal)

    def _finish_renewal(self, renewal: "asyncio.Task[None]") -> None:
        self._renewal = None
        error = None if renewal.cancelled() else renewal.exception()
        if error is not None and self.running:
            self._schedule(_RETRIES_PER_LEASE)
            if not isinstance(error, StoreError):
                self._callbacks.report_failure("renewing the process lease", error)

    async def ensure_lease_valid(self) -> None:
        """Renew the lease if it may have expired. Raise `StoreUnavailable` if it is still not valid."""
        if self.lease_valid:
            return
        self.renew_now()
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        if not self.lease_valid:
            raise StoreUnavailable("this process cannot renew its lease and may have been evicted; try again later")

    async def _renew(self) -> None:
        """Renew the lease, or acquire it again if it has expired; handle the eviction if another process holds it."""
        if not self.joined:
            await self._rejoin()
            return
        valid_until = self.lease.valid_until
        regained = not await self.lease.renew()
        if regained and not await self.lease.acquire():
            await self._handle_eviction()
            return
        self.broadcast(HEARTBEAT)
        # this process may have been paused, so the silence of its peers proves nothing
        if self._clock.now() >= valid_until:
            self._peers.mark_all_alive(self._clock.now() + self._lease_ttl)
        if regained:
            self._callbacks.report_step("Regain", self.name)
            self._callbacks.notify(self._callbacks.on_missed)

    async def _handle_eviction(self) -> None:
        """Give up everything held under the old name, and join again under a new one."""
        self._callbacks.report_step("Deposed", self.name)
        self.lease.invalidate()
        self._peers.remove(self.name)
        self._callbacks.notify(self._callbacks.on_evicted)
        self._callbacks.notify(self._callbacks.on_lost, None)
        await self.disconnect()
        await self._rejoin()

    # --- sending ---------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes = b"") -> bool:
        """Send a message to one process. Return False if it was not sent: the process has departed, or this process has
        no bus now."""
        if self._peers.has_departed(to):
            return False
        return self._bus is not None and self._bus.send(to, kind + body)

    def broadcast(self, kind: bytes, body: bytes = b"") -> None:
        """Send a message to all peers."""
        if self._bus is not None:
            self._bus.publish(kind + body)

    async def drain(self) -> None:
        """Wait while much of the sent data has not left yet."""
        if self._bus is not None:
            await self._bus.sent()

    def ping(self, name: str) -> bool:
        """Ask a process for a sign of life. Return False if the bus knows for certain that the process has ended."""
        return self._bus is None or self._bus.send(name, PING)

    def warn_evicted(self, name: str) -> None:
        """Tell an evicted process that does not know it yet to check its lease."""
        if self._bus is not None:
            self._bus.send(name, CHECK_LEASE)
