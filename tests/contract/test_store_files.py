"""Files that cannot be used as a store: each is refused with what is wrong and what to do, and is not changed."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.limits import PATIENCE

from trunkline.errors import ConfigError, StoreError, StoreUnavailable, StoreUnusable
from trunkline.stores.sqlite import database
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import ABSENT, Lease, Put
from trunkline.testing import ManualClock

ROOT = Path(__file__).parents[2]
UNPRIVILEGED = 65534

OPEN_IT = """
import asyncio, os, sqlite3, sys
from trunkline.errors import StoreError
from trunkline.stores.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    try:
        await store.open()
        print("opened")
    except StoreError as error:
        print(type(error).__name__, error)
    await store.close()

if os.geteuid() == 0:
    os.setuid(65534)  # only now: an unprivileged user may not be able to read the interpreter
asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def create(path: Path, items: int = 50) -> None:
    """Create a store with some pages, all of them in the main file."""
    store = SqliteStore(path)
    await store.open()
    await store.commit([Put(f"session/1/{number}", bytes(2000)) for number in range(items)])
    await store.close()
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")


async def refusal(path: Path) -> StoreError:
    store = SqliteStore(path)
    with pytest.raises(StoreError) as caught:
        await store.open()
    await store.close()
    return caught.value


# --- foreign files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE theirs (x)"],
        ["PRAGMA application_id=0x47504B47"],  # an empty GeoPackage
        ["PRAGMA application_id=0x47504B47", "PRAGMA user_version=1", "CREATE TABLE items (key)"],
    ],
)
async def test_database_of_another_program_is_refused_unchanged(path: Path, statements: list[str]) -> None:
    sql(path, *statements)
    before = path.read_bytes()
    error = await refusal(path)
    assert type(error) is StoreUnusable
    assert str(error).endswith("is a database of another program, not a Trunkline store; choose another path")
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [0, len(database.MIGRATIONS)])
@pytest.mark.parametrize(
    "statement", ["DROP TABLE leases", "ALTER TABLE items DROP COLUMN version", "DROP TABLE state"]
)
async def test_store_with_missing_tables_is_refused(path: Path, version: int, statement: str) -> None:
    await create(path, 1)
    sql(path, statement, f"PRAGMA user_version={version}")
    error = await refusal(path)
    assert type(error) is StoreUnusable
    assert "another program has changed it; restore a backup, or move the file away" in str(error)


async def test_newer_schema_is_refused_before_anything_is_written(path: Path) -> None:
    await create(path, 1)
    newer = len(database.MIGRATIONS) + 1
    sql(path, f"PRAGMA user_version={newer}", "PRAGMA journal_mode=DELETE")
    before = path.read_bytes()
    error = await refusal(path)
    assert type(error) is StoreUnusable
    assert f"written by a newer Trunkline: its schema is {newer}" in str(error)
    assert "use that version, or another file" in str(error)
    assert path.read_bytes() == before


# --- damaged files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [50, 1000, 4096, 5000, -4096])
async def test_truncated_file_is_refused(path: Path, length: int) -> None:
    await create(path)
    os.truncate(path, length if length > 0 else path.stat().st_size + length)
    error = await refusal(path)
    assert type(error) is StoreUnusable
    assert "damaged" in str(error) or "not a database" in str(error)
    assert "restore a backup, or move the file away to start with a new one" in str(error)


async def test_truncated_log_loses_only_its_end(path: Path) -> None:
    keep = path.with_name("copy.db")
    store = SqliteStore(path)
    await store.open()
    await store.commit([Put("session/1/first", b"first")])
    await store.commit([Put("session/1/last", b"last")])
    shutil.copy(path, keep)
    log = Path(f"{path}-wal").read_bytes()
    await store.close()
    Path(f"{keep}-wal").write_bytes(log[:-100])
    copy = SqliteStore(keep)
    await copy.open()
    assert [item.key for item in await copy.scan("session/")] == ["session/1/first"]
    assert await copy.commit([Put("session/1/last", b"again", version=ABSENT)])
    await copy.close()


# --- places without access ---------------------------------------------------------------------------


async def test_folder_is_refused(tmp_path: Path) -> None:
    error = await refusal(tmp_path)
    assert type(error) is StoreUnusable
    assert str(error) == f"the store {tmp_path} is a folder; give the path of a file, such as {tmp_path}/store.db"


@pytest.mark.parametrize("where", ["nowhere/store.db", "file/store.db"])
async def test_missing_folder_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / where
    error = await refusal(path)
    assert type(error) is StoreUnusable
    assert f"create the folder {path.parent} first, or choose another path" in str(error)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def open_unprivileged(path: Path) -> str:
    """Open a store as a user without privileges; return what is printed."""
    return subprocess.run(
        [sys.executable, "-c", OPEN_IT, str(path)], stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True
    ).stdout


@pytest.mark.parametrize(
    ("mode", "folder_mode", "advice"),
    [
        (0o000, 0o777, "read {path}"),
        (0o444, 0o777, "write {path}"),
        (0o666, 0o555, "write to {folder}"),
    ],
)
async def test_file_without_permission_is_refused(public: Path, mode: int, folder_mode: int, advice: str) -> None:
    path = public / "store.db"
    await create(path, 1)
    path.chmod(mode)
    public.chmod(folder_mode)
    said = await asyncio.to_thread(open_unprivileged, path)
    public.chmod(0o755)
    assert said.startswith(("StoreUnusable ", "NotExecuted "))
    user = UNPRIVILEGED if os.geteuid() == 0 else os.geteuid()
    assert f"let user {user} " + advice.format(path=path, folder=public) in said


async def test_folder_without_permission_is_refused(public: Path) -> None:
    public.chmod(0o555)
    said = await asyncio.to_thread(open_unprivileged, public / "store.db")
    public.chmod(0o755)
    assert said.startswith("StoreUnusable ")
    assert f"write to the folder {public}" in said


# --- full disks --------------------------------------------------------------------------------------


def test_full_and_read_only_disks_are_reported_and_heal(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urm", "true"], check=False).returncode:
        pytest.skip("this system does not let a user mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    run = subprocess.run(
        [unshare, "-Urm", sys.executable, "-m", "tests.contract.small_disk", str(disk)],
        capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=True,
    )  # fmt: skip
    said = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    store = f"the store {disk / 'store.db'}"
    assert said["full"] == f"{store} is full: free space on its disk, or raise max_bytes; it can still be read"
    assert said["read"] == "kept"
    assert said["healed"] == "True"
    assert said["read-only"] == (
        f"NotExecuted {store} cannot be written: its file system is read-only; mount it for writing"
    )
    assert said["read-only new"].startswith(
        f"StoreUnavailable the store {disk / 'new.db'} cannot be created: Read-only file system"
    )


async def test_file_does_not_grow_beyond_max_bytes(path: Path) -> None:
    clock = ManualClock(start=1_000_000.0)
    store = SqliteStore(path, max_bytes=2**20, clock=clock)
    await store.open()
    lease = await store.acquire("process/1", "us", 1000)
    assert isinstance(lease, Lease)
    full: list[str] = []
    for number in range(400):
        put = Put(f"session/{number}/state", bytes(4000), clock.now() + 30)
        renewal = store.renew(lease, 1000)
        try:
            await store.commit([put])
        except StoreUnavailable as error:
            full.append(str(error))
        assert (await renewal).token == lease.token  # it shares the transaction of the write that does not fit
    assert 100 < len(full) < 300
    assert set(full) == {f"the store {path} is full: free space on its disk, or raise max_bytes; it can still be read"}
    assert path.stat().st_size <= 2**20
    clock.advance(60)  # the sweep makes room
    for number in range(100):
        await store.commit([Put(f"session/{number}/state", bytes(4000))])
    await store.close()
    assert path.stat().st_size <= 2**20


def test_max_bytes_has_a_lower_bound(path: Path) -> None:
    with pytest.raises(ConfigError, match="max_bytes is at least 1048576, or None, not 5"):
        SqliteStore(path, max_bytes=5)


# --- files of older releases -------------------------------------------------------------------------


async def test_file_without_indexes_gets_them(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    database.migrate(connection, path, database.MIGRATIONS)
    connection.execute("INSERT INTO items VALUES ('session/1/state', x'00', 7, NULL)")
    connection.execute("UPDATE state SET last = 7")
    connection.close()
    store = SqliteStore(path)
    await store.open()
    assert await store.commit([Put("session/1/state", b"1", version=7)]) == 8
    await store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    assert database.missing_indexes(connection) == []
    assert database.schema_version(connection) == 1  # older releases can still use the file
    connection.close()
