"""The processes that share a store: membership, failure detection and messaging.

Each process has a name and holds a lease of that name in the store, which it renews with a heartbeat (`membership.py`).
Any process may evict a peer that has been silent for longer than its lease (`failure_detector.py`). An eviction is one
store operation, so all processes agree on it, and the evicted process learns of it before it uses anything that its
name entitles it to. Broadcasts are acknowledged (`broadcast.py`).
"""

import asyncio
from collections.abc import Callable, Container

from trunkline.clock import Clock
from trunkline.errors import StoreError
from trunkline.facts import Observers
from trunkline.server.cluster.broadcast import ReliableBroadcast
from trunkline.server.cluster.failure_detector import FailureDetector
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
from trunkline.stores.store import Held, Lease, Store

__all__ = ["Cluster", "MessageHandler"]


class Cluster:
    """Membership and messaging of this process among its peers."""

    def __init__(
        self, store: Store, bus: Bus, *, lease_ttl: float, clock: Clock, wall: Clock, observers: Observers
    ) -> None:
        """`lease_ttl` is the number of seconds for which a process may be silent."""
        self._store = store
        self._peers = peers = PeerTable(lease_ttl)
        self._callbacks = callbacks = ClusterCallbacks(observers, clock)
        self.membership = membership = Membership(
            store, bus, self, peers, callbacks, lease_ttl=lease_ttl, clock=clock, wall=wall
        )
        self._broadcasts = broadcasts = ReliableBroadcast(membership, peers, callbacks, lease_ttl, clock)
        self._failure_detector = detector = FailureDetector(
            membership,
            peers,
            callbacks,
            broadcasts=broadcasts,
            store=store,
            lease_ttl=lease_ttl,
            clock=clock,
            wall=wall,
        )
        callbacks.on_heartbeat += [broadcasts.retry_overdue, detector.check_silent_peers]
        callbacks.on_rejoined += [broadcasts.resend_all, detector.check_silent_peers]
        # Without a bus, no message can end a suspicion.
        callbacks.on_disconnect += [detector.suspects.clear, broadcasts.clear_received]
        callbacks.register(HEARTBEAT, lambda sender, _: detector.record_heartbeat(sender))
        callbacks.register(LEAVING, lambda sender, _: detector.remove_peer(sender, "Depart"))
        callbacks.register(EVICTED, lambda _, body: detector.on_eviction_notice(body.decode()))
        callbacks.register(CHECK_LEASE, lambda _, __: membership.renew_now())
        callbacks.register(PING, self._send_pong)
        callbacks.register(BROADCAST, broadcasts.on_broadcast)
        callbacks.register(ACK, broadcasts.on_ack)
        callbacks.register(BROADCAST_MISSED, lambda _, __: callbacks.notify(callbacks.on_missed))

    def _send_pong(self, sender: str, _: bytes) -> None:
        self.membership.send(sender, PONG)

    @property
    def name(self) -> str:
        """Name of this process. It changes when the process joins again after an eviction."""
        return self.membership.name

    def is_own_name(self, name: str) -> bool:
        """Return whether a name is the current one of this process, and no eviction of it is known."""
        return name == self.name and not self._peers.has_departed(name)

    async def confirm_name(self) -> str:
        """Return the name of this process, which no peer can have evicted. Renew its lease or join again first if
        necessary. Raise `StoreUnavailable` if that is impossible now."""
        await self.membership.ensure_lease_valid()
        return self.name

    @property
    def lease_valid(self) -> bool:
        """Whether no peer can have evicted this process."""
        return self.membership.lease_valid

    @property
    def peers(self) -> frozenset[str]:
        """Names of the known peers that have not departed."""
        return self._peers.names

    @property
    def alone(self) -> bool:
        """Whether this process knows of no peer. False while it has no name, because then it cannot know."""
        return not self.membership.running or (self.membership.joined and not self._peers)

    async def evict_if_dead(self, name: str) -> bool:
        """Return whether a process has departed, and evict it first if it has been silent for too long. Raise
        `StoreUnavailable` if the store cannot decide that. A holder of a lease that is no process name, as in earlier
        versions, counts as alive: its lease ends when it expires."""
        return await self._failure_detector.evict_if_dead(name)

    async def wait_until_reachable(self, name: str) -> bool:
        """Return whether messages can be sent to a process. For a suspected process, wait for a message from it or for
        its eviction. Raise `StoreUnavailable` if neither comes in time."""
        return await self._failure_detector.wait_until_reachable(name)

    async def acquire(self, key: str, ttl: float, known_alive: Container[str] = ()) -> Lease | Held:
        """Acquire the lease of something that one process at a time may own, such as a session or a task, under the
        name of this process. Take it over if its holder is dead, or return its holder. It is not renewed: it lasts as
        long as its data, and is free at the moment in which its holder is evicted. The processes in `known_alive` are
        not checked. Raise `StoreUnavailable` if this process may have been evicted and cannot find out, or if the store
        cannot decide whether the holder is dead."""
        while True:
            name = await self.confirm_name()
            outcome = await self._store.acquire(key, name, ttl)
            if isinstance(outcome, Held) and outcome.holder not in known_alive:
                if not await self.evict_if_dead(outcome.holder):
                    return outcome
                outcome = await self._store.acquire(key, name, ttl, over=outcome.token)
            if isinstance(outcome, Held) or self.is_own_name(outcome.holder):
                return outcome  # otherwise this process was evicted meanwhile and has another name

    # --- joining and leaving ---------------------------------------------------------------------

    async def join(self) -> None:
        """Join the cluster. When this returns, this process and its peers know of each other."""
        await self.membership.start()

    async def leave(self) -> None:
        """Leave the cluster in good order. The caller has released all leases held under the name of this process."""
        if not self.membership.running:
            return
        await self._stop()
        self.membership.broadcast(LEAVING)
        try:
            await self.membership.lease.release()
        except StoreError:
            pass  # it expires by itself
        finally:
            await self.close()
        self._callbacks.report_step("Leave", self.name)

    async def close(self) -> None:
        """Stop sending and receiving, also if the process could not leave in good order."""
        await self._stop()
        await self.membership.disconnect()

    async def _stop(self) -> None:
        await self.membership.stop()
        await self._failure_detector.close()
        self._broadcasts.abandon_pending()

    # --- sending ---------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Send a message to one process. Return False if it was not sent, see `Membership.send`."""
        return self.membership.send(to, kind, body)

    def broadcast(self, kind: bytes, body: bytes) -> None:
        """Send a message to all peers, without acknowledgement."""
        self.membership.broadcast(kind, body)

    async def drain(self) -> None:
        """Wait while much of the sent data has not left yet."""
        await self.membership.drain()

    def broadcast_reliably(self, kind: bytes, body: bytes) -> "asyncio.Future[None] | None":
        """Send a message to all peers. Return a future that is done when each peer has acknowledged this message and
        all earlier ones, or has departed; None if there are no peers."""
        if self.alone:
            return None
        done = self._broadcasts.send(kind + body)
        self._failure_detector.ensure_check_scheduled()
        return done

    # --- callbacks -------------------------------------------------------------------------------

    def on(self, kind: bytes, handler: MessageHandler) -> None:
        """Register the handler of a message kind. A kind is one byte; 0 to 15 are reserved for the cluster."""
        self._callbacks.register(kind, handler)

    def on_lost(self, callback: Callable[[str | None], None]) -> None:
        """Register a callback for lost messages. It receives the name of the process whose messages may be lost or that
        has departed, or None for any process."""
        self._callbacks.on_lost.append(callback)

    def on_evicted(self, callback: Callable[[], None]) -> None:
        """Register a callback for the eviction of this process: its peers may now hold the leases that it held."""
        self._callbacks.on_evicted.append(callback)

    def on_store_reset(self, callback: Callable[[], None]) -> None:
        """Register a callback for a store that lost its data. It runs after this process has joined again; values read
        from the store before may have changed."""
        self._callbacks.on_store_reset.append(callback)

    def on_missed(self, callback: Callable[[], None]) -> None:
        """Register a callback for broadcasts that this process may have missed."""
        self._callbacks.on_missed.append(callback)

    # --- bus listener ----------------------------------------------------------------------------

    def met(self, name: str) -> None:
        """Add a peer."""
        self._failure_detector.add_peer(name)

    def heard(self, sender: str, message: bytes) -> None:
        """Dispatch a message. A departed sender is warned instead: it does not know yet that it was evicted."""
        if self._peers.has_departed(sender):
            self.membership.warn_evicted(sender)
            return
        self._failure_detector.record_message(sender)
        self._callbacks.dispatch(sender, message)

    def lost(self, name: str | None) -> None:
        """Suspect the peers whose messages may have been lost."""
        self._failure_detector.suspect(name)

    def rejected(self, why: str) -> None:
        """Report a frame that failed verification. It has no other effect."""
        self._callbacks.report_dropped("bus frame", why)
