"""The file of a SQLite store: how it is made, recognised, brought up to date and opened.

`synchronous=FULL`: a commit is on the disk before anybody hears of it, so it outlives a process that is killed and a
machine that loses power. `NORMAL` leaves it to the operating system when it writes: that outlives a process that is
killed just as well, since what was written belongs to the system by then, but the last commits before a loss of power
may be missing. In neither case can the file be left half-written.
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

APPLICATION_ID: Final = 0x54726E6B  # "Trnk", at byte 68 of the file: tells our files from other people's

MIGRATIONS: Final[tuple[str, ...]] = (
    # from nothing to 1; of `changes`, each row has the keys of one transaction and the last version that it gave, and
    # those up to `pruned` are gone; `last` is what it was by then
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
"""What leads from one version of the schema to the next. A step that was ever released does not change any more."""

_DAMAGED_CODES: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_LOCKED: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def create_file(path: Path) -> None:
    """Makes the file, for nobody but its owner; what SQLite puts beside it takes after it. One that is there is left
    as it is."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(f"the store {path} cannot be made: {error.strerror}") from error
    os.close(descriptor)
    with contextlib.suppress(OSError):  # not every system lets one open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the file's name outlives a loss of power, too
        finally:
            os.close(folder)


def connect(path: Path, *, timeout: float, synchronous: str = "FULL") -> sqlite3.Connection:
    """A connection that begins and ends its transactions itself, and may be used by one thread after another."""
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA fullfsync=1")  # on macOS nothing less reaches the disk; elsewhere it says nothing
        connection.execute("PRAGMA cache_size=-16384")  # KiB, if there is so much: some 40,000 small items
        connection.execute("PRAGMA wal_autocheckpoint=500")  # pages, 2 MiB: a log that grows costs twice what one does
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Sees to it that the file is a store's, whole, in the present schema, and written ahead. Raises `StoreUnusable` if
    it is not and cannot be made so."""
    _check_application(connection, path)
    _enable_wal(connection, time.monotonic() + timeout)
    migrate(connection, path, MIGRATIONS)
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreUnusable(f"the store {path} is damaged: {found}; put a copy in its place, or begin with a new file")


def _check_application(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # both are of one moment: somebody else may be making the file
    application, schema = _pragma(connection, "application_id"), _pragma(connection, "schema_version")
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (application or schema):
        raise StoreUnusable(f"the file {path} belongs to another program: it is a database, and no store")


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Brings the schema up to date, in one transaction. Raises `StoreUnusable` for one that is newer than we are."""
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
    """Write-ahead logging, so that reading and writing do not wait for each other. The change to it needs the file for
    itself, and SQLite does not wait for that on its own; it is made once in the life of a file."""
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
    """SQLite's code, without what it adds to be more precise; Python's own complaints have none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translate_error(error: Exception, path: Path) -> StoreError:
    """What went wrong with a file, in our words."""
    if isinstance(error, StoreError):
        return error
    code = _primary_code(error)
    if code in _DAMAGED_CODES:
        what = "is damaged" if code == sqlite3.SQLITE_CORRUPT else "is no database"
        return StoreUnusable(f"the store {path} {what}: {error}; put a copy in its place, or begin with a new file")
    if code in _LOCKED:
        return StoreUnavailable(f"the store {path} is locked by another process, for longer than we wait")
    return StoreUnavailable(f"the store {path} does not answer: {error}")
