"""Writes to a store, gathered in rounds: all that one turn of the loop asks for is one round, which has one commit for
each session that it is about.

There is one round at a time, so what was asked for first is kept first, whichever session it belongs to: who learns
that something is kept knows it of all that was asked for before. What comes meanwhile goes with the next round. A store
that cannot be reached is tried again, until it can; when the server stops, once more. A session that another process
has taken is no matter to the others: what was asked for it is refused, and the round goes on.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from trunkline.errors import Fenced, StoreUnavailable
from trunkline.server.sessions.lease import Holding
from trunkline.stores.store import Delete, Put, Write

__all__ = ["Gathering"]

_AGAIN: Final = 0.5  # seconds, before a store that could not be reached is tried again
_MOST: Final = 1000  # writes of one commit

Writes = dict[str, Write]
"""By their keys, in the order of the last that was asked for each."""


class Gathering:
    """What is to be written."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """`failed` is told of what can never be written."""
        self._failed = failed
        self._closed = False
        self._away = False  # the store has failed once more since `close`
        self._waiting: dict[Holding, Writes] = {}  # for the next round
        self._next: asyncio.Future[None] | None = None  # when those are written
        self._writing: dict[Holding, Writes] = {}  # in the round that is under way
        self._round: asyncio.Future[None] | None = None  # when those are
        self._urgent: asyncio.Future[None] | None = None  # when the last is that answers wait for
        self._impatient: list[asyncio.Future[None]] = []  # waiting, and told if a commit has to be tried again
        self._task: asyncio.Task[None] | None = None

    # --- asking --------------------------------------------------------------------------------

    def put(
        self, at: Holding, key: str, value: bytes, expires: float | None, *, urgent: bool = False
    ) -> "asyncio.Future[None]":
        """Keeps a value; gives what is done when it is, or is refused. What is urgent is kept before anybody is
        answered."""
        done = self._add(at, Put(key, value, expires))
        if urgent:
            self._urgent = done
        return done

    def keep(self, at: Holding, key: str, value: bytes, expires: float | None) -> "asyncio.Future[Any]":
        """Keeps a value; gives what is done when it is. What is alone in its session goes to the store by itself, which
        costs half; it is not tried again. Otherwise it goes with a round, which is; yet whoever waits for it is told
        that the store is unavailable as soon as that is known."""
        put = Put(key, value, expires)
        if at in self._waiting or at in self._writing:
            heeding = _heeding(at, self._add(at, put))
            self._impatient.append(heeding)
            return heeding
        return at.begin(put)

    def delete(self, at: Holding, key: str) -> "asyncio.Future[None]":
        """Keeps a value no longer."""
        return self._add(at, Delete(key))

    def _add(self, at: Holding, write: Write) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        done = self._next = self._next or loop.create_future()
        writes = self._waiting.setdefault(at, {})
        writes.pop(write.key, None)
        writes[write.key] = write
        if self._task is None:
            self._task = loop.create_task(self._run())
        return done

    # --- waiting -------------------------------------------------------------------------------

    def unsettled(self, at: Holding) -> "asyncio.Future[None] | None":
        """What is done when all is written that was asked for by now in a session; None if it is. It fails if another
        process has taken that (`Fenced`)."""
        done = self._next if at in self._waiting else self._round if at in self._writing else None
        return None if done is None else _heeding(at, done)

    @property
    def urgent(self) -> "asyncio.Future[None] | None":
        """What is done when all is written that has to be before anybody is answered; None if it is."""
        if self._urgent is not None and self._urgent.done():
            self._urgent = None
        return self._urgent

    async def close(self) -> None:
        """Waits for what is under way. What failed before is tried once more, since the store may be back; when that
        fails, nothing else is tried."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])

    # --- writing -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while (done := self._next) is not None:
                self._writing, self._waiting = self._waiting, {}
                self._round, self._next = done, None
                commits = [self._begin(at, list(writes.values())) for at, writes in self._writing.items()]
                failures = [await self._end(*commit) for commit in commits]  # all of them are under way
                self._writing, self._round = {}, None
                self._impatient = [heeding for heeding in self._impatient if not heeding.done()]
                if (failure := next(filter(None, failures), None)) is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
                    done.exception()  # whoever waits has it; nobody else has to
        finally:
            self._task = None

    def _begin(self, at: Holding, writes: Sequence[Write]) -> "tuple[Holding, Sequence[Write], asyncio.Future[int]]":
        return at, writes, at.commit(writes[:_MOST])

    async def _end(self, at: Holding, writes: Sequence[Write], first: "asyncio.Future[int]") -> Exception | None:
        """Does all that a round has for one session, of which the first commit is under way; gives why it cannot be
        done."""
        try:
            await self._again(at, writes[:_MOST], first)
            for start in range(_MOST, len(writes), _MOST):
                await self._again(*self._begin(at, writes[start : start + _MOST]))
        except Fenced:
            return None  # whom that concerns has been told
        except Exception as error:  # noqa: BLE001 - told to whoever waits, and to the operator
            self._failed(error)
            return error
        return None

    async def _again(self, at: Holding, writes: Sequence[Write], commit: "asyncio.Future[int]") -> None:
        """Waits for a commit, and makes it again for as long as the store cannot be reached."""
        last = False
        while True:
            try:
                await commit
            except StoreUnavailable as error:
                self._away = self._away or last
                if self._away:
                    raise
                self._tell_impatient(error)
                if not self._closed:
                    await asyncio.sleep(_AGAIN)
                last = self._closed
                _, _, commit = self._begin(at, writes)
            else:
                return

    def _tell_impatient(self, error: StoreUnavailable) -> None:
        waiting, self._impatient = self._impatient, []
        for heeding in waiting:
            if not heeding.done():
                heeding.set_exception(error)
                heeding.exception()  # the caller may have stopped waiting


def _heeding(at: Holding, done: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """What is done when a round is, and raises `Fenced` if what was asked for in a session was refused."""
    heeding = asyncio.get_running_loop().create_future()

    def settle(_: "asyncio.Future[None]") -> None:
        if heeding.done():
            return
        error = Fenced(at.at, 0) if at.over else done.exception()
        if error is None:
            heeding.set_result(None)
        else:
            heeding.set_exception(error)
            heeding.exception()  # whoever waits has it; nobody else has to

    done.add_done_callback(settle)
    return heeding
