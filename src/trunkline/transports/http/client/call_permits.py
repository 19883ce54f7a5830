"""A limit on concurrent calls, which a call can also try to enter without waiting."""

import asyncio
import contextlib
from collections import deque

__all__ = ["CallPermits"]


class CallPermits:
    """A number of permits, given in the order in which they are requested."""

    __slots__ = ("_free", "_waiters")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Take a permit if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Take a permit, waiting for one if none is free."""
        if self.try_acquire():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # `release` may have removed it
                    self._waiters.remove(waiter)
            else:
                self.release()  # it was given in the turn of the loop in which the call was cancelled
            raise

    def release(self) -> None:
        """Return a permit: to the call that waits longest, if any."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
