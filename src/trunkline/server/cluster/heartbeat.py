"""Being alive: saying so every now and then, in the store and to the others; finding out that others take this process
for dead; and coming back under another name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.clock import Clock, Timer
from trunkline.errors import StoreError, StoreUnavailable
from trunkline.server.cluster.membership import Membership, PeerTable
from trunkline.server.cluster.messages import HEARTBEAT, ClusterCallbacks

__all__ = ["HEARTBEATS_PER_LEASE", "LeaseHeartbeat"]

HEARTBEATS_PER_LEASE: Final = 3  # in the time of a lease
_RETRIES_PER_LEASE: Final = 12  # in that time, while the store cannot be reached


class LeaseHeartbeat:
    """The life of this process as one of them."""

    def __init__(
        self,
        membership: Membership,
        peers: PeerTable,
        callbacks: ClusterCallbacks,
        lease_ttl: float,
        clock: Clock,
        *,
        join: Callable[[], Awaitable[None]],
        disconnect: Callable[[], Awaitable[None]],
        on_heartbeat: Callable[[], None],
        on_rejoined: Callable[[], None],
    ) -> None:
        """`enter` takes a new place, and `vacate` leaves one; `beat` and `returned` are told when there is a beat, and
        when this process has come back."""
        self._membership = membership
        self._peers = peers
        self._callbacks = callbacks
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._join = join
        self._disconnect = disconnect
        self._on_heartbeat = on_heartbeat
        self._on_rejoined = on_rejoined
        self._renewal: asyncio.Task[None] | None = None
        self._timer: Timer | None = None

    @property
    def running(self) -> bool:
        """Whether this process has joined the others and not left them, be it that it has no name for now."""
        return self._timer is not None

    def start(self) -> None:
        """This process has joined."""
        self._schedule(HEARTBEATS_PER_LEASE)

    async def stop(self) -> None:
        """It says no more that it lives."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    # --- beats -------------------------------------------------------------------------------------

    def _schedule(self, per_lease: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._clock.now() + self._lease_ttl / per_lease, self._on_timer)

    def _on_timer(self) -> None:
        self._schedule(HEARTBEATS_PER_LEASE)
        self.renew_now()
        self._on_heartbeat()

    def renew_now(self) -> None:
        """Sees now whether this process lives, and says so."""
        if self._renewal is None and self.running:
            self._renewal = asyncio.get_running_loop().create_task(self._renew())
            self._renewal.add_done_callback(self._finish_renewal)

    def _finish_renewal(self, renewal: "asyncio.Task[None]") -> None:
        self._renewal = None
        error = None if renewal.cancelled() else renewal.exception()
        if error is not None and self.running:
            self._schedule(_RETRIES_PER_LEASE)
            if not isinstance(error, StoreError):
                self._callbacks.report_failure("the lease of this process", error)

    async def ensure_lease_valid(self) -> None:
        """Sees whether this process lives. Raises `StoreUnavailable` if it cannot be sure of that."""
        if self._membership.lease_valid:
            return
        self.renew_now()
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        if not self._membership.lease_valid:
            raise StoreUnavailable("this process does not know whether it is taken for dead itself")

    # --- life and death ----------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Says in the store, and to the others, that this process lives; or finds out that it does not."""
        if not self._membership.joined:
            await self._rejoin()
            return
        standing = self._membership.lease
        sure_until = standing.valid_until
        regained = not await standing.renew()
        if regained and not await standing.acquire():
            await self._handle_eviction()
            return
        self._membership.broadcast(HEARTBEAT)
        if self._clock.now() >= sure_until:  # it may be this process that has heard nothing of the others
            self._peers.mark_all_alive(self._clock.now() + self._lease_ttl)
        if regained:
            self._callbacks.report_step("Regain", self._membership.name)
            self._callbacks.notify_missed()

    async def _handle_eviction(self) -> None:
        """Lets go of everything, and comes back under another name."""
        self._callbacks.report_step("Deposed", self._membership.name)
        self._membership.lease.invalidate()
        self._peers.remove(self._membership.name)
        self._callbacks.notify_evicted()
        self._callbacks.notify_lost(None)
        await self._disconnect()
        await self._rejoin()

    async def _rejoin(self) -> None:
        """Comes back. What others have told meanwhile may be anything."""
        before = self._membership.lease.identity
        await self._join()
        if self._membership.lease.identity != before:
            self._callbacks.notify_store_reset()
        self._callbacks.notify_lost(None)
        self._on_rejoined()
        self._callbacks.notify_missed()
