"""How long a peer may take to say what it has begun to say. One timer watches all who are being read."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from trunkline.clock import Clock, Timer

__all__ = ["Patience", "Waiting"]


class Waiting:
    """One who is being read."""

    __slots__ = ("_spent", "since", "task")

    def __init__(self, task: "asyncio.Task[object] | None", since: float) -> None:
        self.task = task
        self.since = since
        self._spent = False

    def give_up(self) -> None:
        """Stops the task that reads."""
        if self.task is not None:
            self._spent = True
            self.task.cancel()

    def out_of_patience(self) -> bool:
        """Whether it was stopped from here; if so, that cancellation is taken back."""
        if self._spent and self.task is not None:
            self.task.uncancel()
        return self._spent


class Patience:
    """Watches those who are being read, and stops whoever takes too long."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._reading: dict[Waiting, None] = {}
        self._timer: Timer | None = None

    @contextmanager
    def reading(self) -> "Generator[Waiting]":
        """Watches the current task for as long as it reads."""
        waiting = Waiting(asyncio.current_task(), self._clock.now())
        if self._seconds is not None:
            self._reading[waiting] = None
            if self._timer is None:
                self._timer = self._clock.call_at(waiting.since + self._seconds, self._look)
        try:
            yield waiting
        finally:
            self._reading.pop(waiting, None)

    def _look(self) -> None:
        self._timer = None
        now, limit = self._clock.now(), self._seconds or 0.0
        for waiting in list(self._reading):
            if now - waiting.since >= limit:
                del self._reading[waiting]
                waiting.give_up()
        if self._reading:
            oldest = min(waiting.since for waiting in self._reading)
            self._timer = self._clock.call_at(oldest + limit, self._look)

    def close(self) -> None:
        """Watches nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
