"""Reader and backup of a SQLite store. Both read one snapshot, and do not block the processes that write."""

import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Final

from trunkline.errors import ConfigError, StoreUnusable
from trunkline.stores.sqlite import database
from trunkline.stores.store import Item, Lease

__all__ = ["SqliteReader", "back_up"]

_MAX_PROBLEMS: Final = 20
_TIMEOUT: Final = 5.0  # seconds to wait for a lock


class SqliteReader:
    """Reads a SQLite store of any known schema, in one transaction. Implements `StoreReader`."""

    def __init__(self, path: Path) -> None:
        self.schema = 0
        self.pending: list[str] = []
        self.stop_first = False
        self.now = 0.0
        self._path = path
        self._open: sqlite3.Connection | None = None

    def __str__(self) -> str:
        return str(self._path)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            raise ConfigError(f"the store {self._path} is not open yet")
        return self._open

    async def open(self) -> None:
        """Open the file without changing it, and begin the transaction."""
        self._open = _open_read_only(self._path)
        self.now = time.time()
        with _translated(self._path):
            database.check_application(self._open, self._path)
            self._open.execute("BEGIN")
            self.schema = database.schema_version(self._open)
            if self.schema:
                database.check_tables(self._open, self._path)
                self._find_pending(self._open)

    def _find_pending(self, connection: sqlite3.Connection) -> None:
        current = len(database.MIGRATIONS)
        self.stop_first = self.schema < current
        if self.stop_first:
            self.pending.append(f"from version {self.schema} to {current}")
        if missing := database.missing_indexes(connection):
            self.pending.append(f"with the indexes {', '.join(missing)}")

    async def verify(self) -> list[str]:
        """Return the findings of SQLite's integrity check."""
        with _translated(self._path):
            found = [row[0] for row in self._connection.execute(f"PRAGMA integrity_check({_MAX_PROBLEMS})")]
        return [] if found == ["ok"] else found

    async def items(self) -> AsyncIterator[Item]:
        """Return all items, ordered by key."""
        if self.schema:
            with _translated(self._path):
                for row in self._connection.execute("SELECT key, value, version, expires FROM items ORDER BY key"):
                    yield Item(*row)

    async def leases(self) -> AsyncIterator[Lease]:
        """Return all leases."""
        if self.schema:
            with _translated(self._path):
                for row in self._connection.execute("SELECT name, holder, token, expires FROM leases ORDER BY name"):
                    yield Lease(*row)

    async def size(self) -> int:
        """Return the size of the file and its log."""
        return sum(file.stat().st_size for file in (self._path, Path(f"{self._path}-wal")) if file.exists())

    async def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()


def back_up(path: Path, target: Path) -> int:
    """Copy a store to a new file, as of one moment; return its size. The copy appears under its name only once it is
    complete and checked. Raises `ConfigError` if that file exists, and `StoreError`."""
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name, or move that file away")
    part = target.with_name(f"{target.name}.part")
    source = _open_read_only(path)
    try:
        with _translated(path):
            database.check_application(source, path)
        part.unlink(missing_ok=True)
        database.create_file(part)
        with _translated(part):
            _copy(source, part)
        os.replace(part, target)
        database.sync(target.parent)
    finally:
        source.close()
        part.unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: sqlite3.Connection, part: Path) -> None:
    copy = sqlite3.connect(part)
    try:
        source.backup(copy)  # in one step: a copy in several steps begins again whenever another process writes
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log
        found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreUnusable(f"the copy is damaged: {found}; run `trunkline store check` on the store")
    finally:
        copy.close()
    database.sync(part)


def _open_read_only(path: Path) -> sqlite3.Connection:
    if path.is_dir():
        raise StoreUnusable(f"the store {path} is a folder; give the path of a file")
    if not path.exists():
        raise StoreUnusable(f"there is no store {path}: no such file; check the path")
    with _translated(path):
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT, isolation_level=None)


@contextlib.contextmanager
def _translated(path: Path) -> Generator[None]:
    """Raise the errors of SQLite as store errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise database.translate_error(error, path) from error
