"""Failure detector: suspects peers after lost messages, and evicts those whose lease has expired.

A peer is checked when it has been silent for a lease, when the bus knows that it has ended, or when another process
reports its eviction. A check is one store operation (`evict_process`); concurrent checks of one peer share it. A
suspected peer is one whose messages may have been lost: requests to it wait until it sends a message or is evicted.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from trunkline.clock import Clock, Timer
from trunkline.errors import StoreUnavailable
from trunkline.server.cluster.broadcast import ReliableBroadcast
from trunkline.server.cluster.membership import (
    CLOCK_MARGIN,
    HEARTBEATS_PER_LEASE,
    Membership,
    PeerTable,
    evict_process,
)
from trunkline.server.cluster.messages import EVICTED, PING, ClusterCallbacks
from trunkline.stores.bus import is_process_name
from trunkline.stores.store import Held, Lease, Store

__all__ = ["FailureDetector", "SuspectedPeers"]


class SuspectedPeers:
    """Peers whose messages may have been lost, each with a future that resolves when the suspicion ends."""

    def __init__(self) -> None:
        self._resolved: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._resolved

    def add(self, names: Iterable[str]) -> None:
        """Suspect peers."""
        for name in names:
            if name not in self._resolved:
                self._resolved[name] = asyncio.get_running_loop().create_future()

    def remove(self, name: str) -> None:
        """End the suspicion of a peer that has sent a message or has departed."""
        if (settled := self._resolved.pop(name, None)) is not None and not settled.done():
            settled.set_result(None)

    def clear(self) -> None:
        """End all suspicions."""
        for name in list(self._resolved):
            self.remove(name)

    async def wait(self, name: str, clock: Clock, deadline: float) -> None:
        """Wait until the suspicion of a peer ends, or until the deadline."""
        if (settled := self._resolved.get(name)) is None:
            return
        due = asyncio.Event()
        timer, waiting = clock.call_at(deadline, due.set), asyncio.ensure_future(due.wait())
        try:
            await asyncio.wait([settled, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiting.cancel()


_SUSPECT_TIMEOUT_LEASES: Final = 2  # leases: how long requests wait for a suspected peer that holds its lease


class FailureDetector:
    """Decides which peers are alive, suspected or dead, as seen from this process."""

    def __init__(
        self,
        membership: Membership,
        peers: PeerTable,
        callbacks: ClusterCallbacks,
        *,
        broadcasts: ReliableBroadcast,
        store: Store,
        lease_ttl: float,
        clock: Clock,
        wall: Clock,
    ) -> None:
        self._membership = membership
        self._peers = peers
        self._callbacks = callbacks
        self._broadcasts = broadcasts
        self._store = store
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._wall = wall
        self.suspects = SuspectedPeers()
        self._checks: dict[tuple[str, bool], asyncio.Task[bool]] = {}  # running ones, by name and certainty
        self._next_check: tuple[float, Timer] | None = None

    # --- messages seen and lost ---------------------------------------------------------------------

    def add_peer(self, name: str) -> None:
        """Add a peer to the peer table, unless it is known already."""
        if name != self._membership.name and self._peers.add(name, self._clock.now()):
            self._callbacks.report_step("Meet", name)

    def record_message(self, name: str) -> None:
        """Add the sender of a message as a peer, and stop suspecting it."""
        self.add_peer(name)
        self.suspects.remove(name)

    def record_heartbeat(self, name: str) -> None:
        """Note that a peer has renewed its lease."""
        self._peers.mark_alive(name, self._clock.now() + self._lease_ttl)

    def suspect(self, name: str | None) -> None:
        """Suspect a peer, or with None all peers, after messages may have been lost. Broadcasts that a reachable peer
        has not acknowledged are sent again."""
        if name is not None and self._peers.has_departed(name):
            return  # its departure was reported
        self.suspects.add(self._peers.names if name is None else (name,))
        self._callbacks.notify(self._callbacks.on_lost, name)
        if name is None:
            self._membership.broadcast(PING)
        elif not self._membership.ping(name):
            self._start_check(name, known_dead=True)
            return
        for peer in self._broadcasts.awaited_peers() if name is None else (name,):
            self._broadcasts.resend(peer)

    # --- eviction ----------------------------------------------------------------------------------

    async def evict_if_dead(self, name: str) -> bool:
        """Return whether a process has departed, and evict it first if it has been silent for too long. Raise
        `StoreUnavailable` if the store cannot decide that. Other strings than process names count as alive."""
        if self._peers.has_departed(name):
            return True
        if name == self._membership.name or not is_process_name(name):
            return False
        certain = not self._membership.ping(name)
        if not certain:
            await self._membership.ensure_lease_valid()
            if not self._membership.may_evict or not self._peers.is_silent(name, self._clock.now()):
                return False
        return await asyncio.shield(self._start_check(name, known_dead=certain))

    async def wait_until_reachable(self, name: str) -> bool:
        """Return whether messages can be sent to a process. For a suspected process, wait for a message from it or for
        its eviction. Raise `StoreUnavailable` if the store cannot decide, or if the process holds its lease but stays
        silent."""
        began = self._clock.now()
        while name in self.suspects:
            if await self.evict_if_dead(name):
                return False
            if (now := self._clock.now()) >= began + _SUSPECT_TIMEOUT_LEASES * self._lease_ttl:
                raise StoreUnavailable("a process holds its lease but cannot be reached over the bus; try again later")
            await self.suspects.wait(name, self._clock, now + self._lease_ttl / HEARTBEATS_PER_LEASE)
        return not self._peers.has_departed(name)

    def _start_check(self, name: str, *, known_dead: bool = False) -> "asyncio.Task[bool]":
        """Return a task that tells whether a process is dead, and evicts it if its lease has expired. With `known_dead`
        the process has ended for certain, so its unexpired lease is taken over. Concurrent checks share one task."""
        key = name, known_dead
        if key not in self._checks:
            check = self._checks[key] = asyncio.get_running_loop().create_task(self._check(name, known_dead=known_dead))
            check.add_done_callback(partial(self._finish_check, key))
        return self._checks[key]

    async def _check(self, name: str, *, known_dead: bool) -> bool:
        evictor = self._membership.name
        lease = await evict_process(self._store, name, evictor, self._lease_ttl, known_dead=known_dead)
        if isinstance(lease, Held) and lease.holder == name:
            remaining = min(max(lease.expires - self._wall.now(), CLOCK_MARGIN * self._lease_ttl), self._lease_ttl)
            self._peers.mark_alive(name, self._clock.now() + remaining)
            return False
        if isinstance(lease, Lease):
            self._membership.broadcast(EVICTED, name.encode())
        self.remove_peer(name, "DeclareDead" if isinstance(lease, Lease) else None)
        return True

    def _finish_check(self, key: tuple[str, bool], check: "asyncio.Task[bool]") -> None:
        del self._checks[key]
        if not check.cancelled():
            check.exception()  # the exception reaches the waiting callers; without any, the next check repeats it

    def on_eviction_notice(self, name: str) -> None:
        """Check a process that another process has reported as evicted. The report is only a hint; the store decides,
        also about this process."""
        if name == self._membership.name:
            self._membership.renew_now()
        elif self._membership.may_evict and not self._peers.has_departed(name):
            self._start_check(name)

    def remove_peer(self, name: str, step: str | None = None) -> None:
        """Remove a departed peer for good."""
        if not self._peers.remove(name):
            return
        if step is not None:
            self._callbacks.report_step(step, name)
        self.suspects.remove(name)
        self._broadcasts.remove_peer(name)
        self._callbacks.notify(self._callbacks.on_lost, name)

    # --- checks ------------------------------------------------------------------------------------

    def check_silent_peers(self) -> None:
        """Check all silent peers, and schedule the next check for when another one may be silent."""
        self._cancel_next_check()
        now, names = self._clock.now(), self._peers.names | self._broadcasts.awaited_peers()
        for name in names - {self._membership.name} if self._membership.may_evict else ():
            if self._peers.is_silent(name, now):
                self._start_check(name)  # repeated with the next heartbeat if the store does not answer
        due = self._peers.next_silent_at(names, now)
        if due is not None:
            self._next_check = due, self._clock.call_at(due, self.check_silent_peers)

    def ensure_check_scheduled(self) -> None:
        """Schedule a check, after a new broadcast, for when the first peer may be silent."""
        now = self._clock.now()
        if (
            self._next_check is None
            or (self._peers.next_silent_at(self._peers.names, now) or now) < self._next_check[0]
        ):
            self.check_silent_peers()

    def _cancel_next_check(self) -> None:
        if self._next_check is not None:
            self._next_check[1].cancel()
            self._next_check = None

    async def close(self) -> None:
        """Cancel the scheduled and the running checks."""
        self._cancel_next_check()
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
