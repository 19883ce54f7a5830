"""The SQLite store beyond the contract: other processes, kills, and the file itself."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.commit_load import CommitProcess, check_commits
from tests.contract.connections import until
from tests.contract.stores import SharedStore, lease
from tests.limits import PATIENCE

from trunkline.errors import ConfigError, NotExecuted, StoreUnavailable, StoreUnusable
from trunkline.stores.sqlite import database, writer
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.sqlite.writer import CHANGE_HISTORY, SWEEP_BATCH
from trunkline.stores.store import ABSENT, Held, Item, Put

ROOT = Path(__file__).parents[2]
KEY = "session/1/state"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[SharedStore]:
    place = SharedStore("sqlite", tmp_path)
    yield place
    await place.leave()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def opened(path: Path, **settings: float) -> SqliteStore:
    store = SqliteStore(path, **settings)  # type: ignore[arg-type]
    await store.open()
    return store


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """The rows in the file, read by another connection."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def change(path: Path, *statements: str) -> None:
    """Change the file through another connection."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# --- other processes, and kills --------------------------------------------------------------------------


async def check_file(path: Path, *storms: CommitProcess) -> None:
    store = await opened(path)
    await check_commits(store, *storms)
    await store.close()


def rows_of(path: Path) -> list[Item]:
    return [Item(*row) for row in rows(path, "SELECT key, value, version, expires FROM items")]  # type: ignore[arg-type]


@pytest.mark.row("D02")
async def test_reported_commits_survive_kill_9(path: Path) -> None:
    storms = []
    for number in range(3):  # each finds the state that the last one left
        storm = await CommitProcess.begin(path, f"life {number}")
        await storm.hear(lambda storm=storm: len(storm.said) >= 400)
        await storm.kill()
        assert len(storm.kept) > 100
        storms.append(storm)
        await check_file(path, *storms)


async def test_two_processes_share_a_file(path: Path) -> None:
    one, two = await asyncio.gather(CommitProcess.begin(path, "one"), CommitProcess.begin(path, "two"))
    await asyncio.gather(*(storm.hear(lambda storm=storm: len(storm.said) >= 300) for storm in (one, two)))
    await one.kill()
    heard = len(two.said)
    await two.hear(lambda: len(two.said) >= heard + 300)
    await two.kill()
    assert one.counted > 0
    assert two.counted > 0
    await check_file(path, one, two)


@pytest.mark.row("D02")
async def test_full_disk_is_reported_and_data_stays(path: Path) -> None:
    storm = await CommitProcess.begin(path, "one", 2_000_000)
    await storm.hear()
    assert await storm.process.wait() == 0
    assert [line for line in storm.said if line.startswith("!")]
    await check_file(path, storm)


@pytest.mark.row("D02")
async def test_reopened_store_has_its_data(path: Path) -> None:
    store = await opened(path)
    version = await store.commit([Put(KEY, b"kept")])
    held = lease(await store.acquire("session/1", "us", 600))
    await store.close()
    again = await opened(path)
    assert await again.get(KEY) == Item(KEY, b"kept", version)
    assert await again.acquire("session/1", "them", 10) == Held("us", held.expires, held.token)
    assert await again.commit([Put(KEY, b"more")], fence=held) > max(version, held.token)
    await again.close()


async def test_commits_of_one_iteration_are_one_transaction(path: Path) -> None:
    store = await opened(path)
    await asyncio.gather(*(store.commit([Put(f"session/{n}/state", b"x")]) for n in range(200)))
    assert len(rows(path, "SELECT version FROM changes")) == 1
    await store.close()


async def test_calls_in_the_iteration_of_close_are_executed(path: Path) -> None:
    store, writes = await opened(path), [Put(KEY, b"x")]
    commit = store.commit(writes)
    writes.clear()  # the caller may reuse it
    await store.close()
    assert await asyncio.wait_for(commit, PATIENCE)
    assert [item.key for item in rows_of(path)] == [KEY]


async def test_cancelled_close_continues(path: Path) -> None:
    store = await opened(path)
    given_up = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    given_up.cancel()
    await store.close()


async def test_locked_file_times_out(path: Path) -> None:
    store = await opened(path, patience=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    done = await asyncio.gather(
        *(store.commit([Put(f"session/{n}/state", b"x")]) for n in range(3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in done] == [NotExecuted] * 3
    assert "locked by another process" in str(done[0])
    assert await store.get(KEY) is None  # reads do not block
    other.execute("ROLLBACK")
    other.close()
    assert await store.commit([Put(KEY, b"x")])
    await store.close()


async def test_locked_new_file_times_out(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        await opened(path, patience=0.05)
    asyncio.get_running_loop().call_later(0.05, other.execute, "ROLLBACK")
    store = await opened(path)
    assert await store.commit([Put(KEY, b"x")])
    await store.close()
    other.close()


async def test_failed_transaction_is_rolled_back(path: Path) -> None:
    store = await opened(path)
    change(path, "ALTER TABLE changes RENAME TO elsewhere")  # so it fails at its end, when all is written
    done = await asyncio.gather(
        *(store.commit([Put(f"session/{n}/state", b"x")]) for n in range(3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in done] == [StoreUnavailable] * 3
    change(path, "ALTER TABLE elsewhere RENAME TO changes")
    assert await store.commit([Put(KEY, b"x", version=ABSENT)])
    assert [item.key for item in await store.scan("")] == [KEY]
    await store.close()


async def test_concurrent_creation_of_a_file_succeeds(path: Path) -> None:
    stores = await asyncio.gather(*(opened(path) for _ in range(8)))
    for number, store in enumerate(stores):
        await store.commit([Put(f"session/{number}/state", b"x")])
    assert len(await stores[0].scan("session/")) == 8
    for store in stores:
        await store.close()


# --- watches and sweeps ----------------------------------------------------------------------------------


async def test_slow_watcher_learns_that_any_key_may_have_changed(place: SharedStore, path: Path) -> None:
    store = await place.enter()
    told: list[frozenset[str] | None] = []
    store.watch("session/1/", told.append)
    await store.commit([Put("session/2/state", b"x")])
    change(path, "UPDATE state SET last = 50, pruned = 40", "INSERT INTO changes VALUES (50, 'session/2/state')")
    place.clock.advance(1)
    await until(lambda: told)
    change(path, "UPDATE state SET last = 51", "INSERT INTO changes VALUES (51, 'session/1/state')")
    place.clock.advance(1)
    await until(lambda: told[1:])
    assert told == [None, {"session/1/state"}]


async def test_sweep_prunes_oldest_changes(place: SharedStore, path: Path) -> None:
    store = await place.enter()
    old = await store.commit([Put(KEY, b"x")])
    change(path, f"UPDATE state SET last = last + {CHANGE_HISTORY}")
    new = await store.commit([Put(KEY, b"x")])
    place.clock.advance(60)
    await until(lambda: rows(path, "SELECT version FROM changes") == [(new,)])
    assert rows(path, "SELECT last, pruned FROM state") == [(new, new - CHANGE_HISTORY)]
    assert new - CHANGE_HISTORY >= old


async def test_changes_are_pruned_between_sweeps(place: SharedStore, path: Path) -> None:
    store = await place.enter()
    await store.commit([Put(KEY, b"x")])
    change(path, f"UPDATE state SET last = {2 * CHANGE_HISTORY - 1}")
    new = await store.commit([Put(KEY, b"x")])
    assert new == 2 * CHANGE_HISTORY
    assert rows(path, "SELECT version FROM changes") == [(new,)]
    assert rows(path, "SELECT last, pruned FROM state") == [(new, CHANGE_HISTORY)]


async def test_watch_continues_after_failed_poll(place: SharedStore, path: Path) -> None:
    store = await place.enter()
    told: list[frozenset[str] | None] = []
    store.watch("", told.append)
    change(path, "ALTER TABLE changes RENAME TO elsewhere")
    place.clock.advance(1)
    change(path, "ALTER TABLE elsewhere RENAME TO changes")
    await store.commit([Put(KEY, b"x")])
    await until(lambda: told)
    assert told == [{KEY}]


async def test_sweep_deletes_expired_items_in_batches(place: SharedStore, path: Path) -> None:
    store, soon = await place.enter(), place.clock.now() + 30
    per_commit = 1000
    for batch in range(3 * SWEEP_BATCH // per_commit):
        keys = [f"session/1/{batch:03}-{number:04}" for number in range(per_commit)]
        await store.commit([Put(key, b"", expires=None if key.endswith("7") else soon) for key in keys])
    lease(await store.acquire("session/1", "us", 30))
    lease(await store.acquire("session/2", "us", 3000))
    place.clock.advance(60)
    await until(lambda: len(rows_of(path)) == 3 * SWEEP_BATCH // 10)
    await until(lambda: rows(path, "SELECT name FROM leases") == [("session/2",)])
    place.clock.advance(60)
    assert await store.get("session/1/000-0007")


@pytest.mark.parametrize("table", ["items", "leases"])
async def test_sweep_finds_expired_rows_by_an_index(place: SharedStore, path: Path, table: str) -> None:
    await place.enter()
    sql = writer.SWEEP_ITEMS if table == "items" else writer.SWEEP_LEASES
    plan = [str(row[3]) for row in rows(path, "EXPLAIN QUERY PLAN " + sql.replace("?", "1"))]
    assert any(f"{table}_by_expiry (expires<?)" in step for step in plan)
    assert not [step for step in plan if "SCAN items" in step or "SCAN leases" in step]


# --- the file --------------------------------------------------------------------------------------------


async def test_file_is_private(path: Path) -> None:
    mask = os.umask(0)
    try:
        store = await opened(path)
        await store.commit([Put(KEY, b"secret")])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(mask)
    await store.close()
    assert modes == dict.fromkeys(["store.db", "store.db-wal", "store.db-shm"], 0o600)


async def refused(path: Path) -> str:
    with pytest.raises(StoreUnusable) as caught:
        await opened(path)
    return str(caught.value)


async def test_newer_schema_is_refused_and_file_unchanged(path: Path) -> None:
    await (await opened(path)).close()
    newer = sqlite3.connect(path, isolation_level=None)
    newer.execute(f"PRAGMA user_version={len(database.MIGRATIONS) + 1}")
    newer.execute("CREATE TABLE more (x)")
    newer.close()
    before = path.read_bytes()
    said = await refused(path)
    assert said.startswith(
        f"the store {path} was written by a newer Trunkline: its schema is {len(database.MIGRATIONS) + 1}"
    )
    assert path.read_bytes() == before


async def test_foreign_database_is_refused_and_unchanged(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    assert "a database of another program" in await refused(path)
    assert path.read_bytes() == before


async def test_non_database_is_refused_and_unchanged(path: Path) -> None:
    path.write_bytes(b"just some text, and more of it\n" * 100)
    assert "is not a database" in await refused(path)
    assert path.read_bytes() == b"just some text, and more of it\n" * 100


async def damaged(path: Path) -> None:
    store = await opened(path)
    await store.commit([Put(f"session/1/{number}", bytes(2000)) for number in range(200)])
    await store.close()
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xa5" * 4096 * 20)


async def test_damaged_file_is_detected_at_open(path: Path) -> None:
    await damaged(path)
    assert f"the store {path} is damaged" in await refused(path)


async def test_later_damage_is_detected_on_access(path: Path) -> None:
    store = await opened(path)
    await damaged(path)
    with pytest.raises(StoreUnusable, match="is damaged"):
        await asyncio.gather(*(store.get(f"session/1/{number}") for number in range(200)))
    await store.close()


def test_migrations_run_once_in_order(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    one, two = "CREATE TABLE first (x); INSERT INTO first VALUES (1)", "ALTER TABLE first ADD COLUMN y DEFAULT 2"
    database.migrate(connection, path, [one])
    database.migrate(connection, path, [one, two])
    database.migrate(connection, path, [one, two])
    assert connection.execute("SELECT x, y FROM first").fetchall() == [(1, 2)]
    with pytest.raises(sqlite3.OperationalError):
        database.migrate(connection, path, [one, two, "CREATE TABLE second (x)", "NONSENSE"])
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("first",)]
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


@pytest.mark.parametrize("setting", [{"patience": -1}, {"watch_every": 0}, {"synchronous": "OFF"}])
def test_invalid_settings_are_refused(path: Path, setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SqliteStore(path, **setting)  # type: ignore[arg-type]
    assert not path.exists()


async def test_synchronous_normal_is_supported(path: Path) -> None:
    store = SqliteStore(str(path), synchronous="NORMAL")
    await store.open()
    assert await store.commit([Put(KEY, b"x")])
    await store.close()
