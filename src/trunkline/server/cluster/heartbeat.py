"""Heartbeat: renew the process lease, tell the peers, detect an eviction and join again under another name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.clock import Clock, Timer
from trunkline.errors import StoreError, StoreUnavailable
from trunkline.server.cluster.membership import Membership, PeerTable
from trunkline.server.cluster.messages import HEARTBEAT, ClusterCallbacks

__all__ = ["HEARTBEATS_PER_LEASE", "LeaseHeartbeat"]

HEARTBEATS_PER_LEASE: Final = 3
_RETRIES_PER_LEASE: Final = 12  # while the store is unavailable


class LeaseHeartbeat:
    """Periodic renewal of the process lease."""

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
        """`join` acquires a new membership and `disconnect` leaves one. `on_heartbeat` runs with each scheduled
        heartbeat, `on_rejoined` after this process has joined again."""
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
        """Whether this process has joined and not left, even if it is between two names."""
        return self._timer is not None

    def start(self) -> None:
        """Start the heartbeat, after this process has joined."""
        self._schedule(HEARTBEATS_PER_LEASE)

    async def stop(self) -> None:
        """Stop the heartbeat and cancel a renewal in progress."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    # --- schedule ----------------------------------------------------------------------------------

    def _schedule(self, per_lease: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._clock.now() + self._lease_ttl / per_lease, self._on_timer)

    def _on_timer(self) -> None:
        self._schedule(HEARTBEATS_PER_LEASE)
        self.renew_now()
        self._on_heartbeat()

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
        if self._membership.lease_valid:
            return
        self.renew_now()
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        if not self._membership.lease_valid:
            raise StoreUnavailable("this process cannot renew its lease and may have been evicted; try again later")

    # --- renewal and eviction ----------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew the lease, or acquire it again if it has expired; handle the eviction if another process holds it."""
        if not self._membership.joined:
            await self._rejoin()
            return
        lease = self._membership.lease
        valid_until = lease.valid_until
        regained = not await lease.renew()
        if regained and not await lease.acquire():
            await self._handle_eviction()
            return
        self._membership.broadcast(HEARTBEAT)
        # this process may have been paused, so the silence of its peers proves nothing
        if self._clock.now() >= valid_until:
            self._peers.mark_all_alive(self._clock.now() + self._lease_ttl)
        if regained:
            self._callbacks.report_step("Regain", self._membership.name)
            self._callbacks.notify_missed()

    async def _handle_eviction(self) -> None:
        """Give up everything held under the old name, and join again under a new one."""
        self._callbacks.report_step("Deposed", self._membership.name)
        self._membership.lease.invalidate()
        self._peers.remove(self._membership.name)
        self._callbacks.notify_evicted()
        self._callbacks.notify_lost(None)
        await self._disconnect()
        await self._rejoin()

    async def _rejoin(self) -> None:
        """Join again. This process may have missed any broadcast meanwhile."""
        previous_identity = self._membership.lease.identity
        await self._join()
        if self._membership.lease.identity != previous_identity:
            self._callbacks.notify_store_reset()
        self._callbacks.notify_lost(None)
        self._on_rejoined()
        self._callbacks.notify_missed()
