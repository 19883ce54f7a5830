"""Keepalive policy: ping a silent peer, and declare it dead after further silence.

Every message of the peer counts, not only ping responses, so a connection with traffic is never pinged.
"""

from enum import Enum, auto
from typing import NamedTuple

__all__ = ["Keepalive", "KeepaliveAction", "KeepaliveDecision"]


class KeepaliveAction(Enum):
    """The action to take for a peer."""

    WAIT = auto()
    PING = auto()
    DEAD = auto()


class KeepaliveDecision(NamedTuple):
    """An action, and the time of the next check."""

    action: KeepaliveAction
    check_at: float


class Keepalive:
    """Keepalive state of one peer. Times are seconds on the clock of its session."""

    def __init__(self, interval: float, timeout: float) -> None:
        self._interval = interval
        self._timeout = timeout
        self._pinged_at: float | None = None

    def check(self, last_received: float, now: float) -> KeepaliveDecision:
        """Return the action for a peer that was last heard from at `last_received`."""
        if self._pinged_at is not None and last_received >= self._pinged_at:
            self._pinged_at = None
        if self._pinged_at is not None:
            dead_at = self._pinged_at + self._timeout
            return KeepaliveDecision(KeepaliveAction.DEAD if now >= dead_at else KeepaliveAction.WAIT, dead_at)
        if now >= last_received + self._interval:
            self._pinged_at = now
            return KeepaliveDecision(KeepaliveAction.PING, now + self._timeout)
        return KeepaliveDecision(KeepaliveAction.WAIT, last_received + self._interval)
