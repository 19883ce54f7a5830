"""`trunkline store` on real stores, while a server uses them and after it is gone."""

import asyncio
import itertools
import json
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.valkey import valkey
from tests.faults.processes import RunningServer, served
from tests.limits import PATIENCE
from tests.unit.cli.commands import trunkline

from trunkline.cli.main import main
from trunkline.cli.store_kinds import KINDS
from trunkline.errors import StoreUnavailable
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.stores.redis.reader import RedisReader
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.shared_values import IDENTITY
from trunkline.stores.sqlite import database
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Put, Store

ROOT = Path(__file__).parents[3]
MANUAL = ROOT / "docs/how-to/stores.md"
DESIGN = ROOT / "docs/design/stores.md"
EARLIER = ROOT / "tests/spec/stored_records/separate_leases.json"
FOUNDING_RECORD = {
    "id": "s-1",
    "created_at": 1_700_000_000_000,
    "last_accessed": 1_700_000_000_000,
    "timeout_ms": "infinity",
    "metadata": {"protocol_version": "2025-06-18"},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


class Place:
    """A store that has a server: its location on the command line, and the handles to it."""

    def __init__(self, location: str) -> None:
        self.location = location

    def store(self) -> Store:
        return RedisStore(self.location) if self.location.startswith("redis:") else SqliteStore(self.location)

    @contextmanager
    def served(self, folder: Path) -> Iterator[RunningServer]:
        os.environ["SHOP_STORE"] = self.location
        try:
            with served(folder / "effects") as server:
                yield server
        finally:
            del os.environ["SHOP_STORE"]


@pytest.fixture(params=["sqlite", "redis"])
async def place(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Place]:
    if request.param == "sqlite":
        yield Place(str(path))
        return
    client = valkey().client(db=9)
    client.flushdb()
    yield Place(f"{valkey().url}/9")
    client.flushdb()
    client.close()


async def use(server: RunningServer) -> str:
    """Open a session and make a call with an idempotency key; return the id of the session."""
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    call = {"name": "look", "arguments": {"what": "x"}, "_meta": {IDEMPOTENCY_KEY: "once"}}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as http:

        async def post(**message: Any) -> str:
            async with http.post(server.url, json={"jsonrpc": "2.0", **message}, headers=headers) as answer:
                assert answer.ok
                await answer.read()
                return answer.headers.get("mcp-session-id", "")

        session = headers["mcp-session-id"] = await post(id=1, method="initialize", params=hello)
        await post(method="notifications/initialized")
        await post(id=2, method="tools/call", params=call)
    return session


async def put(store: Store, *writes: Put) -> None:
    await store.open()
    for write in writes:
        await store.commit([write])
    await store.close()


async def secret_of(store: Store) -> str:
    await store.open()
    item = await store.get(IDENTITY)
    await store.close()
    assert item is not None
    return json.loads(item.value)["secret"]


# --- stores in use -----------------------------------------------------------------------------------


@pytest.mark.row("D04")
async def test_store_in_use_is_checked_measured_and_exported(place: Place, tmp_path: Path) -> None:
    with place.served(tmp_path) as server:
        session = await use(server)
        check = await trunkline("store", "check", place.location)
        stats = await trunkline("store", "stats", "--json", place.location)
        export = await trunkline("store", "export", "env:STORE", environ={"STORE": place.location})
        everything = await trunkline("store", "export", "--include-secrets", place.location)
    secret = await secret_of(place.store())
    assert check.status == 0, check.out
    assert [line.split()[0] for line in check.out.splitlines()] == ["ok"] * 4
    assert "leases: 1 live processes" in check.out
    measured = json.loads(stats.out)
    assert {"store identity", "session", "idempotency entry"} <= set(measured["kinds"])
    assert measured["kinds"]["session"]["items"] == 1
    assert measured["kinds"]["session"]["oldest"] == measured["kinds"]["session"]["newest"]
    assert measured["owners"] == 1
    assert len(measured["processes"]) == 1
    assert measured["items"] == sum(kind["items"] for kind in measured["kinds"].values())
    lines = [json.loads(line) for line in export.out.splitlines()]
    assert lines[0]["schema"] > 0
    assert [line["value"]["metadata"]["revision"] for line in lines if line.get("kind") == "session"] == ["2025-11-25"]
    assert [line for line in lines if line.get("lease", "").startswith("session/~")]
    assert [line["secret"] for line in lines if line.get("kind") == "store identity"] == [True]
    for shown in (check, stats, export):
        assert secret not in shown.out
        assert session not in shown.out
        assert shown.err == ""
    assert secret in everything.out
    assert session in everything.out


async def test_leases_of_a_killed_process_are_found(path: Path, tmp_path: Path) -> None:
    place = Place(str(path))
    with place.served(tmp_path) as server:
        await use(server)
        server.kill()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE leases SET expires = 0 WHERE name LIKE 'process/%'")  # as if its time had passed
    connection.commit()
    connection.close()
    done = await trunkline("store", "check", "--json", place.location)
    assert done.status == 1
    said = json.loads(done.out)
    assert said["ok"] is False
    assert [(found["check"], found["verdict"]) for found in said["findings"]] == [
        ("structure", "ok"), ("schema", "ok"), ("records", "ok"), ("leases", "warning"),
    ]  # fmt: skip
    assert said["findings"][3]["seen"] == "1 sessions are held by processes that are dead; 0 live processes, 1 leases"


async def test_backup_of_a_store_in_use_is_complete(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    store = SqliteStore(path)
    await store.open()
    wrote, stop = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            await store.commit([Put(f"session/1/a{number}", bytes(900)), Put(f"session/1/b{number}", bytes(900))])
            wrote.set()

    writing = asyncio.create_task(write())
    await asyncio.wait_for(wrote.wait(), PATIENCE)
    done = await trunkline("store", "backup", str(path), str(copy))
    stop.set()
    await writing
    assert (done.status, done.err) == (0, "")
    assert done.out == f"{copy}: {copy.stat().st_size:,} bytes\n"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir() if file.name.startswith("copy")) == ["copy.db"]
    restored = SqliteStore(copy)
    await restored.open()
    await restored.close()
    connection = sqlite3.connect(copy)
    [(first,), (second,)] = connection.execute("SELECT count(*) FROM items GROUP BY key LIKE '%/a%'").fetchall()
    connection.close()
    assert first == second  # no commit is there in part
    await store.close()
    again = await trunkline("store", "backup", str(path), str(copy))
    assert again.status == 2
    assert again.err == f"trunkline: {copy} exists already; choose another name, or move that file away\n"


async def test_redis_is_not_backed_up(path: Path) -> None:
    done = await trunkline("store", "backup", "redis://127.0.0.1:1", str(path))
    assert done.status == 2
    assert "run BGSAVE" in done.err


async def test_reading_does_not_change_the_file(path: Path) -> None:
    await put(SqliteStore(path), Put("session/1/position", b"1"))
    before = path.read_bytes()
    for command in ("check", "stats", "export"):
        assert (await trunkline("store", command, str(path))).status == 0
    assert path.read_bytes() == before


async def test_log_of_a_killed_process_is_read(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    store = SqliteStore(path)
    await store.open()
    await store.commit([Put("session/1/position", b"1")])
    for suffix in ("", "-wal"):  # as a power failure leaves them
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    await store.close()
    done = await trunkline("store", "stats", "--json", str(copy))
    assert json.loads(done.out)["items"] == 1


async def test_records_of_an_earlier_release_are_known(path: Path) -> None:
    found = json.loads(EARLIER.read_text("utf-8"))
    await put(SqliteStore(path), *(Put(item["key"], item["value"].encode("latin-1")) for item in found["items"]))
    check = await trunkline("store", "check", str(path))
    export = await trunkline("store", "export", str(path))
    assert (check.status, check.err) == (0, "")
    assert f"ok       records: {len(found['items'])} items" in check.out
    assert {"session", "task", "task mark", "idempotency entry"} <= {
        json.loads(line).get("kind") for line in export.out.splitlines()
    }
    assert found["ids"]["session"] not in export.out


# --- damaged stores ----------------------------------------------------------------------------------


async def test_undecodable_records_are_found(place: Place) -> None:
    await put(
        place.store(),
        Put("session/its-id/record", b'{"version": 2}'),
        Put("owner/me/tasks/1", b"{"),
        Put("store/identity", b"my secret"),
    )
    done = await trunkline("store", "check", place.location)
    assert done.status == 1
    assert "failed   records: 3 of 3 items cannot be decoded: " in done.out
    assert "owner/me/tasks/1" in done.out
    assert "its-id" not in done.out
    assert "my secret" not in done.out


async def test_unknown_kinds_are_found(place: Place) -> None:
    await put(place.store(), Put("theirs/1", b"secret"))
    done = await trunkline("store", "check", place.location)
    export = await trunkline("store", "export", place.location)
    assert done.status == 1
    assert "warning  records: 1 of 1 items are of no known kind" in done.out
    assert "theirs/1" in export.out
    assert "secret" not in json.loads(export.out.splitlines()[1]).values()


async def test_damaged_file_is_found(path: Path) -> None:
    await put(SqliteStore(path), *(Put(f"session/1/events/0/{number}", bytes(2000)) for number in range(100)))
    with path.open("r+b") as file:
        file.seek(4096 * 5)
        file.write(b"\xa5" * 4096 * 20)
    done = await trunkline("store", "check", str(path))
    assert done.status == 1
    assert done.out.startswith("failed   ")


async def test_torn_home_on_redis_is_found() -> None:
    client = valkey().client(db=9)
    client.flushdb()
    place = Place(f"{valkey().url}/9")
    await put(place.store(), Put("session/1/position", b"1"))
    client.hdel("trunkline:{session/1}:v", "/position")
    done = await trunkline("store", "check", place.location)
    client.flushdb()
    client.close()
    assert done.status == 1
    assert "failed   structure: the values of one home of kind 'session' do not match its keys" in done.out


@pytest.mark.parametrize("command", ["check", "migrate", "stats", "export"])
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"text" * 1000), "is not a database"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE x (y)").connection.close(), "of another program"),
    ],
)
def test_unusable_file_is_reported(
    path: Path, command: str, make: Any, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(path)
    assert main(["store", command, str(path)]) == 1
    assert named in "".join(capsys.readouterr())


async def test_newer_schema_on_redis_is_reported() -> None:
    client = valkey().client(db=9)
    client.flushdb()
    client.set("trunkline:{homes}:schema", 99)
    done = await trunkline("store", "stats", f"{valkey().url}/9")
    client.flushdb()
    client.close()
    assert done.status == 1
    assert "was written by a newer Trunkline: its schema is 99" in done.err


async def test_unreachable_redis_is_reported_without_its_password() -> None:
    done = await trunkline("store", "stats", "redis://:hunter2@127.0.0.1:1")
    assert done.status == 1
    assert "127.0.0.1:1" in done.err
    assert "hunter2" not in done.err + done.out


async def test_first_refused_connection_ends_the_wait_for_redis() -> None:
    reader = RedisReader("redis://127.0.0.1:1", timeout=1000.0)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StoreUnavailable, match="does not respond"):
            await reader.open()
        await reader.close()


# --- migration ---------------------------------------------------------------------------------------


def make_older_file(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    database.migrate(connection, path, database.MIGRATIONS)  # without indexes
    connection.execute(
        "INSERT INTO items VALUES ('session/s-1/record', ?, 7, NULL)", (json.dumps(FOUNDING_RECORD).encode(),)
    )
    connection.execute("UPDATE state SET last = 7")
    connection.close()


@pytest.mark.row("D05")
async def test_older_file_is_migrated(path: Path) -> None:
    make_older_file(path)
    before = path.read_bytes()
    check = await trunkline("store", "check", str(path))
    assert check.status == 1
    added = "with the indexes items_by_expiry, leases_by_expiry"
    assert f"warning  schema: version 1 of an older release, to be migrated {added}\n" in check.out
    assert "warning  records: 1 session records have the layout of an older release" in check.out
    dry = await trunkline("store", "migrate", "--dry-run", str(path))
    assert dry == (0, f"schema: would be migrated {added}\nsession records: 1 would be migrated\n", "")
    assert path.read_bytes() == before
    done = await trunkline("store", "migrate", str(path))
    assert done == (0, f"schema: migrated {added}\nsession records: 1 migrated\n", "")
    assert (await trunkline("store", "check", str(path))).status == 0
    assert (await trunkline("store", "migrate", str(path))).out == "nothing to migrate\n"
    again = await trunkline("store", "migrate", "--json", str(path))
    assert json.loads(again.out) == {"store": str(path), "dryRun": False, "schema": [], "records": 0, "skipped": 0}


async def test_older_records_on_redis_are_migrated() -> None:
    client = valkey().client(db=9)
    client.flushdb()
    place = Place(f"{valkey().url}/9")
    await put(place.store(), Put("session/s-1/record", json.dumps(FOUNDING_RECORD).encode()))
    done = await trunkline("store", "migrate", place.location)
    check = await trunkline("store", "check", place.location)
    client.flushdb()
    client.close()
    assert done[:2] == (0, "session records: 1 migrated\n")
    assert check.status == 0


@pytest.mark.parametrize(("expires", "status"), [(1e12, 1), (1.0, 0)])
def test_schema_of_a_file_in_use_is_not_migrated(
    path: Path, expires: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_older_file(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO leases VALUES ('process/p', 'p', 8, ?)", (expires,))
    connection.close()
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, "CREATE TABLE more (x)"))  # a later release
    assert main(["store", "migrate", "--dry-run", str(path)]) == 0
    assert capsys.readouterr().out.startswith("schema: would be migrated from version 1 to 2\n")
    assert main(["store", "migrate", str(path)]) == status
    if status:
        refused = f"trunkline: 1 processes use the store {path}; stop them before its schema changes\n"
        assert capsys.readouterr().err == refused


# --- usage -------------------------------------------------------------------------------------------


async def test_exported_text_cannot_control_the_terminal(path: Path) -> None:
    await put(SqliteStore(path), Put("session/1/position", '"\x9b2J"'.encode()))
    export = await trunkline("store", "export", str(path))
    assert "\x9b" not in export.out
    assert json.loads(export.out.splitlines()[1])["value"] == "\x9b2J"


async def test_export_to_a_file_is_private(path: Path, tmp_path: Path) -> None:
    await put(SqliteStore(path), Put("proofs/ab/1", b"\xff"), Put("session/1/position", b"3"))
    file = tmp_path / "out.jsonl"
    assert await trunkline("store", "export", "-o", str(file), str(path)) == (0, "", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    exported = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert [line.get("base64", line.get("value")) for line in exported] == ["/w==", 3]
    again = await trunkline("store", "export", "-o", str(file), str(path))
    assert again.status == 2
    assert "File exists" in again.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["stats", "https://example.com"], "no store has URLs that begin with https://"),
        (["stats", "env:SURELY_NOT_SET"], "'SURELY_NOT_SET' is not set"),
        ([], "usage: trunkline store"),
    ],
)
def test_wrong_usage_is_reported(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "migrate", "stats", "export", "backup"])
def test_help_has_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["store", command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"trunkline store {command} " in said.partition("examples:")[2]
    assert "exit codes:" in said
    assert f"trunkline store {command} " in MANUAL.read_text("utf-8")


def test_manual_lists_every_kind() -> None:
    page = DESIGN.read_text("utf-8")
    assert re.findall(r"^\| \*([\w ]+)\* \|", page, re.MULTILINE) == [kind.name for kind in KINDS]


async def test_stats_are_printed_as_a_table(path: Path) -> None:
    await put(
        SqliteStore(path),
        Put("session/1/position", b"3"),
        Put("owner/me/open/1", b""),
        Put("owner/me/places/0", b"", 1.0),
    )
    done = await trunkline("store", "stats", str(path))
    lines = done.out.splitlines()
    assert lines[1] == "2 items of 1 owners, 1 expired; 0 leases; 0 live processes"
    assert [line.split()[:5] for line in lines[3:]] == [
        ["session", "position", "1", "19", "0"],
        ["session", "quota", "1", "15", "1"],
    ]
