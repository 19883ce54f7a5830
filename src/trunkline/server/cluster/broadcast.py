"""What a process has told the others and not all have confirmed; and what the others have told it.

Everything told has a number, and goes to somebody again if it may not have arrived. Whoever is told the same again does
nothing but confirm it. How it is written: a number, the oldest number that is not confirmed by all, a text.

What processes tell each other and have confirmed: it goes again to who may not have heard it, and is heard once.
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
    """One thing that was told."""

    __slots__ = ("done", "payload", "sent_at", "sequence", "unacknowledged")

    def __init__(self, sequence: int, payload: bytes, sent_at: float, done: "asyncio.Future[None]") -> None:
        self.sequence = sequence
        self.payload = payload
        self.sent_at = sent_at
        self.done = done
        self.unacknowledged: set[str] = set()  # those who have not confirmed it


class PendingBroadcasts:
    """What this process has told. What was told first is done first: who learns that something is confirmed knows it of
    all that was told before."""

    def __init__(self) -> None:
        self._last_sequence = 0
        self._pending: deque[PendingBroadcast] = deque()

    def add(self, payload: bytes, recipients: Iterable[str], now: float) -> PendingBroadcast:
        """Something more, for those who are there now."""
        self._last_sequence += 1
        done = asyncio.get_running_loop().create_future()
        telling = PendingBroadcast(self._last_sequence, payload, now, done)
        telling.unacknowledged.update(recipients)
        self._pending.append(telling)
        return telling

    def encode(self, broadcast: PendingBroadcast) -> bytes:
        """How it is sent."""
        return _HEADER.pack(broadcast.sequence, self._pending[0].sequence) + broadcast.payload

    def acknowledge(self, name: str, sequence: int) -> None:
        """Somebody has confirmed something."""
        first = self._pending[0].sequence if self._pending else sequence + 1
        if 0 <= sequence - first < len(self._pending):  # numbers follow each other
            self._pending[sequence - first].unacknowledged.discard(name)
            self._complete_acknowledged()

    def remove_peer(self, name: str) -> None:
        """Nobody waits for that process any more."""
        for telling in self._pending:
            telling.unacknowledged.discard(name)
        self._complete_acknowledged()

    def give_up(self, before: float) -> set[str]:
        """Waits no longer for what was told before that time; gives those who have not confirmed it."""
        missed = set[str]()
        for telling in self._pending:
            if telling.sent_at < before:
                missed |= telling.unacknowledged
                telling.unacknowledged.clear()
        self._complete_acknowledged()
        return missed

    def set_recipients(self, recipients: Iterable[str]) -> list[PendingBroadcast]:
        """Nobody knows the name any more under which all of it was told; gives what has to be told to others now."""
        for telling in self._pending:
            telling.unacknowledged = set(recipients)
        self._complete_acknowledged()
        return list(self._pending)

    def _complete_acknowledged(self) -> None:
        while self._pending and not self._pending[0].unacknowledged:
            done = self._pending.popleft().done
            if not done.done():  # somebody may have stopped waiting
                done.set_result(None)

    def awaited_peers(self) -> set[str]:
        """Those who have not confirmed everything."""
        return set[str]().union(*(telling.unacknowledged for telling in self._pending))

    def pending_for(self, name: str, before: float) -> list[PendingBroadcast]:
        """What one has not confirmed, of what was told until that time."""
        return [telling for telling in self._pending if name in telling.unacknowledged and telling.sent_at <= before]


class ReceivedBroadcasts:
    """What one other process has told."""

    def __init__(self) -> None:
        self._acknowledged: dict[int, bool] = {}  # by number: whether it is to be confirmed if it comes again

    def receive(self, message: bytes) -> tuple[int, bytes | None]:
        """The number and the text of what was told; no text if it is known."""
        number, oldest = _HEADER.unpack_from(message)
        while self._acknowledged and (first := next(iter(self._acknowledged))) < oldest:
            del self._acknowledged[first]
        if number in self._acknowledged:
            return number, None
        self._acknowledged[number] = False
        return number, message[_HEADER.size :]

    def mark_acknowledged(self, sequence: int) -> None:
        """It is confirmed from now on."""
        if sequence in self._acknowledged:
            self._acknowledged[sequence] = True

    def is_acknowledged(self, sequence: int) -> bool:
        """Whether it is to be confirmed again."""
        return self._acknowledged.get(sequence, False)


_ACK_TIMEOUT_LEASES: Final = 6  # leases, after which nobody waits any longer for one who lives and does not confirm
_SEQUENCE_BYTES: Final = 8  # bytes


class ReliableBroadcast:
    """What this process has told the others, and they have told it."""

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

    # --- telling -----------------------------------------------------------------------------------

    def send(self, payload: bytes) -> "asyncio.Future[None]":
        """Tells all others something; gives what is done when each has confirmed it, and all told before, or is
        gone."""
        to = (
            self._peers.names if self._membership.joined else (self._membership.name,)
        )  # who has no name asks who is there later
        telling = self._pending.add(payload, to, self._clock.now())
        self._publish(telling)
        return telling.done

    def _publish(self, broadcast: PendingBroadcast) -> None:
        self._membership.broadcast(BROADCAST, self._pending.encode(broadcast))

    def awaited_peers(self) -> set[str]:
        """Those who have not confirmed everything."""
        return self._pending.awaited_peers()

    def resend(self, name: str, before: float = float("inf")) -> None:
        """Tells one again what it has not confirmed, of what was told until that time."""
        for telling in self._pending.pending_for(name, before):
            self._membership.send(name, BROADCAST, self._pending.encode(telling))

    def resend_all(self) -> None:
        """Tells everybody again what was told under another name."""
        for telling in self._pending.set_recipients(self._peers.names):
            self._publish(telling)

    def retry_overdue(self) -> None:
        """Tells those again who have not confirmed something for a while, and waits no longer for those who have not
        for long."""
        now = self._clock.now()
        for name in self._pending.give_up(now - _ACK_TIMEOUT_LEASES * self._lease_ttl):
            self._membership.send(name, BROADCAST_MISSED)
            self._callbacks.report_unacknowledged()
        for name in self.awaited_peers():
            self.resend(name, now - self._lease_ttl)

    def on_ack(self, sender: str, body: bytes) -> None:
        """Somebody has confirmed something."""
        self._pending.acknowledge(sender, int.from_bytes(body, "big"))

    # --- being told --------------------------------------------------------------------------------

    def on_broadcast(self, sender: str, body: bytes) -> None:
        """Somebody tells something, or tells it again."""
        known = self._received.setdefault(sender, ReceivedBroadcasts())
        number, text = known.receive(body)
        waiting = None if text is None else self._callbacks.dispatch(sender, text)
        if waiting is not None:
            waiting.add_done_callback(lambda _: self._acknowledge(sender, known, number))
        elif text is not None or known.is_acknowledged(number):
            self._acknowledge(sender, known, number)

    def _acknowledge(self, sender: str, received: ReceivedBroadcasts, sequence: int) -> None:
        received.mark_acknowledged(sequence)
        self._membership.send(sender, ACK, sequence.to_bytes(_SEQUENCE_BYTES, "big"))

    # --- those who go ------------------------------------------------------------------------------

    def remove_peer(self, name: str) -> None:
        """Nobody waits for that process any more, and it tells nothing more."""
        self._received.pop(name, None)
        self._pending.remove_peer(name)

    def clear_received(self) -> None:
        """Forgets what others have told: this process has no name, and they will tell it to another."""
        self._received.clear()

    def abandon_pending(self) -> None:
        """Waits for nobody any more."""
        self._pending.set_recipients(())
