"""Debounced `list_changed` notifications: at most one per kind and interval.

The first change is announced at once. Changes within the interval after it are announced together at its end, so the
last change is never lost.
"""

from collections.abc import Callable
from typing import Final

from trunkline.clock import Clock, Timer

__all__ = ["LIST_CHANGED_METHODS", "Announcer", "Coalescer"]


class Coalescer:
    """Decides when to announce changes. Pure: the caller passes the time."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last_sent: dict[str, float] = {}  # time of the last announcement, by kind
        self._scheduled: dict[str, float] = {}  # time of the next announcement, by kind

    def record_change(self, kind: str, now: float) -> bool:
        """Record a change; return True if it is to be announced now. Otherwise it becomes due later: see `next_due`."""
        if kind in self._scheduled:
            return False
        due = self._last_sent.get(kind, now - self._interval) + self._interval
        if due <= now:
            self._last_sent[kind] = now
            return True
        self._scheduled[kind] = due
        return False

    def next_due(self) -> float | None:
        """Return the time of the next due announcement, if any."""
        return min(self._scheduled.values(), default=None)

    def pop_due(self, now: float) -> list[str]:
        """Return the kinds to announce now, and mark them as announced."""
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
"""The notification for a changed registry, by the kind of its entries."""


class Announcer:
    """Sends debounced notifications, driven by a clock."""

    def __init__(self, interval: float, clock: Clock, send: Callable[[str], None]) -> None:
        self._coalescer = Coalescer(interval)
        self._clock = clock
        self._send = send
        self._timer: Timer | None = None

    def announce(self, name: str) -> None:
        """Send a notification now, or at the end of the interval."""
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
        """Drop announcements that are due later."""
        if self._timer is not None:
            self._timer.cancel()
