"""Deadlines that progress renews."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

__all__ = ["ProgressDeadline", "ProgressRelay", "run_until_deadline"]

T = TypeVar("T")
_MIN_REMAINING: Final = 0.001  # seconds


class ProgressDeadline:
    """A deadline of some seconds since the last progress, on a given clock; None means no deadline."""

    def __init__(self, now: Callable[[], float], seconds: float | None) -> None:
        self._now = now
        self._seconds = seconds
        self.started = self._renewed_at = now()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._now() - self.started

    @property
    def remaining(self) -> float | None:
        """Seconds left, and a millisecond at least; None without a deadline."""
        return None if self.due is None else max(self.due - self._now(), _MIN_REMAINING)

    @property
    def due(self) -> float | None:
        """The time of the deadline, unless progress renews it; None without a deadline."""
        return None if self._seconds is None else self._renewed_at + self._seconds

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.due is not None and self._now() >= self.due

    def renew(self) -> None:
        """Start the time again."""
        self._renewed_at = self._now()


class ProgressRelay:
    """A progress callback that also renews deadlines."""

    def __init__(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback
        self.deadlines: set[ProgressDeadline] = set()

    def __call__(self, progress: Any) -> Any:
        """Renew the deadlines, and call the callback."""
        for patience in self.deadlines:
            patience.renew()
        return self._callback(progress)


async def run_until_deadline(
    work: Coroutine[Any, Any, T],
    due: Callable[[], float | None],
    now: Callable[[], float],
    wait: "Callable[[Sequence[asyncio.Future[Any]], float | None], Awaitable[None]]",
) -> T:
    """Run a coroutine and return its result. Raises `TimeoutError` at the deadline, which may move meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            until = due()
            if until is not None and now() >= until:
                raise TimeoutError
            await wait([task], until)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # mark it as retrieved
