"""Reliable broadcast: messages to all peers that are acknowledged, repeated after losses and delivered once.

Each broadcast has a sequence number. It is sent again to a peer that may not have received it; a peer that has it
already only acknowledges it again. On the wire a broadcast is its sequence number, the oldest sequence number that is
not acknowledged by all peers, and the payload. The second number lets receivers forget older ones.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from struct import Struct as Layout
from typing import Any, Final

from msgspec import Struct

from trunkline.clock import Clock
from trunkline.server.cluster.membership import Membership, PeerTable
from trunkline.server.cluster.messages import ACK, BROADCAST, BROADCAST_MISSED, ClusterCallbacks

__all__ = ["ReliableBroadcast"]

_HEADER: Final = Layout(">QQ")
_ACK_TIMEOUT_LEASES: Final = 6  # leases: how long to wait for a peer that holds its lease but does not acknowledge
_SEQUENCE_BYTES: Final = 8  # of the sequence number in an acknowledgement


class _PendingBroadcast(Struct, eq=False):
    """A broadcast that not all peers have acknowledged."""

    sequence: int
    payload: bytes
    sent_at: float
    unacknowledged: set[str]  # names of the peers that have not acknowledged it
    done: "asyncio.Future[None]"


class ReliableBroadcast:
    """Sends broadcasts until all peers have acknowledged them, and handles those of the peers once.

    A broadcast completes only after all earlier ones, so its completion covers them too.
    """

    def __init__(
        self, membership: Membership, peers: PeerTable, callbacks: ClusterCallbacks, lease_ttl: float, clock: Clock
    ) -> None:
        self._membership = membership
        self._peers = peers
        self._callbacks = callbacks
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._last_sequence = 0
        self._pending: deque[_PendingBroadcast] = deque()  # in order, without gaps
        # By sender and sequence number: a future that is done when the broadcast is handled; None if it is.
        self._received: dict[str, dict[int, asyncio.Future[Any] | None]] = {}

    # --- sending ---------------------------------------------------------------------------------

    def send(self, payload: bytes) -> "asyncio.Future[None]":
        """Broadcast a payload. Return a future that is done when each peer has acknowledged it and all earlier
        broadcasts, or has departed."""
        # Without a membership the peers are unknown; `resend_all` addresses them later.
        recipients = self._peers.names if self._membership.joined else (self._membership.name,)
        done = asyncio.get_running_loop().create_future()
        self._last_sequence += 1
        broadcast = _PendingBroadcast(self._last_sequence, payload, self._clock.now(), set(recipients), done)
        self._pending.append(broadcast)
        self._membership.broadcast(BROADCAST, self._encode(broadcast))
        return done

    def _encode(self, broadcast: _PendingBroadcast) -> bytes:
        """Return the body of a broadcast message."""
        return _HEADER.pack(broadcast.sequence, self._pending[0].sequence) + broadcast.payload

    def awaited_peers(self) -> set[str]:
        """Return the peers that have broadcasts to acknowledge."""
        return set[str]().union(*(broadcast.unacknowledged for broadcast in self._pending))

    def resend(self, name: str, before: float = float("inf")) -> None:
        """Send a peer again the broadcasts that it has not acknowledged, of those sent up to a time."""
        for broadcast in self._pending:
            if name in broadcast.unacknowledged and broadcast.sent_at <= before:
                self._membership.send(name, BROADCAST, self._encode(broadcast))

    def resend_all(self) -> None:
        """Send all pending broadcasts again, to the peers that this process has under its new name."""
        self._set_recipients(self._peers.names)
        for broadcast in self._pending:
            self._membership.broadcast(BROADCAST, self._encode(broadcast))

    def retry_overdue(self) -> None:
        """Send broadcasts again after a lease without acknowledgement; give up after `_ACK_TIMEOUT_LEASES` leases."""
        now, unreached = self._clock.now(), set[str]()
        for broadcast in self._pending:
            if broadcast.sent_at < now - _ACK_TIMEOUT_LEASES * self._lease_ttl:
                unreached |= broadcast.unacknowledged
                broadcast.unacknowledged.clear()
        self._complete_acknowledged()
        for name in unreached:
            self._membership.send(name, BROADCAST_MISSED)
            self._callbacks.report_dropped("news", "a process did not acknowledge it")
        for name in self.awaited_peers():
            self.resend(name, now - self._lease_ttl)

    def on_ack(self, sender: str, body: bytes) -> None:
        """Handle an acknowledgement."""
        index = int.from_bytes(body, "big") - self._pending[0].sequence if self._pending else 0
        if 0 <= index < len(self._pending):
            self._pending[index].unacknowledged.discard(sender)
            self._complete_acknowledged()

    def abandon_pending(self) -> None:
        """Complete all pending broadcasts without waiting for acknowledgements."""
        self._set_recipients(())

    def _set_recipients(self, recipients: Iterable[str]) -> None:
        for broadcast in self._pending:
            broadcast.unacknowledged = set(recipients)
        self._complete_acknowledged()

    def _complete_acknowledged(self) -> None:
        while self._pending and not self._pending[0].unacknowledged:
            done = self._pending.popleft().done
            if not done.done():  # the caller may have stopped waiting
                done.set_result(None)

    # --- receiving -------------------------------------------------------------------------------

    def on_broadcast(self, sender: str, body: bytes) -> None:
        """Handle a broadcast and acknowledge it when its handler is done. Only acknowledge a repetition."""
        sequence, oldest = _HEADER.unpack_from(body)
        received = self._received.setdefault(sender, {})
        while received and (first := next(iter(received))) < oldest:
            del received[first]
        repeated = sequence in received
        if not repeated:
            received[sequence] = self._callbacks.dispatch(sender, body[_HEADER.size :])
        handling = received[sequence]
        if handling is None or handling.done():
            self._acknowledge(sender, sequence)
        elif not repeated:
            handling.add_done_callback(lambda _: self._acknowledge(sender, sequence))

    def _acknowledge(self, sender: str, sequence: int) -> None:
        self._membership.send(sender, ACK, sequence.to_bytes(_SEQUENCE_BYTES, "big"))

    # --- departures ------------------------------------------------------------------------------

    def remove_peer(self, name: str) -> None:
        """Forget a departed peer: its acknowledgements and its broadcasts."""
        self._received.pop(name, None)
        for broadcast in self._pending:
            broadcast.unacknowledged.discard(name)
        self._complete_acknowledged()

    def clear_received(self) -> None:
        """Forget the received broadcasts: this process has lost its name, and peers repeat them to its next one."""
        self._received.clear()
