"""At most one notice per kind in an interval: the first at once, the last never lost. Pure; time comes in.

Announces that lists have changed: for each kind the first change at once, the last never lost, none too often.
"""

from collections.abc import Callable
from typing import Final

from trunkline.clock import Clock, Timer

__all__ = ["LIST_CHANGED_METHODS", "Announcer", "Coalescer"]


class Coalescer:
    """Decides when changes are announced."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last_sent: dict[str, float] = {}  # when each kind was last
        self._scheduled: dict[str, float] = {}  # when each kind is to be next

    def record_change(self, kind: str, now: float) -> bool:
        """Notes a change. True: announce it now; otherwise it is announced when `next_due` has come."""
        if kind in self._scheduled:
            return False
        due = self._last_sent.get(kind, now - self._interval) + self._interval
        if due <= now:
            self._last_sent[kind] = now
            return True
        self._scheduled[kind] = due
        return False

    def next_due(self) -> float | None:
        """When the next announcement is due."""
        return min(self._scheduled.values(), default=None)

    def pop_due(self, now: float) -> list[str]:
        """The kinds to announce now."""
        kinds = [kind for kind, when in self._scheduled.items() if when <= now]
        for kind in kinds:
            del self._scheduled[kind]
            self._last_sent[kind] = now
        return kinds


LIST_CHANGED_METHODS: Final = {
    "tool": "notifications/tools/list_changed",
    "resource": "notifications/resources/list_changed",
    "resource_template": "notifications/resources/list_changed",
    "prompt": "notifications/prompts/list_changed",
}
"""What clients are told when a registry changes, by its kind."""


class Announcer:
    """Sends what a `Coalescer` lets through, when it lets it through."""

    def __init__(self, interval: float, clock: Clock, send: Callable[[str], None]) -> None:
        self._coalescer = Coalescer(interval)
        self._clock = clock
        self._send = send
        self._timer: Timer | None = None

    def announce(self, name: str) -> None:
        """Something has changed that is announced under that name."""
        if self._coalescer.record_change(name, self._clock.now()):
            self._send(name)
        elif self._timer is None:
            self._schedule()

    def _schedule(self) -> None:
        due = self._coalescer.next_due()
        self._timer = None if due is None else self._clock.call_at(due, self._send_due)

    def _send_due(self) -> None:
        for name in self._coalescer.pop_due(self._clock.now()):
            self._send(name)
        self._schedule()

    def close(self) -> None:
        """Announces no more."""
        if self._timer is not None:
            self._timer.cancel()
