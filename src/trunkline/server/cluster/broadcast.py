"""Reliable broadcast: messages to all peers that are acknowledged, repeated after losses and delivered once.

Each broadcast has a sequence number. It is sent again to a peer that may not have received it; a peer that has it
already only acknowledges it again. On the wire a broadcast is its sequence number, the oldest sequence number that is
not acknowledged by all peers, and the payload. The second number lets receivers forget older ones.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from struct import Struct as Layout
from typing import Final

from trunkline.clock import Clock
from trunkline.server.cluster.membership import Membership, PeerTable
from trunkline.server.cluster.messages import ACK, BROADCAST, BROADCAST_MISSED, ClusterCallbacks

__all__ = ["PendingBroadcast", "PendingBroadcasts", "ReceivedBroadcasts", "ReliableBroadcast"]

_HEADER: Final = Layout(">QQ")


class PendingBroadcast:
    """A broadcast that not all peers have acknowledged."""

    __slots__ = ("done", "payload", "sent_at", "sequence", "unacknowledged")

    def __init__(self, sequence: int, payload: bytes, sent_at: float, done: "asyncio.Future[None]") -> None:
        self.sequence = sequence
        self.payload = payload
        self.sent_at = sent_at
        self.done = done
        self.unacknowledged: set[str] = set()  # names of the peers that have not acknowledged it


class PendingBroadcasts:
    """Unacknowledged broadcasts of this process, in order. A broadcast completes only after all earlier ones, so its
    completion covers them too."""

    def __init__(self) -> None:
        self._last_sequence = 0
        self._pending: deque[PendingBroadcast] = deque()

    def add(self, payload: bytes, recipients: Iterable[str], now: float) -> PendingBroadcast:
        """Add a broadcast to the given peers."""
        self._last_sequence += 1
        done = asyncio.get_running_loop().create_future()
        broadcast = PendingBroadcast(self._last_sequence, payload, now, done)
        broadcast.unacknowledged.update(recipients)
        self._pending.append(broadcast)
        return broadcast

    def encode(self, broadcast: PendingBroadcast) -> bytes:
        """Return the body of a broadcast message."""
        return _HEADER.pack(broadcast.sequence, self._pending[0].sequence) + broadcast.payload

    def acknowledge(self, name: str, sequence: int) -> None:
        """Note that a peer has acknowledged a broadcast."""
        first = self._pending[0].sequence if self._pending else sequence + 1
        if 0 <= sequence - first < len(self._pending):  # sequence numbers have no gaps
            self._pending[sequence - first].unacknowledged.discard(name)
            self._complete_acknowledged()

    def remove_peer(self, name: str) -> None:
        """Stop waiting for a peer."""
        for broadcast in self._pending:
            broadcast.unacknowledged.discard(name)
        self._complete_acknowledged()

    def give_up(self, before: float) -> set[str]:
        """Stop waiting for broadcasts sent before a time. Return the peers that had not acknowledged them."""
        unreached = set[str]()
        for broadcast in self._pending:
            if broadcast.sent_at < before:
                unreached |= broadcast.unacknowledged
                broadcast.unacknowledged.clear()
        self._complete_acknowledged()
        return unreached

    def set_recipients(self, recipients: Iterable[str]) -> list[PendingBroadcast]:
        """Address all pending broadcasts to other peers, after this process has changed its name. Return the broadcasts
        to send again."""
        for broadcast in self._pending:
            broadcast.unacknowledged = set(recipients)
        self._complete_acknowledged()
        return list(self._pending)

    def _complete_acknowledged(self) -> None:
        while self._pending and not self._pending[0].unacknowledged:
            done = self._pending.popleft().done
            if not done.done():  # the caller may have stopped waiting
                done.set_result(None)

    def awaited_peers(self) -> set[str]:
        """Return the peers that have broadcasts to acknowledge."""
        return set[str]().union(*(broadcast.unacknowledged for broadcast in self._pending))

    def pending_for(self, name: str, before: float) -> list[PendingBroadcast]:
        """Return the broadcasts sent up to a time that a peer has not acknowledged."""
        return [
            broadcast for broadcast in self._pending if name in broadcast.unacknowledged and broadcast.sent_at <= before
        ]


class ReceivedBroadcasts:
    """Broadcasts received from one peer."""

    def __init__(self) -> None:
        # by sequence number: whether it is handled, so that a repetition is acknowledged
        self._acknowledged: dict[int, bool] = {}

    def receive(self, message: bytes) -> tuple[int, bytes | None]:
        """Return the sequence number and the payload of a broadcast; the payload is None for a repetition."""
        number, oldest = _HEADER.unpack_from(message)
        while self._acknowledged and (first := next(iter(self._acknowledged))) < oldest:
            del self._acknowledged[first]
        if number in self._acknowledged:
            return number, None
        self._acknowledged[number] = False
        return number, message[_HEADER.size :]

    def mark_acknowledged(self, sequence: int) -> None:
        """Note that a broadcast is handled and acknowledged."""
        if sequence in self._acknowledged:
            self._acknowledged[sequence] = True

    def is_acknowledged(self, sequence: int) -> bool:
        """Return whether a repetition of a broadcast is to be acknowledged."""
        return self._acknowledged.get(sequence, False)


_ACK_TIMEOUT_LEASES: Final = 6  # leases: how long to wait for a peer that holds its lease but does not acknowledge
_SEQUENCE_BYTES: Final = 8  # of the sequence number in an acknowledgement


class ReliableBroadcast:
    """Sends broadcasts until all peers have acknowledged them, and handles those of the peers once."""

    def __init__(
        self, membership: Membership, peers: PeerTable, callbacks: ClusterCallbacks, lease_ttl: float, clock: Clock
    ) -> None:
        self._membership = membership
        self._peers = peers
        self._callbacks = callbacks
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._pending = PendingBroadcasts()
        self._received: dict[str, ReceivedBroadcasts] = {}

    # --- sending ---------------------------------------------------------------------------------

    def send(self, payload: bytes) -> "asyncio.Future[None]":
        """Broadcast a payload. Return a future that is done when each peer has acknowledged it and all earlier
        broadcasts, or has departed."""
        # Without a membership the peers are unknown; `resend_all` addresses them later.
        recipients = self._peers.names if self._membership.joined else (self._membership.name,)
        broadcast = self._pending.add(payload, recipients, self._clock.now())
        self._publish(broadcast)
        return broadcast.done

    def _publish(self, broadcast: PendingBroadcast) -> None:
        self._membership.broadcast(BROADCAST, self._pending.encode(broadcast))

    def awaited_peers(self) -> set[str]:
        """Return the peers that have broadcasts to acknowledge."""
        return self._pending.awaited_peers()

    def resend(self, name: str, before: float = float("inf")) -> None:
        """Send a peer again the broadcasts that it has not acknowledged, of those sent up to a time."""
        for broadcast in self._pending.pending_for(name, before):
            self._membership.send(name, BROADCAST, self._pending.encode(broadcast))

    def resend_all(self) -> None:
        """Send all pending broadcasts again, under the new name of this process."""
        for broadcast in self._pending.set_recipients(self._peers.names):
            self._publish(broadcast)

    def retry_overdue(self) -> None:
        """Send broadcasts again after a lease without acknowledgement; give up after `_ACK_TIMEOUT_LEASES` leases."""
        now = self._clock.now()
        for name in self._pending.give_up(now - _ACK_TIMEOUT_LEASES * self._lease_ttl):
            self._membership.send(name, BROADCAST_MISSED)
            self._callbacks.report_unacknowledged()
        for name in self.awaited_peers():
            self.resend(name, now - self._lease_ttl)

    def on_ack(self, sender: str, body: bytes) -> None:
        """Handle an acknowledgement."""
        self._pending.acknowledge(sender, int.from_bytes(body, "big"))

    # --- receiving -------------------------------------------------------------------------------

    def on_broadcast(self, sender: str, body: bytes) -> None:
        """Handle a broadcast or its repetition, and acknowledge it when its handler is done."""
        received = self._received.setdefault(sender, ReceivedBroadcasts())
        sequence, payload = received.receive(body)
        handling = None if payload is None else self._callbacks.dispatch(sender, payload)
        if handling is not None:
            handling.add_done_callback(lambda _: self._acknowledge(sender, received, sequence))
        elif payload is not None or received.is_acknowledged(sequence):
            self._acknowledge(sender, received, sequence)

    def _acknowledge(self, sender: str, received: ReceivedBroadcasts, sequence: int) -> None:
        received.mark_acknowledged(sequence)
        self._membership.send(sender, ACK, sequence.to_bytes(_SEQUENCE_BYTES, "big"))

    # --- departures ------------------------------------------------------------------------------

    def remove_peer(self, name: str) -> None:
        """Forget a departed peer: its acknowledgements and its broadcasts."""
        self._received.pop(name, None)
        self._pending.remove_peer(name)

    def clear_received(self) -> None:
        """Forget the received broadcasts: this process has lost its name, and peers repeat them to its next one."""
        self._received.clear()

    def abandon_pending(self) -> None:
        """Complete all pending broadcasts without waiting for acknowledgements."""
        self._pending.set_recipients(())
