"""The processes that serve together, since they share a store: who they are, and what they say to each other.

Each has a name, under which it holds a lease in the store for as long as it lives, and says every now and then that it
does (`place.py`, `pulse.py`). Who is silent for longer than that lease can be declared dead by whoever needs to know
(`lookout.py`), which is one act in the store: so all agree upon it, and the process itself finds out before it does
anything that only its name allows. What they tell each other is confirmed (`talk.py`).
"""

import asyncio
from collections.abc import Callable

from trunkline.clock import Clock
from trunkline.errors import StoreError
from trunkline.facts import Observers
from trunkline.server.cluster.broadcast import ReliableBroadcast
from trunkline.server.cluster.failure_detector import EvictionChecks, FailureDetector
from trunkline.server.cluster.heartbeat import LeaseHeartbeat
from trunkline.server.cluster.membership import Membership, PeerTable
from trunkline.server.cluster.messages import (
    ACK,
    BROADCAST,
    BROADCAST_MISSED,
    CHECK_LEASE,
    EVICTED,
    HEARTBEAT,
    LEAVING,
    PING,
    PONG,
    ClusterCallbacks,
    MessageHandler,
)
from trunkline.stores.bus import Bus
from trunkline.stores.store import Store

__all__ = ["Cluster", "MessageHandler"]


class Cluster:
    """The others, seen from one process."""

    def __init__(
        self, store: Store, bus: Bus, *, lease_ttl: float, clock: Clock, wall: Clock, observers: Observers
    ) -> None:
        """`seconds` is how long one may be silent."""
        self._peers = roster = PeerTable(lease_ttl)
        self._callbacks = audience = ClusterCallbacks(observers, clock)
        self._membership = place = Membership(store, bus, roster, audience, lease_ttl=lease_ttl, clock=clock, wall=wall)
        self._broadcasts = ReliableBroadcast(place, roster, audience, lease_ttl, clock)
        self._heartbeat = LeaseHeartbeat(
            place,
            roster,
            audience,
            lease_ttl,
            clock,
            join=lambda: place.join(self),
            disconnect=self._disconnect,
            on_heartbeat=self._on_heartbeat,
            on_rejoined=self._on_rejoined,
        )
        self._failure_detector = FailureDetector(
            place,
            roster,
            audience,
            lease_ttl,
            clock,
            broadcasts=self._broadcasts,
            heartbeat=self._heartbeat,
            eviction_checks=EvictionChecks(store, roster, lease_ttl, clock, wall),
        )
        self._join_lock = asyncio.Lock()
        self._register_handlers()

    def _register_handlers(self) -> None:
        """Has the crew's own parts be told what is theirs."""
        lookout, talk, on = self._failure_detector, self._broadcasts, self._callbacks.register
        on(HEARTBEAT, lambda sender, _: lookout.record_heartbeat(sender))
        on(LEAVING, lambda sender, _: lookout.remove_peer(sender, "Depart"))
        on(EVICTED, lambda _, body: lookout.on_eviction_notice(body.decode()))
        on(CHECK_LEASE, lambda _, __: self._heartbeat.renew_now())
        on(PING, self._send_pong)
        on(BROADCAST, talk.on_broadcast)
        on(ACK, talk.on_ack)
        on(BROADCAST_MISSED, lambda _, __: self._callbacks.notify_missed())

    def _send_pong(self, sender: str, _: bytes) -> None:
        self._membership.send(sender, PONG)

    @property
    def name(self) -> str:
        """What this process is called. It has another name once it was declared dead."""
        return self._membership.name

    @property
    def lease_valid_until(self) -> float:
        """The time, on the clock of the loop, until which nobody can have declared this process dead."""
        return self._membership.lease.valid_until

    @property
    def peers(self) -> frozenset[str]:
        """The names of those who were met and are not gone."""
        return self._peers.names

    @property
    def alone(self) -> bool:
        """Whether nobody else is there. Who has no name for now does not know."""
        return not self._heartbeat.running or (self._membership.joined and not self._peers)

    async def evict_if_dead(self, name: str) -> bool:
        """Whether a process is gone: one that has been silent for too long is, from now on. Raises `StoreUnavailable`
        if that cannot be found out."""
        return await self._failure_detector.evict_if_dead(name)

    async def wait_until_reachable(self, name: str) -> bool:
        """Whether a process is there to be sent something. Who was lost sight of is waited for, until it is heard of or
        gone. Raises `StoreUnavailable` if that cannot be found out."""
        return await self._failure_detector.wait_until_reachable(name)

    # --- coming and going --------------------------------------------------------------------------

    async def join(self) -> None:
        """Becomes one of them: from then on this process has met the others, and they have met it."""
        async with self._join_lock:
            if not self._heartbeat.running:
                await self._membership.join(self)
                self._heartbeat.start()

    async def leave(self) -> None:
        """Is no longer one of them: all that needs its name has been given back."""
        if not self._heartbeat.running:
            return
        await self._stop()
        self._membership.broadcast(LEAVING)
        try:
            await self._membership.lease.release()
        except StoreError:
            pass  # it runs out by itself
        finally:
            await self.close()
        self._callbacks.report_step("Leave", self.name)

    async def close(self) -> None:
        """Says and hears nothing any more, be it that it could not leave in good order."""
        await self._stop()
        await self._disconnect()

    async def _stop(self) -> None:
        await self._heartbeat.stop()
        await self._failure_detector.close()
        self._broadcasts.abandon_pending()

    async def _disconnect(self) -> None:
        """Says and hears nothing under the name that this process has had."""
        self._failure_detector.clear_suspects()
        self._broadcasts.clear_received()
        await self._membership.leave()

    def _on_rejoined(self) -> None:
        """What was told under the name before is told again."""
        self._broadcasts.resend_all()
        self._failure_detector.check_awaited_peers()

    def _on_heartbeat(self) -> None:
        self._broadcasts.retry_overdue()
        self._failure_detector.check_peers()

    # --- saying ------------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Sends something to one process; False if nothing was sent, see `Place.send`."""
        return self._membership.send(to, kind, body)

    def broadcast(self, kind: bytes, body: bytes) -> None:
        """Sends something to all others."""
        self._membership.broadcast(kind, body)

    async def drain(self) -> None:
        """Waits while much of what was sent has not left yet."""
        await self._membership.drain()

    def broadcast_reliably(self, kind: bytes, body: bytes) -> "asyncio.Future[None] | None":
        """Sends something to all others; gives what is done when each has confirmed it, and all told before, or is
        gone. None if nobody else is there."""
        if self.alone:
            return None
        done = self._broadcasts.send(kind + body)
        self._failure_detector.ensure_check_scheduled()
        return done

    # --- hearing -----------------------------------------------------------------------------------

    def on(self, kind: bytes, handler: MessageHandler) -> None:
        """Has a function be told what comes of a kind, which is one byte; those up to 15 are the crew's own."""
        self._callbacks.register(kind, handler)

    def on_lost(self, callback: Callable[[str | None], None]) -> None:
        """Has a function be told whose messages may have been lost, of None: anybody's; or who is gone."""
        self._callbacks.on_lost.append(callback)

    def on_evicted(self, callback: Callable[[], None]) -> None:
        """Has a function be told that this process was declared dead: what it held under its name is others' now."""
        self._callbacks.on_evicted.append(callback)

    def on_store_reset(self, callback: Callable[[], None]) -> None:
        """Has a function be told that the store has lost its data, once this process has joined again: what was read
        from it before may be another now."""
        self._callbacks.on_store_reset.append(callback)

    def on_missed(self, callback: Callable[[], None]) -> None:
        """Has a function be told that this process may not have heard what others have told."""
        self._callbacks.on_missed.append(callback)

    # --- what the bus says -------------------------------------------------------------------------

    def met(self, name: str) -> None:
        """Another process is there."""
        self._failure_detector.add_peer(name)

    def heard(self, sender: str, message: bytes) -> None:
        """Something came over the bus. Those who are gone say nothing any more."""
        if self._peers.has_departed(sender):
            self._membership.warn_evicted(sender)
            return
        self._failure_detector.record_message(sender)
        self._callbacks.dispatch(sender, message)

    def lost(self, name: str | None) -> None:
        """Something may not have arrived."""
        self._failure_detector.suspect(name)

    def rejected(self, why: str) -> None:
        """A frame failed verification. It is counted; nothing else follows from it."""
        self._callbacks.report_rejected_frame(why)
