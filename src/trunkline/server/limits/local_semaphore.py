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
    most: int  # that run at once
    max_queue: int  # that wait in one process


class TooManyCalls(InternalError):
    """A call of a tool that is busy, with as many waiting for it as may."""

    kind = "maximum_concurrent_tools_exceeded"

    def __init__(self, limit: ConcurrencyLimit) -> None:
        told = f"tool {limit.tool!r} is busy: {limit.most} calls run and no more may wait; try again later"
        super().__init__(told, data={"name": limit.tool, "maximum": limit.most})


class ToolSemaphore(Protocol):
    """Who may call a tool now."""

    async def take(self) -> Any:
        """A turn, once there is one. Raises `TooManyCalls`."""
        ...

    def give(self, permit: Any) -> None:
        """A call has ended: the next one has its turn."""
        ...


class WaitQueue(Generic[T]):
    """Calls of one tool that wait for their turn in this process."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit
        self._waiting: deque[asyncio.Future[T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self._waiting) >= self._limit.max_queue

    async def wait(self, on_abandoned: Callable[[T], None]) -> T:
        """Waits for a turn; `unwanted` is given the one that has come when nobody takes it any more."""
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(turn)
            elif turn.exception() is None:
                on_abandoned(turn.result())
            raise

    def grant(self, permit: T) -> bool:
        """Gives a turn to the first who waits. One that was cancelled meanwhile has not left the queue yet."""
        first = next((waiting for waiting in self._waiting if not waiting.done()), None)
        if first is None:
            return False
        self._waiting.remove(first)
        first.set_result(permit)
        return True

    def cut(self) -> None:
        """Turns those away who came last and are more than may wait."""
        while len(self._waiting) > self._limit.max_queue:
            _fail_waiter(self._waiting.pop(), TooManyCalls(self._limit))

    def fail(self, error: Exception) -> None:
        """Turns everybody away."""
        while self._waiting:
            _fail_waiter(self._waiting.popleft(), error)


def _fail_waiter(waiter: "asyncio.Future[Any]", error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)


class LocalSemaphore:
    """The turns at a tool of one process, which shares nothing with others."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit
        self._free = limit.most
        self._queue: WaitQueue[None] = WaitQueue(limit)

    async def take(self) -> None:
        """Waits for a turn, if none is free."""
        if self._free:
            self._free -= 1
            return
        if self._queue.full:
            raise TooManyCalls(self._limit)
        await self._queue.wait(self.give)

    def give(self, permit: None) -> None:
        """A call has ended."""
        if not self._queue.grant(permit):
            self._free += 1
