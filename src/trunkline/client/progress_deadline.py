"""How long somebody waits for something that tells of its progress."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

__all__ = ["ProgressDeadline", "ProgressRelay", "run_until_deadline"]

T = TypeVar("T")
_MIN_REMAINING: Final = 0.001  # seconds


class ProgressDeadline:
    """So many seconds from the last sign of life, on a clock that is given; without end if there are none."""

    def __init__(self, now: Callable[[], float], seconds: float | None) -> None:
        self._now = now
        self._seconds = seconds
        self.started = self._renewed_at = now()

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._now() - self.started

    @property
    def remaining(self) -> float | None:
        """Seconds until it ends, a moment at least; None if it does not."""
        return None if self.due is None else max(self.due - self._now(), _MIN_REMAINING)

    @property
    def due(self) -> float | None:
        """When it ends, as far as that is known now; None if it does not."""
        return None if self._seconds is None else self._renewed_at + self._seconds

    @property
    def expired(self) -> bool:
        """Whether it has ended."""
        return self.due is not None and self._now() >= self.due

    def renew(self) -> None:
        """A sign of life."""
        self._renewed_at = self._now()


class ProgressRelay:
    """A function that is told of progress, and those to whom that is a sign of life."""

    def __init__(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback
        self.deadlines: set[ProgressDeadline] = set()

    def __call__(self, progress: Any) -> Any:
        """Something was told."""
        for patience in self.deadlines:
            patience.renew()
        return self._callback(progress)


async def run_until_deadline(
    work: Coroutine[Any, Any, T],
    due: Callable[[], float | None],
    now: Callable[[], float],
    wait: "Callable[[Sequence[asyncio.Future[Any]], float | None], Awaitable[None]]",
) -> T:
    """The outcome of some work. Raises `TimeoutError` when its time is up, which may be put off meanwhile."""
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
            task.exception()  # nobody has to hear of it
