"""Finds out who is dead: once for each, however many ask at the same time.

Who was lost sight of: nothing should be sent to those before they were heard of again, or are known to be gone.

Who is there, and who is gone: looked after for as long as somebody needs to know.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from trunkline.clock import Clock, Timer
from trunkline.errors import StoreUnavailable
from trunkline.server.cluster.broadcast import ReliableBroadcast
from trunkline.server.cluster.heartbeat import HEARTBEATS_PER_LEASE, LeaseHeartbeat
from trunkline.server.cluster.membership import CLOCK_MARGIN, Membership, PeerTable, evict_process
from trunkline.server.cluster.messages import EVICTED, PING, ClusterCallbacks
from trunkline.stores.store import Held, Lease, Store

__all__ = ["EvictionChecks", "FailureDetector", "SuspectedPeers"]


class EvictionChecks:
    """Those that are being found out, for one process."""

    def __init__(self, store: Store, peers: PeerTable, lease_ttl: float, clock: Clock, wall: Clock) -> None:
        self._store = store
        self._peers = peers
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._wall = wall
        self._checks: dict[tuple[str, bool], asyncio.Task[bool]] = {}

    def check(
        self, name: str, evictor: str, on_dead: Callable[[str, bool], None], *, known_dead: bool
    ) -> "asyncio.Task[bool]":
        """What says whether a process is dead. If it is, `found` is told, and whether it was declared so just now; if
        not, nobody needs to ask for some time. `certain` says that nobody is there, whatever the lease says."""
        checking = self._checks.get((name, known_dead))
        if checking is None:
            checking = asyncio.get_running_loop().create_task(
                self._check(name, evictor, on_dead, known_dead=known_dead)
            )
            self._checks[name, known_dead] = checking
            checking.add_done_callback(partial(self._finish_check, (name, known_dead)))
        return checking

    def _finish_check(self, key: tuple[str, bool], check: "asyncio.Task[bool]") -> None:
        del self._checks[key]
        if not check.cancelled():
            check.exception()  # whoever waits has it; who does not asks again

    async def _check(self, name: str, evictor: str, on_dead: Callable[[str, bool], None], *, known_dead: bool) -> bool:
        lease = await evict_process(self._store, name, evictor, self._lease_ttl, known_dead=known_dead)
        if isinstance(lease, Held) and lease.holder == name:
            left = min(max(lease.expires - self._wall.now(), CLOCK_MARGIN * self._lease_ttl), self._lease_ttl)
            self._peers.mark_alive(name, self._clock.now() + left)
            return False
        on_dead(name, isinstance(lease, Lease))
        return True

    async def close(self) -> None:
        """Finds out nothing more."""
        checking = list(self._checks.values())
        for task in checking:
            task.cancel()
        await asyncio.gather(*checking, return_exceptions=True)


class SuspectedPeers:
    """Those of whom it is in doubt whether they hear anything."""

    def __init__(self) -> None:
        self._resolved: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._resolved

    def add(self, names: Iterable[str]) -> None:
        """What those were sent may not have arrived."""
        for name in names:
            if name not in self._resolved:
                self._resolved[name] = asyncio.get_running_loop().create_future()

    def remove(self, name: str) -> None:
        """That one was heard of, or is gone."""
        if (settled := self._resolved.pop(name, None)) is not None and not settled.done():
            settled.set_result(None)

    def clear(self) -> None:
        """Nobody waits any more."""
        for name in list(self._resolved):
            self.remove(name)

    async def wait(self, name: str, clock: Clock, deadline: float) -> None:
        """Waits until that is settled, at most until then."""
        if (settled := self._resolved.get(name)) is None:
            return
        due = asyncio.Event()
        timer, waiting = clock.call_at(deadline, due.set), asyncio.ensure_future(due.wait())
        try:
            await asyncio.wait([settled, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiting.cancel()


_SUSPECT_TIMEOUT_LEASES: Final = 2  # leases, for which one is waited for that was lost sight of and lives


class FailureDetector:
    """The others, as far as this process sees them."""

    def __init__(
        self,
        membership: Membership,
        peers: PeerTable,
        callbacks: ClusterCallbacks,
        lease_ttl: float,
        clock: Clock,
        *,
        broadcasts: ReliableBroadcast,
        heartbeat: LeaseHeartbeat,
        eviction_checks: EvictionChecks,
    ) -> None:
        self._membership = membership
        self._peers = peers
        self._callbacks = callbacks
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._broadcasts = broadcasts
        self._heartbeat = heartbeat
        self._eviction_checks = eviction_checks
        self._suspects = SuspectedPeers()
        self._next_check: tuple[float, Timer] | None = None

    # --- who is seen, and who is not ---------------------------------------------------------------

    def add_peer(self, name: str) -> None:
        """Another process is there."""
        if name != self._membership.name and self._peers.add(name, self._clock.now()):
            self._callbacks.report_step("Meet", name)

    def record_message(self, name: str) -> None:
        """It is there, and is heard."""
        self.add_peer(name)
        self._suspects.remove(name)

    def record_heartbeat(self, name: str) -> None:
        """It has said that it has renewed its lease."""
        self._peers.mark_alive(name, self._clock.now() + self._lease_ttl)

    def suspect(self, name: str | None) -> None:
        """Something may not have arrived. Who is there is told again what it has not confirmed."""
        if name is not None and self._peers.has_departed(name):
            return  # that was said
        self._suspects.add(self._peers.names if name is None else (name,))
        self._callbacks.notify_lost(name)
        if name is None:
            self._membership.broadcast(PING)
        elif not self._membership.ping(name):
            self._start_check(name, known_dead=True)
            return
        for other in self._broadcasts.awaited_peers() if name is None else (name,):
            self._broadcasts.resend(other)

    # --- who is dead -------------------------------------------------------------------------------

    async def evict_if_dead(self, name: str) -> bool:
        """Whether a process is gone: one that has been silent for too long is, from now on. Raises `StoreUnavailable`
        if that cannot be found out."""
        if self._peers.has_departed(name):
            return True
        if name == self._membership.name:
            return False
        certain = not self._membership.ping(name)
        if not certain:
            await self._heartbeat.ensure_lease_valid()
            if not self._membership.may_evict or not self._peers.is_silent(name, self._clock.now()):
                return False
        return await asyncio.shield(self._start_check(name, known_dead=certain))

    async def wait_until_reachable(self, name: str) -> bool:
        """Whether a process is there to be sent something. Who was lost sight of is waited for, until it is heard of or
        gone. Raises `StoreUnavailable` if that cannot be found out, or if one that lives is not heard of for long."""
        began = self._clock.now()
        while name in self._suspects:
            if await self.evict_if_dead(name):
                return False
            if (now := self._clock.now()) >= began + _SUSPECT_TIMEOUT_LEASES * self._lease_ttl:
                raise StoreUnavailable("a process that lives is not heard of")
            await self._suspects.wait(name, self._clock, now + self._lease_ttl / HEARTBEATS_PER_LEASE)
        return not self._peers.has_departed(name)

    def _start_check(self, name: str, *, known_dead: bool = False) -> "asyncio.Task[bool]":
        return self._eviction_checks.check(name, self._membership.name, self._on_dead, known_dead=known_dead)

    def _on_dead(self, name: str, evicted_now: bool) -> None:
        if evicted_now:
            self._membership.broadcast(EVICTED, name.encode())
        self.remove_peer(name, "DeclareDead" if evicted_now else None)

    def on_eviction_notice(self, name: str) -> None:
        """Another process says that it has declared one dead. That is a hint: what counts is what the store says, of
        this process as of others."""
        if name == self._membership.name:
            self._heartbeat.renew_now()
        elif self._membership.may_evict and not self._peers.has_departed(name):
            self._start_check(name)

    def remove_peer(self, name: str, step: str | None = None) -> None:
        """One is gone, for ever."""
        if not self._peers.remove(name):
            return
        if step is not None:
            self._callbacks.report_step(step, name)
        self._suspects.remove(name)
        self._broadcasts.remove_peer(name)
        self._callbacks.notify_lost(name)

    # --- looking -----------------------------------------------------------------------------------

    def check_awaited_peers(self) -> None:
        """Finds out about those who are waited for and silent, and comes back when the next one may be."""
        self._cancel_next_check()
        now, awaited = self._clock.now(), self._broadcasts.awaited_peers()
        for name in awaited - {self._membership.name} if self._membership.may_evict else ():
            if self._peers.is_silent(name, now):
                self._start_check(name)  # again with the next beat, if the store does not say
        due = self._peers.next_silent_at(awaited, now)
        if due is not None:
            self._next_check = due, self._clock.call_at(due, self.check_awaited_peers)

    def ensure_check_scheduled(self) -> None:
        """More is waited for, of all that are there: looks no later than when the first of them may be silent."""
        now = self._clock.now()
        if (
            self._next_check is None
            or (self._peers.next_silent_at(self._peers.names, now) or now) < self._next_check[0]
        ):
            self.check_awaited_peers()

    def check_peers(self) -> None:
        """Looks, and sees to the one that was not heard of for longest, whom nobody waits for."""
        self.check_awaited_peers()
        silent = self._peers.most_silent
        if silent is not None and self._peers.is_silent(silent, self._clock.now()) and self._membership.may_evict:
            self._start_check(silent)

    def _cancel_next_check(self) -> None:
        if self._next_check is not None:
            self._next_check[1].cancel()
            self._next_check = None

    def clear_suspects(self) -> None:
        """Waits for nobody any more: this process hears nothing."""
        self._suspects.clear()

    async def close(self) -> None:
        """Looks no more."""
        self._cancel_next_check()
        await self._eviction_checks.close()
