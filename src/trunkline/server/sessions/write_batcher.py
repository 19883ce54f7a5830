"""Write batcher: collects the writes of sessions into batches, with one commit for each session.

All writes of one turn of the loop form one batch. One batch is in flight at a time, so writes are stored in the order
in which they were queued, across all sessions: when one write is stored, all earlier ones are too. Writes that arrive
meanwhile form the next batch. While the store is unavailable, the failed commits of the batch are retried together, so
that the time to recover does not depend on the number of sessions; after `close`, once more. If another process has
taken a session over, the writes of that session are refused and the rest of the batch continues.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from trunkline.errors import Fenced, StoreUnavailable
from trunkline.server.sessions.lease import SessionLease, follow
from trunkline.stores.store import Delete, Put, Write

__all__ = ["WriteBatcher"]

_RETRY_DELAY: Final = 0.5  # seconds between two attempts while the store is unavailable
_MAX_WRITES_PER_COMMIT: Final = 1000

WritesByKey = dict[str, Write]
"""Writes by key. A later write of a key replaces an earlier one and moves to the end."""


class WriteBatcher:
    """Queue of writes to session data."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        """`on_failure` receives the error of a write that can never succeed."""
        self._on_failure = on_failure
        self._closed = False
        self._final_retry_failed = False  # a retry after `close` has failed
        self._queued: dict[SessionLease, WritesByKey] = {}  # for the next batch
        self._queued_done: asyncio.Future[None] | None = None  # done when the queued writes are stored
        self._in_flight: dict[SessionLease, WritesByKey] = {}  # of the batch in flight
        self._in_flight_done: asyncio.Future[None] | None = None  # done when the batch in flight is stored
        # done when the writes that replies wait for are stored; None if they are
        self.urgent_writes: asyncio.Future[None] | None = None
        self.on_urgent: Callable[[], None] = lambda: None  # called with each of them
        self._fail_fast_waiters: list[asyncio.Future[None]] = []  # futures that fail when a commit has to be retried
        self._task: asyncio.Task[None] | None = None

    # --- queueing ------------------------------------------------------------------------------

    def put(
        self, lease: SessionLease, key: str, value: bytes, expires: float | None, *, urgent: bool = False
    ) -> "asyncio.Future[None]":
        """Queue a value. Return a future that is done when it is stored or refused. Replies wait for urgent values."""
        done = self._add(lease, Put(key, value, expires))
        if urgent:
            self.urgent_writes = done
            self.on_urgent()
        return done

    def put_or_fail(self, lease: SessionLease, key: str, value: bytes, expires: float | None) -> "asyncio.Future[Any]":
        """Write a value now. Return a future that is done when it is stored. If the session has no queued writes, the
        value goes to the store at once, which halves the cost, and is not retried. Otherwise it joins a batch, which is
        retried, but the future fails as soon as the store is known to be unavailable."""
        put = Put(key, value, expires)
        if lease in self._queued or lease in self._in_flight:
            waiter = _checked_for_fencing(lease, self._add(lease, put))
            self._fail_fast_waiters.append(waiter)
            return waiter
        return lease.commit_first(put)

    def delete(self, lease: SessionLease, key: str) -> "asyncio.Future[None]":
        """Queue the deletion of a key."""
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
        """Return a future that is done when all writes queued so far for a session are stored; None if they are. It
        raises `Fenced` if another process has taken the session over."""
        done = (
            self._queued_done if lease in self._queued else self._in_flight_done if lease in self._in_flight else None
        )
        return None if done is None else _checked_for_fencing(lease, done)

    async def close(self) -> None:
        """Wait for the queued writes. A commit that failed is retried once more, since the store may be back; after a
        second failure the remaining writes are given up."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])

    # --- writing -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while (done := self._queued_done) is not None:
                self._in_flight, self._queued = self._queued, {}
                self._in_flight_done, self._queued_done = done, None
                failure = await self._commit_all({at: list(writes.values()) for at, writes in self._in_flight.items()})
                self._in_flight, self._in_flight_done = {}, None
                if self.urgent_writes is done:
                    self.urgent_writes = None
                self._fail_fast_waiters = [waiter for waiter in self._fail_fast_waiters if not waiter.done()]
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
                    done.exception()  # the waiting callers have it; mark it as retrieved
        finally:
            self._task = None

    async def _commit_all(self, left: dict[SessionLease, list[Write]]) -> Exception | None:
        """Commit the writes of all sessions, and repeat while the store is unavailable. Return the first error with
        which writes can never succeed."""
        failure: Exception | None = None
        last = False
        while left:
            commits = [(lease, lease.commit(writes[:_MAX_WRITES_PER_COMMIT])) for lease, writes in left.items()]
            outcomes = [(lease, await _error_of(commit)) for lease, commit in commits]  # all commits are in flight
            unavailable = next((error for _, error in outcomes if isinstance(error, StoreUnavailable)), None)
            self._final_retry_failed = self._final_retry_failed or (last and unavailable is not None)
            for lease, error in outcomes:
                if error is None and len(left[lease]) > _MAX_WRITES_PER_COMMIT:
                    left[lease] = left[lease][_MAX_WRITES_PER_COMMIT:]
                elif not isinstance(error, StoreUnavailable) or self._final_retry_failed:
                    del left[lease]
                    if error is not None and not isinstance(error, Fenced):  # the session's lease has reported that
                        self._on_failure(error)
                        failure = failure or error
            if unavailable is not None and left:
                self._fail_waiters(unavailable)
                if not self._closed:
                    await asyncio.sleep(_RETRY_DELAY)
                last = self._closed
        return failure

    def _fail_waiters(self, error: StoreUnavailable) -> None:
        waiting, self._fail_fast_waiters = self._fail_fast_waiters, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # the caller may have stopped waiting


def _checked_for_fencing(lease: SessionLease, done: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """Return a future that is done when a batch is, and raises `Fenced` if the writes of a session were refused."""
    return follow(done, lambda error: Fenced(lease.key, 0) if lease.ended else error)


async def _error_of(commit: "asyncio.Future[int]") -> Exception | None:
    """Wait for a commit and return its error, or None."""
    try:
        await commit
    except Exception as error:  # noqa: BLE001 - reported to the waiting callers and to the observers
        return error
    return None
