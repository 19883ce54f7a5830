"""Writer thread of a SQLite store.

The operations of one loop iteration reach the thread together, and those that arrived meanwhile join them: all share
one transaction and one fsync. The thread runs them in order. Each operation checks its preconditions before it writes,
so a refused operation has no effect and does not affect others. If the transaction itself fails, none of them took
effect.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from trunkline.errors import Conflict, StoreError
from trunkline.stores import validation
from trunkline.stores.sqlite import database
from trunkline.stores.store import ABSENT, Held, Lease, Put, Write

__all__ = [
    "AFTER_ALL",
    "LAST_VERSION",
    "SWEEP_ITEMS",
    "SWEEP_LEASES",
    "Operation",
    "Transaction",
    "WriteJob",
    "Writer",
]

AFTER_ALL: Final = "\U0010ffff"  # no key contains it, so it sorts after all keys with a prefix
CHANGE_HISTORY: Final = 10_000  # versions with recorded keys; a slower poller learns only that any key may have changed
SWEEP_BATCH: Final = 1000  # rows per transaction: other processes write in between

LAST_VERSION: Final = "SELECT max(last, coalesce((SELECT max(version) FROM changes), 0)) FROM state"
"""Query of the last version or token: that of the newest change, unless all changes are pruned."""

_PUT: Final = (
    "INSERT INTO items (key, value, version, expires) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, expires = excluded.expires"
)
_PUT_NEW: Final = f"{_PUT} WHERE items.expires <= ?"
_PUT_OVER: Final = (
    "UPDATE items SET value = ?, version = ?, expires = ?"
    " WHERE key = ? AND version = ? AND (expires IS NULL OR expires > ?)"
)
_FIND: Final = "SELECT version FROM items WHERE key = ? AND (expires IS NULL OR expires > ?)"
_LEASE: Final = (
    "INSERT INTO leases (name, holder, token, expires) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = excluded.token, expires = excluded.expires"
)
SWEEP_ITEMS: Final = "DELETE FROM items WHERE rowid IN (SELECT rowid FROM items WHERE expires <= ? LIMIT ?)"
SWEEP_LEASES: Final = "DELETE FROM leases WHERE name IN (SELECT name FROM leases WHERE expires <= ? LIMIT ?)"


class Transaction:
    """Operations within a running transaction. They raise `Conflict` and `Fenced` before writing anything."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._cursor = connection.cursor()
        self._execute = self._cursor.execute
        self._now = now
        self._first: int = self._execute(LAST_VERSION).fetchone()[0]
        self._last = self._first
        self._changed: list[str] = []

    def finish(self) -> None:
        """Record the new versions and the changed keys."""
        if self._last > self._first:
            self._execute("INSERT INTO changes VALUES (?, ?)", (self._last, "\n".join(self._changed)))
            if self._last // CHANGE_HISTORY > self._first // CHANGE_HISTORY:
                self._prune()

    def commit(self, writes: tuple[Write, ...], fence: Lease | None, *, release: bool = False) -> int:
        """Apply the writes of one commit, and release its fence if requested; return its version."""
        if fence is not None:
            validation.check_lease_held(self._read_lease(fence.name), fence, self._now)
        self._write_all(writes)
        if fence is not None and release:
            self.release(fence)
        return self._last

    def _write_all(self, writes: tuple[Write, ...]) -> None:
        """Apply writes under one new version. Raises `Conflict` before anything is written."""
        if len(writes) == 1 and isinstance(writes[0], Put):
            self._put(writes[0], self._last + 1)
        else:
            for write in writes:
                if write.version is not None:
                    validation.check_version(write, self._version_of(write.key))
            for write in writes:
                self._write(write, self._last + 1)
        self._last += 1
        self._changed += [write.key for write in writes]

    def _put(self, put: Put, version: int) -> None:
        """Apply a commit of one Put, the common case: a single statement compares and writes."""
        key, value, expires = put.key, put.value, put.expires
        if put.version is None:
            self._execute(_PUT, (key, value, version, expires))
            return
        if put.version == ABSENT:
            self._execute(_PUT_NEW, (key, value, version, expires, self._now))
        else:
            self._execute(_PUT_OVER, (value, version, expires, key, put.version, self._now))
        if not self._cursor.rowcount:
            raise Conflict(put.key, put.version, self._version_of(put.key))

    def _write(self, write: Write, version: int) -> None:
        if isinstance(write, Put):
            self._execute(_PUT, (write.key, write.value, version, write.expires))
        else:
            self._execute("DELETE FROM items WHERE key = ?", (write.key,))

    def _version_of(self, key: str) -> int:
        row = self._execute(_FIND, (key, self._now)).fetchone()
        return ABSENT if row is None else row[0]

    def acquire(self, name: str, holder: str, ttl: float, over: int | None, writes: tuple[Write, ...]) -> Lease | Held:
        """Grant a lease and apply its writes, or return the current holder."""
        requested = Lease(name, holder, self._last + 1, self._now + ttl)
        granted = validation.decide_lease(self._read_lease(name), requested, self._now, over)
        if isinstance(granted, Lease):
            self._write_all(writes)
            self._save_lease(granted)
        return granted

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease."""
        validation.check_lease_held(self._read_lease(lease.name), lease, self._now)
        return self._save_lease(validation.extend_lease(lease, self._now + ttl))

    def release(self, lease: Lease) -> None:
        """Release a lease."""
        self._execute("DELETE FROM leases WHERE name = ? AND token = ?", (lease.name, lease.token))

    def _read_lease(self, name: str) -> Lease | None:
        row = self._execute("SELECT name, holder, token, expires FROM leases WHERE name = ?", (name,)).fetchone()
        return None if row is None else Lease(*row)

    def _save_lease(self, lease: Lease) -> Lease:
        self._execute(_LEASE, (lease.name, lease.holder, lease.token, lease.expires))
        return lease

    def sweep(self) -> bool:
        """Delete one batch of expired items and leases, found by their indexes; return whether there may be more."""
        deleted = [self._execute(sql, (self._now, SWEEP_BATCH)).rowcount for sql in (SWEEP_ITEMS, SWEEP_LEASES)]
        if max(deleted) == SWEEP_BATCH:
            return True
        self._prune()
        return False

    def _prune(self) -> None:
        oldest = self._last - CHANGE_HISTORY
        if self._execute("DELETE FROM changes WHERE version <= ?", (oldest,)).rowcount:
            self._execute("UPDATE state SET last = ?, pruned = ?", (self._last, oldest))


Operation = Callable[[Transaction], Any]


class WriteJob(NamedTuple):
    """An operation and the future of its result."""

    operation: Operation
    future: asyncio.Future[Any]


Outcome = tuple["asyncio.Future[Any]", Any]
"""A future and its result; a `StoreError` becomes its exception."""


class Writer:
    """Event loop side of the writer thread."""

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float],
        on_written: Callable[[], None],
        timeout: float,
        synchronous: str,
        max_bytes: int | None,
    ) -> None:
        """`on_written` is called on the loop after each transaction. The file does not grow beyond `max_bytes`."""
        self._path = path
        self._now = now
        self._on_written = on_written
        self._timeout = timeout
        self._synchronous = synchronous
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._pending: list[WriteJob] = []
        self._queue: SimpleQueue[list[WriteJob] | None] = SimpleQueue()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def open(self) -> None:
        """Prepare the file and start the thread."""
        ready: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, args=(ready,), name="trunkline-store", daemon=True).start()
        await ready

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue an operation; operations of one loop iteration are batched."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        job = WriteJob(operation, self._loop.create_future())
        self._pending.append(job)
        return job.future

    async def close(self) -> None:
        """Wait for all queued operations, and close the file."""
        if not self._ended.done():
            self._flush()
            self._queue.put(None)
        await asyncio.shield(self._ended)

    def _flush(self) -> None:
        if self._pending:
            self._queue.put(self._pending)
            self._pending = []

    # --- on the thread -----------------------------------------------------------------------------

    def _run(self, ready: "asyncio.Future[None]") -> None:
        connection: sqlite3.Connection | None = None
        try:
            database.create_file(self._path)
            connection = database.connect(self._path, timeout=self._timeout, synchronous=self._synchronous)
            database.prepare(connection, self._path, self._timeout)
            if self._max_bytes is not None:
                database.limit_size(connection, self._max_bytes)
        except Exception as error:  # noqa: BLE001 - raised through the future
            self._deliver([(ready, database.translate_error(error, self._path))])
        else:
            self._deliver([(ready, None)])
            self._process_batches(connection)
        finally:
            if connection is not None:
                connection.close()
        self._deliver([(self._ended, None)])

    def _process_batches(self, connection: sqlite3.Connection) -> None:
        going_on = True
        while going_on:
            jobs, going_on = self._next_batch()
            if jobs:
                self._deliver(self._execute_batch(connection, jobs))

    def _next_batch(self) -> tuple[list[WriteJob], bool]:
        """Wait for jobs; return all queued ones, and whether more may follow."""
        jobs: list[WriteJob] = []
        batch = self._queue.get()
        while batch is not None:
            jobs += batch
            try:
                batch = self._queue.get_nowait()
            except Empty:
                return jobs, True
        return jobs, False

    def _execute_batch(self, connection: sqlite3.Connection, jobs: list[WriteJob]) -> list[Outcome]:
        """Run jobs in one transaction; return the outcome of each."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection, self._now())
            outcomes = [(job.future, _run_operation(job.operation, transaction)) for job in jobs]
            transaction.finish()
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - raised through the future
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(jobs) > 1 and database.is_full(error):  # small writes, such as renewals of leases, may still fit
                return [outcome for job in jobs for outcome in self._execute_batch(connection, [job])]
            return [(job.future, database.translate_error(error, self._path)) for job in jobs]
        return outcomes

    def _deliver(self, outcomes: list[Outcome]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and all waiters with it
            self._loop.call_soon_threadsafe(self._settle, outcomes)

    def _settle(self, outcomes: list[Outcome]) -> None:
        for future, outcome in outcomes:
            if future.done():  # the waiter was cancelled
                continue
            if isinstance(outcome, StoreError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        self._on_written()


def _run_operation(operation: Operation, transaction: Transaction) -> Any:
    try:
        return operation(transaction)
    except StoreError as refused:
        return refused
