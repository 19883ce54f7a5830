"""Database file of a SQLite store: creation, identification, migration and connections.

With `synchronous=FULL` a commit is on disk before it is reported, so it survives a killed process and a power failure.
With `NORMAL` the operating system decides when to write: a commit survives a killed process, since the system already
has the data, but the last commits before a power failure may be lost. Neither mode can corrupt the file.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trunkline.errors import NotExecuted, StoreError, StoreUnavailable, StoreUnusable

__all__ = [
    "APPLICATION_ID",
    "MIGRATIONS",
    "check_application",
    "check_tables",
    "connect",
    "create_file",
    "is_full",
    "migrate",
    "missing_indexes",
    "open_for_writing",
    "schema_version",
    "sync",
    "translate_error",
]

APPLICATION_ID: Final = 0x54726E6B  # "Trnk", at byte 68 of the file: identifies a Trunkline store

MIGRATIONS: Final[tuple[str, ...]] = (
    # Version 1. A row of `changes` has the keys of one transaction and its last version; rows up to `pruned` are
    # deleted, and `last` is the last version at that time.
    """
    CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, expires REAL);
    CREATE TABLE leases (
        name TEXT PRIMARY KEY, holder TEXT NOT NULL, token INTEGER NOT NULL, expires REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE changes (version INTEGER PRIMARY KEY, keys TEXT NOT NULL);
    CREATE TABLE state (last INTEGER NOT NULL, pruned INTEGER NOT NULL);
    INSERT INTO state VALUES (0, 0);
    """,
)
"""Migrations from each schema version to the next. A released migration must not change."""

_INDEXES: Final = {
    "items_by_expiry": "items (expires) WHERE expires IS NOT NULL",
    "leases_by_expiry": "leases (expires)",
}
"""Indexes by which the sweep finds expired rows. They are no migration: releases that do not know them can use a file
that has them, so processes of both releases can share it."""

_COLUMNS: Final = {
    "items": ["key", "value", "version", "expires"],
    "leases": ["name", "holder", "token", "expires"],
    "changes": ["version", "keys"],
    "state": ["last", "pruned"],
}
_RESTORE: Final = "restore a backup, or move the file away to start with a new one"
_LOCKED: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def create_file(path: Path) -> None:
    """Create the file with access for its owner only; SQLite gives its companion files the same mode. An existing
    file is not changed."""
    if path.is_dir():
        raise StoreUnusable(f"the store {path} is a folder; give the path of a file, such as {path}/store.db")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise _creation_error(error, path) from error
    os.close(descriptor)
    with contextlib.suppress(OSError):  # some systems cannot open a folder
        sync(path.parent)  # so that the file's name survives a power failure, too


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _creation_error(error: OSError, path: Path) -> StoreError:
    refused = f"the store {path} cannot be created: {error.strerror}"
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return StoreUnusable(f"{refused}; create the folder {path.parent} first, or choose another path")
        case PermissionError():
            return StoreUnusable(f"{refused}; let user {_user()} write to the folder {path.parent}")
        case _:  # a full disk, a read-only file system: either may change
            return StoreUnavailable(f"{refused}; free space on its disk, or choose another one")


def open_for_writing(path: Path, timeout: float, synchronous: str, max_bytes: int | None) -> sqlite3.Connection:
    """Open a store for writes, or create it. Writes that would make the file larger than `max_bytes` fail; a file that
    is larger does not grow. Raises `StoreUnusable`, and the errors of SQLite."""
    create_file(path)
    connection = connect(path, timeout=timeout, synchronous=synchronous)
    try:
        _prepare(connection, path, timeout)
        if max_bytes is not None:
            pages = max(1, max_bytes // _pragma(connection, "page_size"))
            connection.execute(f"PRAGMA max_page_count={pages}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path, *, timeout: float, synchronous: str = "FULL") -> sqlite3.Connection:
    """Open a connection with explicit transactions, which several threads may use one after another."""
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA fullfsync=1")  # required for durability on macOS, ignored elsewhere
        connection.execute("PRAGMA cache_size=-16384")  # at most 16 MiB: about 40,000 small items
        # 500 pages, 2 MiB: growing the log costs twice as much as reusing it
        connection.execute("PRAGMA wal_autocheckpoint=500")
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Check that the file is an intact store, migrate its schema and enable write-ahead logging. Raises
    `StoreUnusable`."""
    check_application(connection, path)
    _enable_wal(connection, time.monotonic() + timeout)
    try:
        migrate(connection, path, MIGRATIONS)
    except sqlite3.OperationalError as error:
        if _primary_code(error) != sqlite3.SQLITE_ERROR:  # a lock, a full disk
            raise
        raise StoreUnusable(
            f"the store {path} cannot be migrated: {error}; another program has changed it; {_RESTORE}"
        ) from error
    check_tables(connection, path)
    for name in missing_indexes(connection):
        connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {_INDEXES[name]}")  # another process may be faster
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreUnusable(f"the store {path} is damaged: {found}; {_RESTORE}")


def check_application(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreUnusable` if the file is a database of another program, or of a newer Trunkline."""
    connection.execute("BEGIN")  # a consistent snapshot: another process may be creating the file
    application, schema = _pragma(connection, "application_id"), _pragma(connection, "schema_version")
    version = schema_version(connection)
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (application or schema):
        raise StoreUnusable(
            f"the file {path} is a database of another program, not a Trunkline store; choose another path"
        )
    if application == APPLICATION_ID and version > len(MIGRATIONS):
        raise _newer_error(path, version, len(MIGRATIONS))


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the schema of a file; 0 for a new file."""
    return _pragma(connection, "user_version")


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreUnusable` if a table or a column of the current schema is missing."""
    for table, columns in _COLUMNS.items():
        found = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        missing = [column for column in columns if column not in found]
        if missing:
            lacks = f"the columns {', '.join(missing)} of the table {table}" if found else f"the table {table}"
            raise StoreUnusable(
                f"the file {path} is marked as a Trunkline store, but lacks {lacks}: another program has changed it; "
                f"{_RESTORE}"
            )


def missing_indexes(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the indexes that the file lacks."""
    found = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    return [name for name in _INDEXES if name not in found]


def _newer_error(path: Path, found: int, known: int) -> StoreUnusable:
    return StoreUnusable(
        f"the store {path} was written by a newer Trunkline: its schema is {found}, and this one knows {known}; use "
        "that version, or another file"
    )


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Migrate the schema in one transaction. Raises `StoreUnusable` if a newer Trunkline has written it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = schema_version(connection)
        if version > len(migrations):
            raise _newer_error(path, version, len(migrations))
        for statement in ";".join(migrations[version:]).split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")  # at each opening: is the file writable?
        connection.execute(f"PRAGMA user_version={len(migrations)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _enable_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Enable write-ahead logging, so that readers and writers do not block each other. The switch needs exclusive
    access, for which SQLite does not wait by itself; it happens once per file."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if _primary_code(error) not in _LOCKED or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _primary_code(error: Exception) -> int:
    """Return SQLite's primary result code; errors raised by Python itself have none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_full(error: Exception) -> bool:
    """Return whether a write failed because the disk is full, or the file has reached its limit."""
    return _primary_code(error) == sqlite3.SQLITE_FULL


def translate_error(error: Exception, path: Path) -> StoreError:
    """Return the store error for an SQLite error: what is wrong with the file, and what to do."""
    if isinstance(error, StoreError):
        return error
    match _primary_code(error):
        case sqlite3.SQLITE_CORRUPT:
            return StoreUnusable(f"the store {path} is damaged: {error}; {_RESTORE}")
        case sqlite3.SQLITE_NOTADB:
            return StoreUnusable(f"the store {path} is not a database: {error}; {_RESTORE}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return NotExecuted(f"the store {path} is locked by another process for longer than the timeout")
        case sqlite3.SQLITE_FULL:
            return NotExecuted(
                f"the store {path} is full: free space on its disk, or raise max_bytes; it can still be read"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_READONLY as code:
            return _access_error(code, error, path)
        case sqlite3.SQLITE_IOERR:
            advice = "check its disk: free space, quotas, and the system's log"
            return _io_error(error)(f"the store {path} is unavailable: {error}; {advice}")
        case _:
            return StoreUnavailable(f"the store {path} is unavailable: {error}")


def _io_error(error: Exception) -> type[StoreUnavailable]:
    """Return the class of an input/output error. A transaction is not part of the file if it could not be written; it
    may be if only its synchronization with the disk failed."""
    written = getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_IOERR_WRITE
    return StoreUnavailable if written else NotExecuted


def _access_error(code: int, error: Exception, path: Path) -> StoreError:
    """Return the error for a file that cannot be opened or written, with the reason that the system gives."""
    with contextlib.suppress(OSError, AttributeError):  # the file may be gone; not all systems have statvfs
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return NotExecuted(
                f"the store {path} cannot be written: its file system is read-only; mount it for writing"
            )
    for at, mode, what in ((path, os.R_OK, "read"), (path, os.W_OK, "write"), (path.parent, os.W_OK, "write to")):
        if not os.access(at, mode):
            refused = f"the store {path} cannot be used: let user {_user()} {what} {at}"
            return NotExecuted(refused) if code == sqlite3.SQLITE_READONLY else StoreUnusable(refused)
    return StoreUnavailable(f"the store {path} is unavailable: {error}")


def _user() -> str:
    """Return the user that this process runs as."""
    return str(os.geteuid()) if hasattr(os, "geteuid") else "of this process"
