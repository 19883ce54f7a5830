"""How long somebody waits for something that tells of its progress."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

__all__ = ["Patience", "Signs", "within"]

T = TypeVar("T")
_MOMENT: Final = 0.001  # seconds


class Patience:
    """So many seconds from the last sign of life, on a clock that is given; without end if there are none."""

    def __init__(self, now: Callable[[], float], seconds: float | None) -> None:
        self._now = now
        self._seconds = seconds
        self.started = self._since = now()

    @property
    def passed(self) -> float:
        """Seconds since it began."""
        return self._now() - self.started

    @property
    def left(self) -> float | None:
        """Seconds until it ends, a moment at least; None if it does not."""
        return None if self.due is None else max(self.due - self._now(), _MOMENT)

    @property
    def due(self) -> float | None:
        """When it ends, as far as that is known now; None if it does not."""
        return None if self._seconds is None else self._since + self._seconds

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.due is not None and self._now() >= self.due

    def renew(self) -> None:
        """A sign of life."""
        self._since = self._now()


class Signs:
    """A function that is told of progress, and those to whom that is a sign of life."""

    def __init__(self, told: Callable[[Any], Any]) -> None:
        self._told = told
        self.waiting: set[Patience] = set()

    def __call__(self, progress: Any) -> Any:
        """Something was told."""
        for patience in self.waiting:
            patience.renew()
        return self._told(progress)


async def within(
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
