"""Keepalive of a connection whose peer may disappear silently: ping it when it is idle, and report it dead without a
response."""

from collections.abc import Callable

from trunkline.clock import Clock, Timer
from trunkline.protocol.keepalive import Keepalive, KeepaliveAction

__all__ = ["KeepaliveMonitor"]


class KeepaliveMonitor:
    """One timer per connection, set to the next check. The connection sets `last_received` with every read."""

    def __init__(
        self, interval: float, timeout: float, clock: Clock, ping: Callable[[], bool], on_dead: Callable[[], None]
    ) -> None:
        """`ping` sends a ping, or returns False while the connection does not read: no response could arrive."""
        self._keepalive = Keepalive(interval, timeout)
        self._clock = clock
        self._ping = ping
        self._on_dead = on_dead
        self.last_received = clock.now()
        self._timer: Timer | None = clock.call_at(self.last_received + interval, self._check)

    def _check(self) -> None:
        now = self._clock.now()
        verdict, again = self._keepalive.check(self.last_received, now)
        if verdict is KeepaliveAction.DEAD:
            self._timer = None
            self._on_dead()
            return
        if verdict is KeepaliveAction.PING and not self._ping():
            self.last_received = now
            again = self._keepalive.check(now, now).check_at
        self._timer = self._clock.call_at(again, self._check)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
