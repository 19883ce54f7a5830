"""Single flight: concurrent callers share one run of an operation."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from trunkline.errors import TrunklineError, again

__all__ = ["SingleFlight"]


class _SharedRun:
    """One run, and the number of its waiters."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)
        self.waiters = 0

    @property
    def is_joinable(self) -> bool:
        """Whether a caller on the running loop may still wait for it."""
        here = self.task.get_loop() is asyncio.get_running_loop()
        return here and not self.task.done() and not self.task.cancelling()


class SingleFlight:
    """Runs one operation at a time. Callers that arrive meanwhile wait for it; cancelling the last waiter cancels
    the run."""

    def __init__(self) -> None:
        self._current: _SharedRun | None = None

    async def join(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start `work`, or wait for the current run. Raises the exception of the run."""
        trip = self._current
        if trip is None or not trip.is_joinable:
            trip = self._current = _SharedRun(work())
        trip.waiters += 1
        try:
            await asyncio.shield(trip.task)
        except asyncio.CancelledError:
            if trip.waiters == 1 and not trip.task.done():  # there are no other waiters
                trip.task.cancel()
                await asyncio.wait([trip.task])
            raise
        except TrunklineError as error:
            raise again(error) from error.__cause__
        finally:
            trip.waiters -= 1
