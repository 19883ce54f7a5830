"""Store in a SQLite file, which any number of processes of one machine may share.

Writes go to a writer thread (`writer.py`), which batches commits. Reads run on the event loop: a read of a file in the
page cache takes a few microseconds, a thread round trip ten times as long, and readers never wait for writers. So the
file belongs on a local disk.

Watches poll the file every `watch_every` seconds while there are any. That is the delay with which a process notices
changes of another one; it notices its own changes at once.
"""

import asyncio
import socket
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from trunkline.clock import Clock, Timer, WallClock
from trunkline.config import MIB
from trunkline.errors import ConfigError, MisuseError, NotExecuted, StoreError, TrunklineError
from trunkline.stores import validation
from trunkline.stores.bus import Bus
from trunkline.stores.futures import failed_future
from trunkline.stores.sqlite import database
from trunkline.stores.sqlite.writer import LAST_VERSION, Changes, Operation, Transaction, Writer
from trunkline.stores.store import Changed, Held, Item, Lease, Watch, Write
from trunkline.stores.unix_bus.bus import UnixBus
from trunkline.stores.watches import Watchers

__all__ = ["SWEEP_INTERVAL", "SqliteStore"]

SWEEP_INTERVAL: Final = 60.0  # seconds
MIN_MAX_BYTES: Final = MIB  # the tables, and a history of changes
_READ_TIMEOUT: Final = 0.25  # seconds that a read may block the loop, while SQLite recovers the log of a dead process

_GET: Final = "SELECT key, value, version, expires FROM items WHERE key = ? AND (expires IS NULL OR expires > ?)"
_SCAN: Final = (
    "SELECT key, value, version, expires FROM items"
    " WHERE key >= ? AND key > ? AND key < ? AND (expires IS NULL OR expires > ?) ORDER BY key LIMIT ?"
)
_CHANGES: Final = "SELECT version, keys FROM changes WHERE version > ? ORDER BY version"


class SqliteStore:
    """Store in a file. `patience` is the time limit for locks of other processes, in seconds. `synchronous="NORMAL"`
    commits faster, but may lose the last commits in a power failure; see `database.py`. Writes that would make the
    file larger than `max_bytes` are refused; None: as large as the disk allows."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        patience: float = 5.0,
        watch_every: float = 0.05,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        max_bytes: int | None = None,
    ) -> None:
        if patience < 0 or watch_every <= 0 or synchronous not in {"FULL", "NORMAL"}:
            raise ConfigError("patience is 0 or more, watch_every more than 0, and synchronous FULL or NORMAL")
        if max_bytes is not None and max_bytes < MIN_MAX_BYTES:
            raise ConfigError(f"max_bytes is at least {MIN_MAX_BYTES}, or None, not {max_bytes}")
        self._path = Path(path)
        self._clock: Clock = WallClock() if clock is None else clock
        self._patience = patience
        self._watch_every = watch_every
        self._synchronous = synchronous
        self._max_bytes = max_bytes
        self._closed = False
        self._writer: Writer | None = None
        self._reader: sqlite3.Connection | None = None
        self._watchers = Watchers()
        self._seen_version = 0  # last version that was reported to watchers
        self._seen_data_version: int | None = None  # PRAGMA data_version at that time
        self._poll_timer: Timer | None = None
        self._sweep_timer: Timer | None = None

    # --- lifecycle ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<SqliteStore {str(self._path)!r}>"

    @property
    def lasting(self) -> bool:
        """True: the file outlives this process."""
        return True

    def bus(self) -> Bus | None:
        """Return a bus on Unix sockets, in a folder derived from the file's path, or None where there are none."""
        return UnixBus(self._path) if hasattr(socket, "AF_UNIX") else None

    async def open(self) -> None:
        """Open the file, or create it. Raises `StoreUnusable` if it is damaged, of another program, or newer."""
        if self._closed:
            raise self._not_open_error()
        if self._writer is not None:
            return
        open_file = partial(database.open_for_writing, self._path, self._patience, self._synchronous, self._max_bytes)
        self._writer = Writer(self._path, open_file, now=self._clock.now, on_written=self._on_written)
        try:
            await self._writer.open()
            self._reader = database.connect(self._path, timeout=_READ_TIMEOUT)
        except BaseException:
            await self.close()
            raise
        self._schedule_sweep()

    async def close(self) -> None:
        """Wait for pending writes, and close the file."""
        self._closed = True
        self._watchers.close()
        for timer in (self._poll_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        self._poll_timer = self._sweep_timer = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._writer is not None:
            await self._writer.close()

    def _not_open_error(self) -> TrunklineError:
        if self._closed:
            return NotExecuted(f"the store {self._path} is closed")
        return MisuseError(f"the store {self._path} is not open yet")

    # --- items -------------------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        """Return the item of a key, or None."""
        validation.check_key(key)
        rows = self._read(_GET, (key, self._clock.now()))
        return Item(*rows[0]) if rows else None

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """Return a page of items in key order."""
        validation.check_page(prefix, after, limit)
        rows = self._read(_SCAN, (prefix, after, prefix + validation.AFTER_ALL, self._clock.now(), limit))
        return [Item(*row) for row in rows]

    def commit(
        self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False
    ) -> "asyncio.Future[int]":
        """Apply all writes or none; they are on disk when the future completes."""
        try:
            validation.check_writes(writes, None if fence is None else fence.name)
        except MisuseError as error:
            return failed_future(error)
        return self._write(partial(Transaction.commit, writes=tuple(writes), fence=fence, release=release))

    # --- leases ------------------------------------------------------------------------------------

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> "asyncio.Future[Lease | Held]":
        """Grant the lease if it is free, expired or held under the token `over`; apply `writes` with it."""
        act = partial(Transaction.acquire, name=name, holder=holder, ttl=ttl, over=over, writes=tuple(writes))
        return self._write_lease(name, holder, ttl, act, writes)

    def renew(self, lease: Lease, ttl: float) -> "asyncio.Future[Lease]":
        """Extend the lease to `ttl` seconds from now."""
        return self._write_lease(lease.name, lease.holder, ttl, partial(Transaction.renew, lease=lease, ttl=ttl))

    def release(self, lease: Lease) -> "asyncio.Future[None]":
        """Release the lease."""
        return self._write(partial(Transaction.release, lease=lease))

    def _write_lease(
        self, name: str, holder: str, ttl: float, operation: Operation, writes: Sequence[Write] = ()
    ) -> asyncio.Future[Any]:
        try:
            validation.check_lease(name, holder, ttl, writes)
        except MisuseError as error:
            return failed_future(error)
        return self._write(operation)

    # --- watches -----------------------------------------------------------------------------------

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Call back when keys with this prefix change."""
        if not self._watchers:
            self._seen_version = self._read(LAST_VERSION)[0][0]
            self._schedule_poll()
        return self._watchers.add(prefix, callback)

    def _schedule_poll(self) -> None:
        if self._poll_timer is None:
            self._poll_timer = self._clock.call_at(self._clock.now() + self._watch_every, self._poll)

    def _poll(self) -> None:
        self._poll_timer = None
        if self._watchers:
            self._notify_watchers()
            self._schedule_poll()

    def _on_written(self, changes: Changes) -> None:
        """Notify watchers of a transaction of this process. If no other process has written before it, its changes are
        all there are, and nothing needs to be read."""
        if not self._watchers:
            return
        if changes.before == self._seen_version:
            self._seen_version = changes.last
            self._watchers.notify(changes.keys)
        else:
            self._notify_watchers()

    def _notify_watchers(self) -> None:
        """Notify watchers of all changes since the last call, of any process."""
        try:
            [(file,)] = self._read("PRAGMA data_version")
            if file == self._seen_data_version:
                return
            changes = self._read(_CHANGES, (self._seen_version,))
            [(pruned,)] = self._read("SELECT pruned FROM state")
        except StoreError:
            return  # the next poll retries; direct reads raise the error
        self._seen_data_version = file
        self._watchers.notify(
            None if pruned > self._seen_version else [key for _, keys in changes if keys for key in keys.split("\n")]
        )
        self._seen_version = max([self._seen_version, *(version for version, _ in changes)])

    # --- database access ---------------------------------------------------------------------------

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        if self._reader is None:
            raise self._not_open_error()
        try:
            return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise database.translate_error(error, self._path) from error

    def _write(self, operation: Operation) -> asyncio.Future[Any]:
        """Submit an operation at once, without a task, so that operations of one loop iteration are batched."""
        if self._writer is None or self._closed:
            return failed_future(self._not_open_error())
        return self._writer.submit(operation)

    def _schedule_sweep(self) -> None:
        self._sweep_timer = self._clock.call_at(self._clock.now() + SWEEP_INTERVAL, self._sweep)

    def _sweep(self) -> None:
        """Delete expired items in batches, so that other processes can write in between."""
        self._write(Transaction.sweep).add_done_callback(self._continue_sweep)

    def _continue_sweep(self, swept: asyncio.Future[bool]) -> None:
        more = swept.exception() is None and swept.result()
        if self._closed:
            return
        if more:
            self._sweep()
        else:
            self._schedule_sweep()
