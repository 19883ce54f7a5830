"""Concurrency limit of a tool within one process: a semaphore with a bounded FIFO queue."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from trunkline.errors import InternalError

__all__ = ["ConcurrencyLimit", "LocalSemaphore", "TooManyCalls", "ToolSemaphore", "WaitQueue"]

T = TypeVar("T")

_RETRY_AFTER_MS: Final = 1000  # a guess: the server does not know how long the running calls take


class ConcurrencyLimit(NamedTuple):
    """The concurrency limit of a tool."""

    tool: str
    max_concurrency: int  # calls that run at the same time
    max_queue: int  # calls that wait in one process


class TooManyCalls(InternalError):
    """The tool runs its maximum of calls, and its queue is full."""

    kind = "maximum_concurrent_tools_exceeded"

    def __init__(self, limit: ConcurrencyLimit) -> None:
        message = (
            f"tool {limit.tool!r} is busy: {limit.max_concurrency} calls run and its queue is full; try again later"
        )
        super().__init__(
            message, data={"name": limit.tool, "maximum": limit.max_concurrency, "retryAfterMs": _RETRY_AFTER_MS}
        )


class ToolSemaphore(Protocol):
    """Limits the concurrent calls of a tool."""

    async def acquire(self) -> Any:
        """Wait for a permit. Raises `TooManyCalls` if the queue is full."""
        ...

    def release(self, permit: Any) -> None:
        """Return a permit after a call; the next waiting call gets it."""
        ...


class WaitQueue(Generic[T]):
    """Calls of one tool that wait for a permit in this process, in order of arrival."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit
        self._waiters: deque[asyncio.Future[T]] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def full(self) -> bool:
        """Whether the queue has reached its limit."""
        return len(self._waiters) >= self._limit.max_queue

    async def wait(self, on_abandoned: Callable[[T], None]) -> T:
        """Wait for a permit. If the wait is cancelled after a permit was granted, `on_abandoned` gets the permit."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._waiters.remove(waiter)
            elif waiter.exception() is None:
                on_abandoned(waiter.result())
            raise

    def grant(self, permit: T) -> bool:
        """Give a permit to the first waiter; return False if there is none. A cancelled waiter may still be queued."""
        first = next((waiter for waiter in self._waiters if not waiter.done()), None)
        if first is None:
            return False
        self._waiters.remove(first)
        first.set_result(permit)
        return True

    def reject_overflow(self) -> None:
        """Reject the last waiters above the limit of the queue."""
        while len(self._waiters) > self._limit.max_queue:
            _fail_waiter(self._waiters.pop(), TooManyCalls(self._limit))

    def fail_all(self, error: Exception) -> None:
        """Reject all waiters with an error."""
        while self._waiters:
            _fail_waiter(self._waiters.popleft(), error)


def _fail_waiter(waiter: "asyncio.Future[Any]", error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)


class LocalSemaphore:
    """A semaphore for the calls of this process."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit
        self._free = limit.max_concurrency
        self._queue: WaitQueue[None] = WaitQueue(limit)

    def try_acquire(self) -> bool:
        """Take a permit if one is free; return whether there was one."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a permit."""
        if self.try_acquire():
            return
        if self._queue.full:
            raise TooManyCalls(self._limit)
        await self._queue.wait(self.release)

    def release(self, permit: None) -> None:
        """Return a permit."""
        if not self._queue.grant(permit):
            self._free += 1
