"""Deadlines of connections: many of the same length, one timer."""

from collections.abc import Callable, Collection
from typing import Final, Generic, Protocol, TypeVar

from trunkline.clock import Clock, Timer

__all__ = ["DeadlineSet", "IdleDeadline"]

_LATEST: Final = 1 / 64  # how much later than its deadline an object may expire, as a part of the deadline


class Idling(Protocol):
    """An object that is idle from time to time."""

    idle_since: float | None  # None while it is not idle


T = TypeVar("T")
IdlingT = TypeVar("IdlingT", bound=Idling)


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


class IdleDeadline(Generic[IdlingT]):
    """The time that each of many objects may be idle.

    An HTTP connection becomes idle with every response, so it only notes the time, which costs less than a place in a
    `DeadlineSet`. One timer serves all objects. It looks at each of them, so it fires at most 64 times within the
    deadline.
    """

    def __init__(
        self, clock: Clock, seconds: float, objects: Collection[IdlingT], on_timeout: Callable[[IdlingT], None]
    ) -> None:
        self.running = False
        self._clock = clock
        self._seconds = seconds
        self._objects = objects
        self._on_timeout = on_timeout
        self._timer: Timer | None = None

    def start(self, since: float) -> None:
        """Start the timer, which must not be running, for an object that is idle since then."""
        self.running = True
        self._timer = self._clock.call_at(since + self._seconds, self._expire_overdue)

    def _expire_overdue(self) -> None:
        self.running = False
        now = self._clock.now()
        idle = [(one.idle_since, one) for one in self._objects if one.idle_since is not None]
        for since, one in idle:
            if now - since >= self._seconds:
                one.idle_since = None
                self._on_timeout(one)
        waiting = [since for since, _ in idle if now - since < self._seconds]
        if waiting:
            self.start(max(min(waiting), now - self._seconds * (1 - _LATEST)))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
