"""Deadlines of connections: many of the same length, one timer."""

from collections.abc import Callable
from typing import Generic, TypeVar

from trunkline.clock import Clock, Timer

__all__ = ["DeadlineSet"]

T = TypeVar("T")


class DeadlineSet(Generic[T]):
    """Objects that have the same time for something, each from its own start. One timer serves all of them."""

    def __init__(self, clock: Clock, seconds: float | None, on_timeout: Callable[[T], None]) -> None:
        """None as `seconds` means no deadline."""
        self._clock = clock
        self._seconds = seconds
        self._on_timeout = on_timeout
        self._since: dict[T, float] = {}
        self._timer: Timer | None = None

    def add(self, owner: T) -> None:
        """Start the deadline of an object, unless it is running."""
        if self._seconds is not None and owner not in self._since:
            self._since[owner] = now = self._clock.now()
            if self._timer is None:
                self._timer = self._clock.call_at(now + self._seconds, self._expire_overdue)

    def discard(self, owner: T) -> None:
        """Remove an object that has met its deadline."""
        self._since.pop(owner, None)

    def _expire_overdue(self) -> None:
        self._timer = None
        now, limit = self._clock.now(), self._seconds or 0.0
        for owner, since in list(self._since.items()):
            if now - since < limit:
                self._timer = self._clock.call_at(since + limit, self._expire_overdue)  # the dict is in order of time
                return
            del self._since[owner]
            self._on_timeout(owner)

    def close(self) -> None:
        """Stop the timer."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
