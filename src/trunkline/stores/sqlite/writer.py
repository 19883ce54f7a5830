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
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, NoReturn

from msgspec.structs import replace

from trunkline.errors import Conflict, StoreError
from trunkline.stores import validation
from trunkline.stores.sqlite import database
from trunkline.stores.store import ABSENT, Held, Lease, Put, Write

__all__ = [
    "LAST_VERSION",
    "SWEEP_ITEMS",
    "SWEEP_LEASES",
    "Changes",
    "Operation",
    "Transaction",
    "WriteJob",
    "Writer",
]

CHANGE_HISTORY: Final = 10_000  # versions with recorded keys; a slower poller learns only that any key may have changed
SWEEP_BATCH: Final = 1000  # rows per transaction: other processes write in between

LAST_VERSION: Final = "SELECT max(last, coalesce((SELECT max(version) FROM changes), 0)) FROM state"
"""Query of the last version or token: that of the newest change, unless all changes are pruned."""

_INSERT: Final = "INSERT INTO items (key, value, version, expires)"
_REPLACE: Final = (
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, expires = excluded.expires"
)
_EXPIRED: Final = " WHERE items.expires <= ?"
_PUT: Final = f"{_INSERT} VALUES (?, ?, ?, ?){_REPLACE}"
_PUT_NEW: Final = f"{_PUT}{_EXPIRED}"
_PUT_OVER: Final = (
    "UPDATE items SET value = ?, version = ?, expires = ?"
    " WHERE key = ? AND version = ? AND (expires IS NULL OR expires > ?)"
)
# The same in commits with a fence: no row changes if the lease is lost.
_HELD: Final = "EXISTS (SELECT 1 FROM leases WHERE name = ? AND token = ? AND expires > ?)"
_FENCED_PUT: Final = f"{_INSERT} SELECT ?, ?, ?, ? WHERE {_HELD}{_REPLACE}"
_FENCED_PUT_NEW: Final = f"{_FENCED_PUT}{_EXPIRED}"
_FENCED_PUT_OVER: Final = f"{_PUT_OVER} AND {_HELD}"
_FIND: Final = "SELECT version FROM items WHERE key = ? AND (expires IS NULL OR expires > ?)"
_NEW_LEASE: Final = (
    "INSERT INTO leases (name, holder, token, expires) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"
)
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

    def finish(self) -> "Changes":
        """Record the new versions and the changed keys, and return them."""
        if self._last > self._first:
            self._execute("INSERT INTO changes VALUES (?, ?)", (self._last, "\n".join(self._changed)))
            if self._last // CHANGE_HISTORY > self._first // CHANGE_HISTORY:
                self._prune()
        return Changes(self._first, self._last, self._changed)

    def commit(self, writes: tuple[Write, ...], fence: Lease | None, *, release: bool = False) -> int:
        """Apply the writes of one commit, and release its fence if requested; return its version."""
        self._write_all(writes, fence)
        if fence is not None and release:
            self.release(fence)
        return self._last

    def _write_all(self, writes: tuple[Write, ...], fence: Lease | None = None) -> None:
        """Apply writes under one new version. Raises `Fenced` or `Conflict` before anything is written. The statement
        of the first write also checks the fence and its expected version, so that most commits need no other check."""
        version, first = self._last + 1, _choose_first(writes, fenced=fence is not None)
        if fence is not None and first is None:
            self._check_lease(fence)
        for write in writes:
            if write.version is not None and write is not first and write.version != self._version_of(write.key):
                self._refuse(write, fence)
        if first is not None:
            self._execute(*_statement_of(first, version, fence, self._now))
            if not self._cursor.rowcount:
                self._refuse(first, fence)
        for write in writes:
            if write is not first:
                self._write(write, version)
        self._last = version
        self._changed += [write.key for write in writes]

    def _check_lease(self, fence: Lease) -> None:
        validation.check_lease_held(self._read_lease(fence.name), fence, self._now)

    def _refuse(self, write: Write, fence: Lease | None) -> NoReturn:
        """Raise the reason why a write has no effect: the lease is lost, or else the key has another version."""
        if fence is not None:
            self._check_lease(fence)
        raise Conflict(write.key, write.version or ABSENT, self._version_of(write.key))

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
        if self._execute(_NEW_LEASE, (name, holder, requested.token, requested.expires)).rowcount:
            try:
                self._write_all(writes)
            except Conflict:
                self.release(requested)
                raise
            return requested
        granted = validation.decide_lease(self._read_lease(name), requested, self._now, over)
        if isinstance(granted, Lease):
            self._write_all(writes)
            self._save_lease(granted)
        return granted

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease."""
        self._check_lease(lease)
        return self._save_lease(replace(lease, expires=self._now + ttl))

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


def _choose_first(writes: tuple[Write, ...], *, fenced: bool) -> Put | None:
    """Return the write whose statement also checks the commit: one with an expected version, or with a fence any.
    None if there is nothing to check, or only deletions could."""
    puts = [write for write in writes if isinstance(write, Put)]
    for put in puts:
        if put.version is not None:
            return put
    return puts[0] if puts and fenced else None


def _statement_of(put: Put, version: int, fence: Lease | None, now: float) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that writes a value if the fence is held and the key has the expected version."""
    held = () if fence is None else (fence.name, fence.token, now)
    if put.version is None:
        return (_PUT if fence is None else _FENCED_PUT), (put.key, put.value, version, put.expires, *held)
    if put.version == ABSENT:
        sql = _PUT_NEW if fence is None else _FENCED_PUT_NEW
        return sql, (put.key, put.value, version, put.expires, *held, now)
    sql = _PUT_OVER if fence is None else _FENCED_PUT_OVER
    return sql, (put.value, version, put.expires, put.key, put.version, now, *held)


Operation = Callable[[Transaction], Any]


class Changes(NamedTuple):
    """The changes of a transaction."""

    before: int  # last version before it
    last: int  # last version of it
    keys: list[str]


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
        open_file: Callable[[], sqlite3.Connection],
        *,
        now: Callable[[], float],
        on_written: Callable[[Changes], None],
    ) -> None:
        """`open_file` is called on the thread; `on_written` on the loop after each transaction, with its changes."""
        self._path = path
        self._open_file = open_file
        self._now = now
        self._on_written = on_written
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
        try:
            connection = self._open_file()
        except Exception as error:  # noqa: BLE001 - raised through the future
            self._deliver([(ready, database.translate_error(error, self._path))])
        else:
            self._deliver([(ready, None)])
            with contextlib.closing(connection):
                self._process_batches(connection)
        self._deliver([(self._ended, None)])

    def _process_batches(self, connection: sqlite3.Connection) -> None:
        """Run jobs until the end mark. All that are queued share a transaction."""
        jobs: list[WriteJob] = []
        while (batch := self._queue.get()) is not None:
            jobs += batch
            if self._queue.empty():
                self._execute_batch(connection, jobs)
                jobs = []
        if jobs:
            self._execute_batch(connection, jobs)

    def _execute_batch(self, connection: sqlite3.Connection, jobs: list[WriteJob]) -> None:
        """Run jobs in one transaction, and deliver the outcome of each."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection, self._now())
            outcomes = [(job.future, _run_operation(job.operation, transaction)) for job in jobs]
            changes = transaction.finish()
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - raised through the future
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(jobs) > 1 and database.is_full(error):  # small writes, such as renewals of leases, may still fit
                for job in jobs:
                    self._execute_batch(connection, [job])
            else:
                self._deliver([(job.future, database.translate_error(error, self._path)) for job in jobs])
        else:
            self._deliver(outcomes, changes)

    def _deliver(self, outcomes: list[Outcome], changes: Changes | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and all waiters with it
            self._loop.call_soon_threadsafe(self._settle, outcomes, changes)

    def _settle(self, outcomes: list[Outcome], changes: Changes | None) -> None:
        for future, outcome in outcomes:
            if future.done():  # the waiter was cancelled
                continue
            if isinstance(outcome, StoreError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        if changes is not None:
            self._on_written(changes)


def _run_operation(operation: Operation, transaction: Transaction) -> Any:
    try:
        return operation(transaction)
    except StoreError as refused:
        return refused
