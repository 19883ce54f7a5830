"""A clock that stands still until it is moved."""

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["ManualClock", "ManualTimer"]


class ManualTimer:
    """Something that will happen when the clock gets there."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Calls it off."""
        self.action = None


class ManualClock:
    """Give it to a `Server` as `clock=`, then `advance` it: what falls due happens, in order, before that returns."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._order = count()

    def now(self) -> float:
        """The time, in seconds."""
        return self._now

    def call_at(self, when: float, action: Callable[[], None]) -> ManualTimer:
        """Does something once the clock has been moved that far."""
        timer = ManualTimer(action)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Moves the clock."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.action is not None:
                timer.action()
        self._now = until

    @property
    def waiting(self) -> int:
        """How many timers are set and not called off."""
        return sum(timer.action is not None for _, _, timer in self._timers)
