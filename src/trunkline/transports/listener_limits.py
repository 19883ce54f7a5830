"""Limits of a listener: allowed hosts and origins, the number of connections, and a deadline for the first message.

Every network transport passes its peers through a `ListenerGuard`. The guard disconnects a peer that has not sent a
valid message within `initialize_timeout`, whatever else it has sent.
"""

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from trunkline.clock import Clock, Timer
from trunkline.config import Settings
from trunkline.facts import ConnectionFailed, HttpRefused, Observers, StreamClosed, StreamOpened
from trunkline.fdlimit import DescriptorReserve
from trunkline.transports.channel import Accept, Channel, ChannelClosed, MessageOrigin, Receiver
from trunkline.transports.origin_policy import LOOPBACK_HOSTS, HostOriginPolicy
from trunkline.wire.messages import Incoming, Malformed, RequestId

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["SHUTTING_DOWN", "ListenerGuard", "RetryLater"]

Disconnect = Callable[[ChannelClosed], None]
_MAX_REPORTED: Final = 1000  # characters of a text that the client has chosen


class RetryLater(Struct, frozen=True):
    """Refusal for lack of capacity: the reason, the error kind, and the value of the Retry-After header."""

    reason: str
    kind: str = "too_many_sessions"
    retry_after: bytes = b"30"


SHUTTING_DOWN: Final = RetryLater("the server is shutting down", "temporarily_unavailable", b"1")


class ListenerGuard:
    """Admits the peers of a listener within its limits."""

    def __init__(
        self,
        accept: Accept,
        settings: Settings,
        clock: Clock,
        *,
        hosts: Iterable[str] = (),
        observers: Observers | None = None,
        profile: "Profile | None" = None,
    ) -> None:
        """`hosts` are the server's own host names, in addition to `allowed_hosts`. `observers` receive connection
        failures. `profile` is the compatibility profile of all clients of the handshake era."""
        self.settings = settings
        self.clock = clock
        self.profile = profile
        self.refusal_reason = HostOriginPolicy(
            (*LOOPBACK_HOSTS, *hosts, *settings.allowed_hosts), settings.allowed_origins
        ).refusal_reason
        """Checks the Host and Origin headers: returns the reason for a refusal, or None."""
        self._accept = accept
        self.reserve = DescriptorReserve(settings.descriptor_reserve)
        self.max_connections = self.reserve.connection_limit(settings.max_connections)
        """Limit of open connections: the setting `max_connections`, or less if the descriptor limit is too low for
        it."""
        self._first_message_timeout = settings.initialize_timeout
        self._closing = False
        self._observers = Observers() if observers is None else observers
        self.peer_count = 0  # open connections

    @property
    def full(self) -> bool:
        """Whether the guard refuses further peers."""
        return self._closing or self.peer_count >= self.max_connections

    def check_capacity(self, what: str) -> "RetryLater | None":
        """Return the refusal of one more peer; None if there is room. `what` names the peers in the message."""
        if self._closing:
            return SHUTTING_DOWN
        return RetryLater(f"too many {what}; try again later") if self.full else None

    def stop_admitting(self) -> None:
        """Refuse new peers, including those whose connection is being opened."""
        self._closing = True

    @property
    def closing(self) -> bool:
        """Whether the guard refuses all new peers."""
        return self._closing

    def connection_failed(self, transport: str, peer: str, error: BaseException) -> str:
        """Report an internal error of one connection and return the id of the incident in the log. The transport
        closes the connection."""
        incident = os.urandom(6).hex()
        if self._observers.hear_failures:
            self._observers.on(
                ConnectionFailed(
                    connection=0, at=self.clock.now(), transport=transport, peer=peer, incident=incident, error=error
                )
            )
        return incident

    def report_refused(self, method: str, path: str, status: int, kind: str, client: str) -> None:
        """Report the refusal of an HTTP request, if an observer wants that."""
        if self._observers.want(HttpRefused):
            refused = HttpRefused(
                connection=0,
                at=self.clock.now(),
                method=method[:_MAX_REPORTED],
                path=path[:_MAX_REPORTED],
                status=status,
                kind=kind,
                client=client,
            )
            self._observers.on(refused)

    @contextmanager
    def observe_stream(self) -> Generator[None]:
        """Report that an event stream is open as long as the block runs, if an observer wants that."""
        observers, clock = self._observers, self.clock
        if not observers.want(StreamOpened):
            yield
            return
        opened = clock.now()
        observers.on(StreamOpened(connection=0, at=opened))
        try:
            yield
        finally:
            now = clock.now()
            observers.on(StreamClosed(connection=0, at=now, seconds=now - opened))

    def admit(self, channel: Channel, disconnect: Disconnect) -> Receiver:
        """Admit a peer with a lasting connection. `disconnect` closes its channel at once."""
        receiver = _FirstMessageReceiver(self._accept(channel), self._on_peer_closed)
        self.peer_count += 1
        if self._first_message_timeout is not None:
            seconds = self._first_message_timeout
            receiver.timer = self.clock.call_at(
                self.clock.now() + seconds,
                lambda: disconnect(ChannelClosed(f"the peer sent no valid message within {seconds:g} s")),
            )
        return receiver

    def admit_session(self, channel: Channel) -> Receiver:
        """Admit an HTTP session, whose first message has arrived already. Sessions are counted separately."""
        return self._accept(channel)

    def _on_peer_closed(self) -> None:
        self.peer_count -= 1


class _FirstMessageReceiver:
    """Forwards the callbacks of a channel and cancels the first-message timer at the first valid message."""

    def __init__(self, receiver: Receiver, on_closed: Callable[[], None]) -> None:
        self._receiver = receiver
        self._on_closed = on_closed
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
