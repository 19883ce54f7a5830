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
        self._roster = peers
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
            self._roster.alive(name, self._clock.now() + left)
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

    def about(self, names: Iterable[str]) -> None:
        """What those were sent may not have arrived."""
        for name in names:
            if name not in self._resolved:
                self._resolved[name] = asyncio.get_running_loop().create_future()

    def settle(self, name: str) -> None:
        """That one was heard of, or is gone."""
        if (settled := self._resolved.pop(name, None)) is not None and not settled.done():
            settled.set_result(None)

    def clear(self) -> None:
        """Nobody waits any more."""
        for name in list(self._resolved):
            self.settle(name)

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
        self._place = membership
        self._roster = peers
        self._callbacks = callbacks
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._talk = broadcasts
        self._pulse = heartbeat
        self._eviction_checks = eviction_checks
        self._suspects = SuspectedPeers()
        self._next_check: tuple[float, Timer] | None = None

    # --- who is seen, and who is not ---------------------------------------------------------------

    def met(self, name: str) -> None:
        """Another process is there."""
        if name != self._place.name and self._roster.met(name, self._clock.now()):
            self._callbacks.step("Meet", name)

    def record_message(self, name: str) -> None:
        """It is there, and is heard."""
        self.met(name)
        self._suspects.settle(name)

    def alive(self, name: str) -> None:
        """It has said that it has renewed its lease."""
        self._roster.alive(name, self._clock.now() + self._lease_ttl)

    def lost(self, name: str | None) -> None:
        """Something may not have arrived. Who is there is told again what it has not confirmed."""
        if name is not None and self._roster.has_departed(name):
            return  # that was said
        self._suspects.about(self._roster.names if name is None else (name,))
        self._callbacks.lost(name)
        if name is None:
            self._place.broadcast(PING)
        elif not self._place.reaches(name):
            self._check(name, known_dead=True)
            return
        for other in self._talk.awaited_peers() if name is None else (name,):
            self._talk.resend(other)

    # --- who is dead -------------------------------------------------------------------------------

    async def gone(self, name: str) -> bool:
        """Whether a process is gone: one that has been silent for too long is, from now on. Raises `StoreUnavailable`
        if that cannot be found out."""
        if self._roster.has_departed(name):
            return True
        if name == self._place.name:
            return False
        certain = not self._place.reaches(name)
        if not certain:
            await self._pulse.ensure_lease_valid()
            if not self._place.may_evict or not self._roster.is_silent(name, self._clock.now()):
                return False
        return await asyncio.shield(self._check(name, known_dead=certain))

    async def there(self, name: str) -> bool:
        """Whether a process is there to be sent something. Who was lost sight of is waited for, until it is heard of or
        gone. Raises `StoreUnavailable` if that cannot be found out, or if one that lives is not heard of for long."""
        began = self._clock.now()
        while name in self._suspects:
            if await self.gone(name):
                return False
            if (now := self._clock.now()) >= began + _SUSPECT_TIMEOUT_LEASES * self._lease_ttl:
                raise StoreUnavailable("a process that lives is not heard of")
            await self._suspects.wait(name, self._clock, now + self._lease_ttl / HEARTBEATS_PER_LEASE)
        return not self._roster.has_departed(name)

    def _check(self, name: str, *, known_dead: bool = False) -> "asyncio.Task[bool]":
        return self._eviction_checks.check(name, self._place.name, self._on_dead, known_dead=known_dead)

    def _on_dead(self, name: str, evicted_now: bool) -> None:
        if evicted_now:
            self._place.broadcast(EVICTED, name.encode())
        self.depart(name, "DeclareDead" if evicted_now else None)

    def on_eviction_notice(self, name: str) -> None:
        """Another process says that it has declared one dead. That is a hint: what counts is what the store says, of
        this process as of others."""
        if name == self._place.name:
            self._pulse.renew_now()
        elif self._place.may_evict and not self._roster.has_departed(name):
            self._check(name)

    def depart(self, name: str, step: str | None = None) -> None:
        """One is gone, for ever."""
        if not self._roster.depart(name):
            return
        if step is not None:
            self._callbacks.step(step, name)
        self._suspects.settle(name)
        self._talk.gone(name)
        self._callbacks.lost(name)

    # --- looking -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Finds out about those who are waited for and silent, and comes back when the next one may be."""
        self._cancel_next_check()
        now, awaited = self._clock.now(), self._talk.awaited_peers()
        for name in awaited - {self._place.name} if self._place.may_evict else ():
            if self._roster.is_silent(name, now):
                self._check(name)  # again with the next beat, if the store does not say
        due = self._roster.silence(awaited, now)
        if due is not None:
            self._next_check = due, self._clock.call_at(due, self.look)

    def ensure_check_scheduled(self) -> None:
        """More is waited for, of all that are there: looks no later than when the first of them may be silent."""
        now = self._clock.now()
        if self._next_check is None or (self._roster.silence(self._roster.names, now) or now) < self._next_check[0]:
            self.look()

    def check_peers(self) -> None:
        """Looks, and sees to the one that was not heard of for longest, whom nobody waits for."""
        self.look()
        silent = self._roster.most_silent
        if silent is not None and self._roster.is_silent(silent, self._clock.now()) and self._place.may_evict:
            self._check(silent)

    def _cancel_next_check(self) -> None:
        if self._next_check is not None:
            self._next_check[1].cancel()
            self._next_check = None

    def forget(self) -> None:
        """Waits for nobody any more: this process hears nothing."""
        self._suspects.clear()

    async def close(self) -> None:
        """Looks no more."""
        self._cancel_next_check()
        await self._eviction_checks.close()
