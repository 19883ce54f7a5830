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
from trunkline.server.sessions.lease import SessionLease
from trunkline.stores.store import Delete, Put, Write

__all__ = ["WriteBatcher"]

_RETRY_DELAY: Final = 0.5  # seconds, before a store that could not be reached is tried again
_MAX_WRITES_PER_COMMIT: Final = 1000  # writes of one commit

WritesByKey = dict[str, Write]
"""By their keys, in the order of the last that was asked for each."""


class WriteBatcher:
    """What is to be written."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        """`failed` is told of what can never be written."""
        self._on_failure = on_failure
        self._closed = False
        self._final_retry_failed = False  # the store has failed once more since `close`
        self._queued: dict[SessionLease, WritesByKey] = {}  # for the next round
        self._queued_done: asyncio.Future[None] | None = None  # when those are written
        self._in_flight: dict[SessionLease, WritesByKey] = {}  # in the round that is under way
        self._in_flight_done: asyncio.Future[None] | None = None  # when those are
        self._urgent_done: asyncio.Future[None] | None = None  # when the last is that answers wait for
        self._fail_fast_waiters: list[asyncio.Future[None]] = []  # waiting, and told if a commit has to be tried again
        self._task: asyncio.Task[None] | None = None

    # --- asking --------------------------------------------------------------------------------

    def put(
        self, lease: SessionLease, key: str, value: bytes, expires: float | None, *, urgent: bool = False
    ) -> "asyncio.Future[None]":
        """Keeps a value; gives what is done when it is, or is refused. What is urgent is kept before anybody is
        answered."""
        done = self._add(lease, Put(key, value, expires))
        if urgent:
            self._urgent_done = done
        return done

    def put_or_fail(self, lease: SessionLease, key: str, value: bytes, expires: float | None) -> "asyncio.Future[Any]":
        """Keeps a value; gives what is done when it is. What is alone in its session goes to the store by itself, which
        costs half; it is not tried again. Otherwise it goes with a round, which is; yet whoever waits for it is told
        that the store is unavailable as soon as that is known."""
        put = Put(key, value, expires)
        if lease in self._queued or lease in self._in_flight:
            heeding = _checked_for_fencing(lease, self._add(lease, put))
            self._fail_fast_waiters.append(heeding)
            return heeding
        return lease.commit_first(put)

    def delete(self, lease: SessionLease, key: str) -> "asyncio.Future[None]":
        """Keeps a value no longer."""
        return self._add(lease, Delete(key))

    def _add(self, lease: SessionLease, write: Write) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        done = self._queued_done = self._queued_done or loop.create_future()
        writes = self._queued.setdefault(lease, {})
        writes.pop(write.key, None)
        writes[write.key] = write
        if self._task is None:
            self._task = loop.create_task(self._run())
        return done

    # --- waiting -------------------------------------------------------------------------------

    def pending_writes(self, lease: SessionLease) -> "asyncio.Future[None] | None":
        """What is done when all is written that was asked for by now in a session; None if it is. It fails if another
        process has taken that (`Fenced`)."""
        done = (
            self._queued_done if lease in self._queued else self._in_flight_done if lease in self._in_flight else None
        )
        return None if done is None else _checked_for_fencing(lease, done)

    @property
    def urgent_writes(self) -> "asyncio.Future[None] | None":
        """What is done when all is written that has to be before anybody is answered; None if it is."""
        if self._urgent_done is not None and self._urgent_done.done():
            self._urgent_done = None
        return self._urgent_done

    async def close(self) -> None:
        """Waits for what is under way. What failed before is tried once more, since the store may be back; when that
        fails, nothing else is tried."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])

    # --- writing -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while (done := self._queued_done) is not None:
                self._in_flight, self._queued = self._queued, {}
                self._in_flight_done, self._queued_done = done, None
                commits = [self._start_commit(at, list(writes.values())) for at, writes in self._in_flight.items()]
                failures = [await self._finish_commits(*commit) for commit in commits]  # all of them are under way
                self._in_flight, self._in_flight_done = {}, None
                self._fail_fast_waiters = [heeding for heeding in self._fail_fast_waiters if not heeding.done()]
                if (failure := next(filter(None, failures), None)) is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
                    done.exception()  # whoever waits has it; nobody else has to
        finally:
            self._task = None

    def _start_commit(
        self, lease: SessionLease, writes: Sequence[Write]
    ) -> "tuple[SessionLease, Sequence[Write], asyncio.Future[int]]":
        return lease, writes, lease.commit(writes[:_MAX_WRITES_PER_COMMIT])

    async def _finish_commits(
        self, lease: SessionLease, writes: Sequence[Write], first_commit: "asyncio.Future[int]"
    ) -> Exception | None:
        """Does all that a round has for one session, of which the first commit is under way; gives why it cannot be
        done."""
        try:
            await self._await_commit(lease, writes[:_MAX_WRITES_PER_COMMIT], first_commit)
            for start in range(_MAX_WRITES_PER_COMMIT, len(writes), _MAX_WRITES_PER_COMMIT):
                await self._await_commit(*self._start_commit(lease, writes[start : start + _MAX_WRITES_PER_COMMIT]))
        except Fenced:
            return None  # whom that concerns has been told
        except Exception as error:  # noqa: BLE001 - told to whoever waits, and to the operator
            self._on_failure(error)
            return error
        return None

    async def _await_commit(self, lease: SessionLease, writes: Sequence[Write], commit: "asyncio.Future[int]") -> None:
        """Waits for a commit, and makes it again for as long as the store cannot be reached."""
        last = False
        while True:
            try:
                await commit
            except StoreUnavailable as error:
                self._final_retry_failed = self._final_retry_failed or last
                if self._final_retry_failed:
                    raise
                self._fail_waiters(error)
                if not self._closed:
                    await asyncio.sleep(_RETRY_DELAY)
                last = self._closed
                _, _, commit = self._start_commit(lease, writes)
            else:
                return

    def _fail_waiters(self, error: StoreUnavailable) -> None:
        waiting, self._fail_fast_waiters = self._fail_fast_waiters, []
        for heeding in waiting:
            if not heeding.done():
                heeding.set_exception(error)
                heeding.exception()  # the caller may have stopped waiting


def _checked_for_fencing(lease: SessionLease, done: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """What is done when a round is, and raises `Fenced` if what was asked for in a session was refused."""
    heeding = asyncio.get_running_loop().create_future()

    def settle(_: "asyncio.Future[None]") -> None:
        if heeding.done():
            return
        error = Fenced(lease.key, 0) if lease.ended else done.exception()
        if error is None:
            heeding.set_result(None)
        else:
            heeding.set_exception(error)
            heeding.exception()  # whoever waits has it; nobody else has to

    done.add_done_callback(settle)
    return heeding
