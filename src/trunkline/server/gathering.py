"""Writes to one home of a store, gathered: all that one turn of the loop asks for is one commit.

There is one commit at a time, so they are done in the order in which they were asked for; what comes meanwhile goes
with the next. A store that cannot be reached is tried again, until it can or until nobody cares any more.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from trunkline.errors import StoreUnavailable
from trunkline.stores.store import Delete, Put, Store, Write

__all__ = ["Gathering", "Writers"]

_AGAIN: Final = 0.5  # seconds, before a store that could not be reached is tried again
_MOST: Final = 1000  # writes of one commit


class Writers:
    """All that is being written to a store, for whoever has to wait for it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Has something written."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Waits for what is under way; what cannot be written now is not tried again."""
        self.closed = True
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Gathering:
    """What is to be written to one home."""

    __slots__ = ("_doing", "_done", "_task", "_waiting", "_writers")

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._waiting: dict[str, Write] = {}  # by their keys, in the order of the last that was asked for each
        self._done: asyncio.Future[None] | None = None  # when those are written
        self._doing: asyncio.Future[None] | None = None  # when those are that are on their way
        self._task: asyncio.Task[None] | None = None

    def put(self, key: str, value: bytes, expires: float | None) -> "asyncio.Future[None]":
        """Keeps a value; gives what is done when it is."""
        return self._add(Put(key, value, expires))

    async def keep(self, key: str, value: bytes, expires: float | None) -> None:
        """Keeps a value, and waits until it is kept. What is alone goes to the store by itself, which costs half."""
        if self._task is None:
            await self._writers.store.commit((Put(key, value, expires),))
        else:
            await asyncio.shield(self.put(key, value, expires))

    def delete(self, key: str) -> "asyncio.Future[None]":
        """Keeps a value no longer."""
        return self._add(Delete(key))

    def _add(self, write: Write) -> "asyncio.Future[None]":
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        self._waiting.pop(write.key, None)
        self._waiting[write.key] = write
        if self._task is None:
            self._task = self._writers.start(self._run())
        return self._done

    @property
    def unsettled(self) -> "asyncio.Future[None] | None":
        """What is done when all is written that was asked for by now; None if it is."""
        return self._done or self._doing

    async def _run(self) -> None:
        try:
            while self._waiting:
                writes, self._waiting = list(self._waiting.values()), {}
                done, self._done = self._done, None
                self._doing = done
                for start in range(0, len(writes), _MOST):
                    await self._commit(writes[start : start + _MOST])
                if done is not None and not done.done():
                    done.set_result(None)
        finally:
            self._task = self._doing = None

    async def _commit(self, writes: Sequence[Write]) -> None:
        while True:
            try:
                await self._writers.store.commit(writes)
            except StoreUnavailable:
                if self._writers.closed:
                    raise
                await asyncio.sleep(_AGAIN)
            else:
                return

    async def clear(self) -> None:
        """Forgets what was not written yet, and waits for what is on its way."""
        self._waiting.clear()
        if self._done is not None:
            self._done.set_result(None)
            self._done = None
        if (doing := self._doing) is not None:
            await asyncio.shield(doing)
