"""Turns at a tool that may be called only so often at once: who comes when none is free waits, the first first."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trunkline.errors import InternalError

__all__ = ["ConcurrencyLimit", "LocalSemaphore", "TooManyCalls", "ToolSemaphore", "WaitQueue"]

T = TypeVar("T")


class ConcurrencyLimit(NamedTuple):
    """What the calls of a tool are held to."""

    tool: str
    max_concurrency: int  # that run at once
    max_queue: int  # that wait in one process


class TooManyCalls(InternalError):
    """A call of a tool that is busy, with as many waiting for it as may."""

    kind = "maximum_concurrent_tools_exceeded"

    def __init__(self, limit: ConcurrencyLimit) -> None:
        told = f"tool {limit.tool!r} is busy: {limit.max_concurrency} calls run and no more may wait; try again later"
        super().__init__(told, data={"name": limit.tool, "maximum": limit.max_concurrency})


class ToolSemaphore(Protocol):
    """Who may call a tool now."""

    async def acquire(self) -> Any:
        """A turn, once there is one. Raises `TooManyCalls`."""
        ...

    def release(self, permit: Any) -> None:
        """A call has ended: the next one has its turn."""
        ...


class WaitQueue(Generic[T]):
    """Calls of one tool that wait for their turn in this process."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit
        self._waiters: deque[asyncio.Future[T]] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self._waiters) >= self._limit.max_queue

    async def wait(self, on_abandoned: Callable[[T], None]) -> T:
        """Waits for a turn; `unwanted` is given the one that has come when nobody takes it any more."""
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiters.remove(turn)
            elif turn.exception() is None:
                on_abandoned(turn.result())
            raise

    def grant(self, permit: T) -> bool:
        """Gives a turn to the first who waits. One that was cancelled meanwhile has not left the queue yet."""
        first = next((waiting for waiting in self._waiters if not waiting.done()), None)
        if first is None:
            return False
        self._waiters.remove(first)
        first.set_result(permit)
        return True

    def reject_overflow(self) -> None:
        """Turns those away who came last and are more than may wait."""
        while len(self._waiters) > self._limit.max_queue:
            _fail_waiter(self._waiters.pop(), TooManyCalls(self._limit))

    def fail_all(self, error: Exception) -> None:
        """Turns everybody away."""
        while self._waiters:
            _fail_waiter(self._waiters.popleft(), error)


def _fail_waiter(waiter: "asyncio.Future[Any]", error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)


class LocalSemaphore:
    """The turns at a tool of one process, which shares nothing with others."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit
        self._free = limit.max_concurrency
        self._queue: WaitQueue[None] = WaitQueue(limit)

    async def acquire(self) -> None:
        """Waits for a turn, if none is free."""
        if self._free:
            self._free -= 1
            return
        if self._queue.full:
            raise TooManyCalls(self._limit)
        await self._queue.wait(self.release)

    def release(self, permit: None) -> None:
        """A call has ended."""
        if not self._queue.grant(permit):
            self._free += 1
