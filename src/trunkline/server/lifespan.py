"""What a server holds from before the first connection until after the last: a pool, a model, a cache.

It is entered and left in one task of its own, whoever starts and ends the server: some context managers insist on that.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Lifespan"]


class _Life(NamedTuple):
    """One time from entering to leaving."""

    task: "asyncio.Task[None]"
    started: "asyncio.Future[Any]"  # what it gave
    stop: asyncio.Event

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
        try:
            await asyncio.wait([life.task, life.started], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            life.task.cancel()
            self._life = None
            raise
        if life.task.done():  # it failed
            self._life = None
            await life.task

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
