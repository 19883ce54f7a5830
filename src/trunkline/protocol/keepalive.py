"""Whether a peer that says nothing is still there: silence is broken by a ping, and silence after that is death.

Everything that the peer says counts as life, not only its answers to pings; so a line with traffic is never pinged.
"""

from enum import Enum, auto
from typing import NamedTuple

__all__ = ["Keepalive", "Step", "Verdict"]


class Verdict(Enum):
    """What is to be done about a peer now."""

    WAIT = auto()
    PING = auto()
    DEAD = auto()


class Step(NamedTuple):
    """A verdict, and when to look again."""

    verdict: Verdict
    look_at: float


class Keepalive:
    """Decides about one peer. Times are seconds on the clock of its conversation."""

    def __init__(self, interval: float, timeout: float) -> None:
        self._interval = interval
        self._timeout = timeout
        self._pinged: float | None = None

    def look(self, heard: float, now: float) -> Step:
        """What to do, if the peer was heard last at a given time."""
        if self._pinged is not None and heard >= self._pinged:
            self._pinged = None
        if self._pinged is not None:
            dead_at = self._pinged + self._timeout
            return Step(Verdict.DEAD if now >= dead_at else Verdict.WAIT, dead_at)
        if now >= heard + self._interval:
            self._pinged = now
            return Step(Verdict.PING, now + self._timeout)
        return Step(Verdict.WAIT, heard + self._interval)
