"""How long a peer may take to say what it has begun to say. One timer watches all who are being read."""

import asyncio
from typing import Any

from trunkline.clock import Clock, Timer

__all__ = ["Patience"]

Reader = asyncio.Task[Any] | None


class Patience:
    """Watches tasks that read what a peer sends, and stops whoever takes too long."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._since: dict[Reader, float] = {}
        self._stopped: set[Reader] = set()
        self._timer: Timer | None = None

    def begin(self) -> Reader:
        """Watches the current task, which begins to read."""
        task = asyncio.current_task()
        if self._seconds is not None:
            self._since[task] = now = self._clock.now()
            if self._timer is None:
                self._timer = self._clock.call_at(now + self._seconds, self._look)
        return task

    def end(self, task: Reader) -> None:
        """It has read."""
        self._since.pop(task, None)

    def ran_out(self, task: Reader) -> bool:
        """Whether a task was stopped from here; if so, that cancellation is taken back."""
        if task is None or task not in self._stopped:
            return False
        self._stopped.discard(task)
        task.uncancel()
        return True

    def _look(self) -> None:
        self._timer = None
        now, limit = self._clock.now(), self._seconds or 0.0
        for task, since in list(self._since.items()):
            if now - since < limit:
                self._timer = self._clock.call_at(since + limit, self._look)  # they stand in the order of time
                return
            del self._since[task]
            if task is not None:
                self._stopped.add(task)
                task.cancel()

    def close(self) -> None:
        """Watches nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
