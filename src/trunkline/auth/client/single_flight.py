"""Work that is done once for all who need it at the same time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from trunkline.errors import TrunklineError, again

__all__ = ["SingleFlight"]


class _SharedRun:
    """One piece of work, and how many wait for it."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)
        self.waiters = 0

    @property
    def is_joinable(self) -> bool:
        """Whether it can be joined still, from here."""
        here = self.task.get_loop() is asyncio.get_running_loop()
        return here and not self.task.done() and not self.task.cancelling()


class SingleFlight:
    """One piece of work at a time. Whoever comes while it is under way joins it; whoever leaves takes nothing along,
    except the last."""

    def __init__(self) -> None:
        self._current: _SharedRun | None = None

    async def join(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Has the work done, or waits for what is under way. Raises what it raises."""
        trip = self._current
        if trip is None or not trip.is_joinable:
            trip = self._current = _SharedRun(work())
        trip.waiters += 1
        try:
            await asyncio.shield(trip.task)
        except asyncio.CancelledError:
            if trip.waiters == 1 and not trip.task.done():  # nobody else waits for it
                trip.task.cancel()
                await asyncio.wait([trip.task])
            raise
        except TrunklineError as error:
            raise again(error) from error.__cause__
        finally:
            trip.waiters -= 1
