"""What a server holds from before the first connection until after the last: a pool, a model, a cache.

It is entered and left in one task of its own, whoever starts and ends the server: some context managers insist on that.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Lifespan"]


@dataclass
class _Life:
    """One time from entering to leaving."""

    task: "asyncio.Task[None]"
    started: "asyncio.Future[Any]"  # what it gave
    stop: asyncio.Event
    waiting: int = 0  # those who wait until it has been entered

    @property
    def here(self) -> bool:
        """Whether it is a life on the running loop."""
        return self.task.get_loop() is asyncio.get_running_loop()


class Lifespan:
    """An async context manager, entered once at a time."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = contextlib.asynccontextmanager(make) if inspect.isasyncgenfunction(make) else make
        self._life: _Life | None = None

    @property
    def running(self) -> bool:
        """Whether it has been entered, on the running loop."""
        return self._life is not None and self._life.here and self._life.started.done()

    @property
    def value(self) -> Any:
        """What it gave."""
        return None if self._life is None else self._life.started.result()

    async def start(self, server: Any) -> None:
        """Enters it, once; raises what it raises."""
        life = self._life
        if life is None or not life.here:
            loop = asyncio.get_running_loop()
            started, stop = loop.create_future(), asyncio.Event()
            life = self._life = _Life(loop.create_task(self._live(server, started, stop)), started, stop)
        life.waiting += 1
        try:
            await asyncio.wait([life.task, life.started], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if life.waiting == 1 and not life.started.done():  # nobody else wants it
                await self._give_up(life)
            raise
        finally:
            life.waiting -= 1
        if life.task.done():  # it failed
            self._forget(life)
            await life.task

    async def _give_up(self, life: _Life) -> None:
        self._forget(life)
        life.stop.set()  # it may be entered all the same
        life.task.cancel()
        await asyncio.gather(life.task, return_exceptions=True)

    def _forget(self, life: _Life) -> None:
        if self._life is life:  # or else another one has begun
            self._life = None

    async def _live(self, server: Any, started: "asyncio.Future[Any]", stop: asyncio.Event) -> None:
        async with self._make(server) as value:
            started.set_result(value)
            await stop.wait()

    async def stop(self) -> None:
        """Leaves it, if it was entered; raises what that raises."""
        life, self._life = self._life, None
        if life is not None and life.here:
            life.stop.set()
            await life.task
