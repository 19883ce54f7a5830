"""What every network transport passes its peers through: who they may be, how many, and how long one may say nothing.

A transport that listens is given a guard and nobody else to hand its peers to, so none can do without. A peer is
watched until its first valid message. One that has sent none in time is cut off, whatever else it has sent.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from trunkline.clock import Clock, Timer
from trunkline.config import Settings
from trunkline.facts import ConnectionFailed, Observers
from trunkline.fdlimit import DescriptorReserve
from trunkline.transports.channel import Accept, Channel, ChannelClosed, MessageOrigin, Receiver
from trunkline.transports.origin_policy import LOOPBACK_HOSTS, HostOriginPolicy
from trunkline.wire.messages import Incoming, Malformed, RequestId

__all__ = ["SHUTTING_DOWN", "ListenerGuard", "RetryLater"]

Disconnect = Callable[[ChannelClosed], None]


class RetryLater(Struct, frozen=True):
    """Why somebody is not let in now: what it is told, and for how many seconds it should stay away."""

    reason: str
    kind: str = "too_many_sessions"
    retry_after: bytes = b"30"


SHUTTING_DOWN: Final = RetryLater("the server is about to stop", "temporarily_unavailable", b"1")


class ListenerGuard:
    """Stands before a listener's peers."""

    def __init__(
        self,
        accept: Accept,
        settings: Settings,
        clock: Clock,
        *,
        hosts: Iterable[str] = (),
        observers: Observers | None = None,
    ) -> None:
        """`names` are those that this place is known by, beside what the settings name. `observers` are told of
        connections that fail."""
        self.settings = settings
        self.clock = clock
        self.refusal_reason = HostOriginPolicy(
            (*LOOPBACK_HOSTS, *hosts, *settings.allowed_hosts), settings.allowed_origins
        ).refusal_reason
        """Why a caller with these headers, Host and Origin, is turned away; None if it is let in."""
        self._accept = accept
        self.reserve = DescriptorReserve(settings.descriptor_reserve)
        self.max_connections = self.reserve.connection_limit(settings.max_connections)
        """Connections that may be open at once: `max_connections`, or what the limit on descriptors leaves room for."""
        self._first_message_timeout = settings.initialize_timeout
        self._closing = False
        self._observers = Observers() if observers is None else observers
        self.peer_count = 0  # on the line

    @property
    def full(self) -> bool:
        """Whether one more peer would be too many."""
        return self._closing or self.peer_count >= self.max_connections

    def check_capacity(self, what: str) -> "RetryLater | None":
        """Why nobody more is let in; None if somebody is. `what` they would be."""
        if self._closing:
            return SHUTTING_DOWN
        return RetryLater(f"there are too many {what}; try again later") if self.full else None

    def stop_admitting(self) -> None:
        """Lets nobody in any more, not even who is on the way."""
        self._closing = True

    @property
    def closing(self) -> bool:
        """Whether nobody is let in any more."""
        return self._closing

    def connection_failed(self, transport: str, peer: str, error: BaseException) -> str:
        """Report an error of our own on one connection; return the incident under which the log has it. Closing the
        connection is left to its transport."""
        incident = os.urandom(6).hex()
        if self._observers.hear_failures:
            self._observers.on(
                ConnectionFailed(
                    connection=0, at=self.clock.now(), transport=transport, peer=peer, incident=incident, error=error
                )
            )
        return incident

    def admit(self, channel: Channel, disconnect: Disconnect) -> Receiver:
        """Takes a peer that keeps a line open. `cut` ends its channel at once."""
        watched = _FirstMessageReceiver(self._accept(channel), self._on_peer_closed)
        self.peer_count += 1
        if self._first_message_timeout is not None:
            seconds = self._first_message_timeout
            watched.timer = self.clock.call_at(
                self.clock.now() + seconds,
                lambda: disconnect(ChannelClosed(f"the peer said nothing valid within {seconds:g} s")),
            )
        return watched

    def admit_session(self, channel: Channel) -> Receiver:
        """Takes a peer whose first message is at hand, and who comes anew with each: sessions are counted elsewhere."""
        return self._accept(channel)

    def _on_peer_closed(self) -> None:
        self.peer_count -= 1


class _FirstMessageReceiver:
    """Passes on what a channel reports, and stops the clock at the first valid message."""

    def __init__(self, receiver: Receiver, left: Callable[[], None]) -> None:
        self._receiver = receiver
        self._on_closed = left
        self.timer: Timer | None = None

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        if self.timer is not None and any(not isinstance(message, Malformed) for message in messages):
            self._stop_timer()
        self._receiver.received(messages, origin)

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        self._receiver.unanswered(request, closed)

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        self._receiver.authorizing(request, begun=begun)

    def closed(self, closed: ChannelClosed) -> None:
        self._stop_timer()
        self._on_closed()
        self._receiver.closed(closed)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
