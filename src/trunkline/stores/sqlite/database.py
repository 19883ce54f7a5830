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

from trunkline.errors import StoreError, StoreUnavailable, StoreUnusable

__all__ = ["APPLICATION_ID", "MIGRATIONS", "connect", "create_file", "migrate", "prepare", "translate_error"]

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

_DAMAGED_CODES: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_LOCKED: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def create_file(path: Path) -> None:
    """Create the file with access for its owner only; SQLite gives its companion files the same mode. An existing
    file is not changed."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(f"the store {path} cannot be created: {error.strerror}") from error
    os.close(descriptor)
    with contextlib.suppress(OSError):  # some systems cannot open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the file's name survives a power failure, too
        finally:
            os.close(folder)


def connect(path: Path, *, timeout: float, synchronous: str = "FULL") -> sqlite3.Connection:
    """Open a connection with explicit transactions, which several threads may use one after another."""
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA fullfsync=1")  # required for durability on macOS, ignored elsewhere
        connection.execute("PRAGMA cache_size=-16384")  # at most 16 MiB: about 40,000 small items
        connection.execute(
            "PRAGMA wal_autocheckpoint=500"
        )  # pages, 2 MiB: growing the log costs twice as much as reusing it
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Check that the file is an intact store, migrate its schema and enable write-ahead logging. Raises
    `StoreUnusable`."""
    _check_application(connection, path)
    _enable_wal(connection, time.monotonic() + timeout)
    migrate(connection, path, MIGRATIONS)
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreUnusable(f"the store {path} is damaged: {found}; restore a backup, or start with a new file")


def _check_application(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # a consistent snapshot: another process may be creating the file
    application, schema = _pragma(connection, "application_id"), _pragma(connection, "schema_version")
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (application or schema):
        raise StoreUnusable(f"the file {path} is a database of another program, not a Trunkline store")


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Migrate the schema in one transaction. Raises `StoreUnusable` if a newer Trunkline has written it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _pragma(connection, "user_version")
        if version > len(migrations):
            raise StoreUnusable(
                f"the store {path} was written by a newer Trunkline: its schema is {version}, and this one knows "
                f"{len(migrations)}; use that version, or another file"
            )
        for statement in ";".join(migrations[version:]).split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
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


def translate_error(error: Exception, path: Path) -> StoreError:
    """Return the store error for an SQLite error."""
    if isinstance(error, StoreError):
        return error
    code = _primary_code(error)
    if code in _DAMAGED_CODES:
        what = "is damaged" if code == sqlite3.SQLITE_CORRUPT else "is not a database"
        return StoreUnusable(f"the store {path} {what}: {error}; restore a backup, or start with a new file")
    if code in _LOCKED:
        return StoreUnavailable(f"the store {path} is locked by another process for longer than the timeout")
    return StoreUnavailable(f"the store {path} is unavailable: {error}")
