"""Whether a peer that says nothing is still there: silence is broken by a ping, and silence after that is death.

Everything that the peer says counts as life, not only its answers to pings; so a line with traffic is never pinged.
"""

from enum import Enum, auto
from typing import NamedTuple

__all__ = ["Keepalive", "KeepaliveAction", "KeepaliveDecision"]


class KeepaliveAction(Enum):
    """What is to be done about a peer now."""

    WAIT = auto()
    PING = auto()
    DEAD = auto()


class KeepaliveDecision(NamedTuple):
    """A verdict, and when to look again."""

    action: KeepaliveAction
    check_at: float


class Keepalive:
    """Decides about one peer. Times are seconds on the clock of its conversation."""

    def __init__(self, interval: float, timeout: float) -> None:
        self._interval = interval
        self._timeout = timeout
        self._pinged_at: float | None = None

    def check(self, last_received: float, now: float) -> KeepaliveDecision:
        """What to do, if the peer was heard last at a given time."""
        if self._pinged_at is not None and last_received >= self._pinged_at:
            self._pinged_at = None
        if self._pinged_at is not None:
            dead_at = self._pinged_at + self._timeout
            return KeepaliveDecision(KeepaliveAction.DEAD if now >= dead_at else KeepaliveAction.WAIT, dead_at)
        if now >= last_received + self._interval:
            self._pinged_at = now
            return KeepaliveDecision(KeepaliveAction.PING, now + self._timeout)
        return KeepaliveDecision(KeepaliveAction.WAIT, last_received + self._interval)
