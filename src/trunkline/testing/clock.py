"""A clock that a test advances by hand."""

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["ManualClock", "ManualTimer"]


class ManualTimer:
    """A callback scheduled on a manual clock."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel the callback."""
        self.action = None


class ManualClock:
    """A clock for `Server(clock=...)`: `advance` runs every callback that falls due, in order, before it returns."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._order = count()

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now

    def call_at(self, when: float, action: Callable[[], None]) -> ManualTimer:
        """Schedule `action` at the time `when`."""
        timer = ManualTimer(action)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Advance the clock and run the callbacks that fall due."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.action is not None:
                timer.action()
        self._now = until

    @property
    def waiting(self) -> int:
        """The number of timers that are neither due nor cancelled."""
        return sum(timer.action is not None for _, _, timer in self._timers)
