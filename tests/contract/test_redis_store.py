"""The store on Redis beyond the contract: other processes, lost connections, and leftover keys."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvloop
from tests.contract.commit_load import CommitProcess, check_commits, walk
from tests.contract.connections import turns, until
from tests.contract.stores import SharedStore, lease
from tests.contract.valkey import started, valkey
from tests.faults.proxy import Proxy, proxied
from tests.limits import PATIENCE
from tests.ports import held_port

from trunkline.errors import Fenced, NotExecuted, StoreUnavailable, StoreUnusable
from trunkline.stores.redis import scan
from trunkline.stores.redis.connection import encode_command
from trunkline.stores.redis.store import _SCRIPT, SCHEMA, RedisStore
from trunkline.stores.store import ABSENT, Delete, Held, Item, Lease, Put, Store, home

KEY = "session/1/state"
SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[SharedStore]:
    place = SharedStore("redis", tmp_path)
    yield place
    await place.leave()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{quote(str(tmp_path))}:"


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with proxied(valkey().port) as proxy:
        yield proxy


async def opened(where: str = "", **settings: Any) -> RedisStore:
    store = RedisStore(where or valkey().url, **settings)
    await store.open()
    return store


async def through(proxy: Proxy, prefix: str, patience: float = 5.0) -> RedisStore:
    return await opened(f"redis://127.0.0.1:{proxy.port}", prefix=prefix, patience=patience)


def keys(prefix: str) -> set[str]:
    """The keys of a store in Redis, once no others are left."""
    with valkey().client() as client:
        return {key.decode().removeprefix(prefix) for key in client.keys(f"{prefix}*")}


# --- other processes, and kills --------------------------------------------------------------------------


@pytest.mark.row("D02")
async def test_reported_commits_survive_killed_redis(tmp_path: Path) -> None:
    server = started(tmp_path, **SAFE)
    where = server.url
    one, two = await asyncio.gather(CommitProcess.begin(where, "one"), CommitProcess.begin(where, "two"))
    await asyncio.gather(*(storm.hear(lambda storm=storm: len(storm.said) >= 200) for storm in (one, two)))
    server.kill()
    await asyncio.gather(one.hear(), two.hear())
    assert [await storm.process.wait() for storm in (one, two)] == [0, 0]
    assert all(storm.said[-1].startswith("!") for storm in (one, two))
    store = await opened(server.start().url)
    await check_commits(store, one, two)
    await store.close()
    server.kill()


async def test_two_processes_share_redis(tmp_path: Path) -> None:
    server = started(tmp_path)
    one, two = await asyncio.gather(CommitProcess.begin(server.url, "one"), CommitProcess.begin(server.url, "two"))
    await asyncio.gather(*(storm.hear(lambda storm=storm: len(storm.said) >= 200) for storm in (one, two)))
    await one.kill()
    heard = len(two.said)
    await two.hear(lambda: len(two.said) >= heard + 200)
    await two.kill()
    assert one.counted > 0
    assert two.counted > 0
    store = await opened(server.url)
    await check_commits(store, one, two)
    await store.close()
    server.kill()


@pytest.mark.row("D02")
async def test_restarted_redis_is_reconnected_with_its_data(tmp_path: Path) -> None:
    server = started(tmp_path, **SAFE)
    store = await opened(server.url)
    version = await store.commit([Put(KEY, b"kept"), Put("session/1/more", b"x", expires=time.time() + 600)])
    held = lease(await store.acquire("session/1", "us", 600))
    told: list[frozenset[str] | None] = []
    store.watch("session/1/", told.append)
    assert await store.get(KEY) == Item(KEY, b"kept", version)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.commit([Put(KEY, b"lost")])
    server.start()
    assert await store.get(KEY) == Item(KEY, b"kept", version)
    assert await store.acquire("session/1", "them", 10) == Held("us", held.expires, held.token)
    assert await store.commit([Put(KEY, b"more")], fence=held) > max(version, held.token)
    await until(lambda: None in told)  # changes of that time are unknown
    assert [item.key for item in await walk(store)] == ["session/1/more", KEY]
    await store.close()
    server.kill()


async def test_replica_refuses_each_write_and_answers_reads(tmp_path: Path) -> None:
    server = started(tmp_path)
    store = await opened(server.url)
    await store.commit([Put(KEY, b"kept")])
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        for number in range(3):
            new = [Put(f"session/new-{number}-{way}", b"x") for way in range(2)]  # each in a home to be registered
            read, *refused, again = await asyncio.gather(
                store.get(KEY), *(store.commit([put]) for put in new), store.get(KEY), return_exceptions=True
            )
            assert [getattr(item, "value", item) for item in (read, again)] == [b"kept"] * 2
            assert [type(error) for error in refused] == [NotExecuted] * 2
            assert all("READONLY" in str(error) for error in refused)
            assert all(
                str(error).endswith("use the address of the master, or those of the sentinels") for error in refused
            )
        client.replicaof("NO", "ONE")
    assert await store.commit([Put(KEY, b"again")])
    await store.close()
    server.kill()


# --- lost connections ------------------------------------------------------------------------------------


async def test_unanswered_commit_is_unknown_and_not_repeated(proxy: Proxy, prefix: str) -> None:
    store = await through(proxy, prefix)
    version = await store.commit([Put(KEY, b"0")])
    told: list[frozenset[str] | None] = []
    watch = store.watch("session/1/", told.append)
    await store.get(KEY)
    proxy.cut(b"commit", after=0, reset=True)
    with pytest.raises(StoreUnavailable, match="unknown whether the command was executed"):
        await store.commit([Put(KEY, b"1", version=version)])
    await until(lambda: {KEY} in told)  # it may have been committed
    item = await store.get(KEY)  # reconnects
    assert item is not None
    assert item.value == b"1"
    assert [found.key for found in await walk(store)] == [KEY]
    watch.close()
    await store.close()


async def test_late_commit_is_reported_to_watches(proxy: Proxy, prefix: str) -> None:
    store = await through(proxy, prefix, patience=1.0)
    told: list[frozenset[str] | None] = []
    store.watch("session/1/", told.append)
    await store.get(KEY)
    proxy.hold(b"commit")
    with pytest.raises(StoreUnavailable):
        await store.commit([Put(KEY, b"late")])
    assert await get_in_time(store) is None
    told.clear()
    proxy.go_on()
    await until(lambda: {KEY} in told)
    found = await get_in_time(store)
    assert found is not None
    assert found.value == b"late"
    await store.close()


async def get_in_time(store: RedisStore) -> Item | None:
    """Read from a store with little patience, again if the machine is busy."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await store.get(KEY)


async def test_no_call_waits_longer_than_patience(proxy: Proxy, prefix: str) -> None:
    store = await through(proxy, prefix, patience=1.0)
    proxy.stall()
    began = time.monotonic()
    calls = [store.get(KEY), store.commit([Put(KEY, b"x")]), store.acquire("session/1", "us", 9)]
    assert {type(done) for done in await asyncio.gather(*calls, return_exceptions=True)} == {StoreUnavailable}
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.get(KEY)  # nor when there is no connection to be had
    assert time.monotonic() - began >= 2 * 1.0
    proxy.go_on()
    await reconnected(store)
    await store.close()


def test_suspended_process_does_not_time_out_store(prefix: str) -> None:
    """On a loop that runs its timers before it reads."""

    async def kept() -> Item | None:
        store = await opened(prefix=prefix, patience=1.0)
        asked = asyncio.ensure_future(store.get(KEY))
        await asyncio.sleep(0)  # it is asked
        time.sleep(0.4)
        try:
            return await asked
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(kept()) is None


async def reconnected(store: RedisStore) -> None:
    """Wait until a store has reconnected."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            await store.commit([Put("session/2/state", b"back")])
            return
        except StoreUnavailable:
            continue
    pytest.fail("the store does not come back")


async def test_commands_without_connection_wait_for_the_next(proxy: Proxy, prefix: str) -> None:
    store = await through(proxy, prefix)
    await store.commit([Put(KEY, b"0")])
    proxy.refusing = True
    proxy.reset()
    await until(lambda: not store._client.connected)  # type: ignore[union-attr]
    asked = [asyncio.ensure_future(store.commit([Put(f"session/{n}/state", b"x")])) for n in range(5)]
    await turns()
    proxy.refusing = False
    versions = await asyncio.gather(*asked)
    assert len(await walk(store)) == 5
    assert all(versions)
    await store.close()


async def test_waiting_commands_do_not_rely_on_unsent_ones(proxy: Proxy, prefix: str) -> None:
    store = await through(proxy, prefix)
    await store.commit([Put(KEY, b"0")])
    proxy.refusing = True
    proxy.reset()
    await until(lambda: not store._client.connected)  # type: ignore[union-attr]
    asked = [asyncio.ensure_future(store.commit([Put(KEY, b"%d" % n)])) for n in range(3)]
    await turns()
    waiting = store._client._unsent  # type: ignore[union-attr]
    assert [b"register" in job.encoded for job in waiting] == [True, False] * 3
    assert all(one.deadline == two.deadline for one, two in zip(waiting[::2], waiting[1::2], strict=True))
    proxy.refusing = False
    await asyncio.gather(*asked)
    await store.close()


async def test_close_finishes_within_patience(proxy: Proxy, prefix: str) -> None:
    store = await through(proxy, prefix, patience=1.0)
    store.watch("", lambda _: None)
    proxy.stall()
    asked = asyncio.ensure_future(store.commit([Put(KEY, b"x")]))
    await turns()
    await asyncio.wait_for(store.close(), PATIENCE)
    assert isinstance(asked.exception(), StoreUnavailable)


async def test_unreachable_redis_times_out() -> None:
    with held_port() as port, pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port} does not respond"):
        await opened(f"redis://127.0.0.1:{port}", patience=1.0)


async def test_foreign_server_times_out() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        with pytest.raises(StoreUnavailable, match="does not respond"):
            await opened(f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}", patience=1.0)


# --- the script ------------------------------------------------------------------------------------------


def flush_scripts() -> None:
    with valkey().client() as client:
        client.script_flush()


async def test_lost_script_is_resent_in_commit_order(place: SharedStore) -> None:
    store = await place.enter()
    flush_scripts()
    versions = await asyncio.gather(*(store.commit([Put(KEY, b"%d" % n)]) for n in range(50)))
    assert versions == sorted(set(versions))
    assert (await store.get(KEY)).value == b"49"  # type: ignore[union-attr]
    assert [item.key for item in await walk(store)] == [KEY]


async def test_commit_is_not_executed_after_a_later_one(prefix: str) -> None:
    store = await opened(prefix=prefix)
    await store.commit([Put(KEY, b"0")])
    flush_scripts()
    assert store._client is not None
    late = store.commit([Put(KEY, b"1")])  # not sent yet
    loaded = store._client.submit(encode_command("SCRIPT", "LOAD", _SCRIPT))  # as another client might, just then
    done = await asyncio.gather(late, store.commit([Put(KEY, b"2")]), loaded, return_exceptions=True)
    assert isinstance(done[0], StoreUnavailable)
    assert "was not executed" in str(done[0])
    assert (await store.get(KEY)).value == b"2"  # type: ignore[union-attr]
    await store.close()


async def test_script_that_redis_drops_is_not_resent_forever(prefix: str) -> None:
    store = await opened(prefix=prefix)
    assert store._client is not None
    store._client._script_load = [encode_command("PING")]  # instead of it
    flush_scripts()
    with pytest.raises(StoreUnavailable, match="NOSCRIPT"):
        await store.commit([Put(KEY, b"1")])
    await store.close()


async def test_commits_of_one_iteration_are_one_write(place: SharedStore) -> None:
    store = await place.enter()
    with valkey().client() as client:
        before = client.info("stats")["total_reads_processed"]
        await asyncio.gather(*(store.commit([Put(f"session/{n}/state", b"x")]) for n in range(200)))
        assert client.info("stats")["total_reads_processed"] - before < 20


async def test_commit_without_memory_is_not_applied_in_part(prefix: str) -> None:
    store = await opened(prefix=prefix)
    await store.commit([Put("session/1/a", b"a")])
    with valkey().client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreUnavailable, match=r"OOM .*; raise its maxmemory, or delete other data$"):
                await store.commit([Delete("session/1/a"), Put("session/1/b", b"b")])
        finally:
            client.config_set("maxmemory", 0)
    assert [item.key for item in await walk(store)] == ["session/1/a"]
    await store.close()


async def test_commit_that_cannot_publish_is_not_applied_in_part(prefix: str) -> None:
    with valkey().client() as client:
        client.execute_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
        store = await opened(f"redis://mute:secret@127.0.0.1:{valkey().port}", prefix=prefix)
        with pytest.raises(StoreUnusable, match="No permissions"):
            await store.commit([Put(KEY, b"x")])
        assert await store.get(KEY) is None
        await store.close()
        client.execute_command("ACL", "DELUSER", "mute")


# --- time ------------------------------------------------------------------------------------------------


async def test_expiry_uses_the_clock_of_redis(prefix: str) -> None:
    ours, theirs = await opened(prefix=prefix), await opened(prefix=prefix)
    held = lease(await ours.acquire("session/1", "us", 0.05))
    assert abs(held.expires - 0.05 - time.time()) < 5
    await ours.commit([Put(KEY, b"x", expires=held.expires)], fence=held)
    assert isinstance(await theirs.acquire("session/1", "them", 10), Held)
    while isinstance(taken := await theirs.acquire("session/1", "them", 10), Held):
        assert taken.expires == held.expires
    assert taken.token > held.token
    with pytest.raises(Fenced):
        await ours.commit([Put(KEY, b"late")], fence=held)
    assert await ours.get(KEY) is None  # it had the same expiry
    for store in (ours, theirs):
        await store.close()


async def test_versions_grow_after_empty_home_and_clock_reset(place: SharedStore) -> None:
    store = await place.enter()
    before = await store.commit([Put(KEY, b"x")])
    await store.commit([Delete(KEY)])
    await sweeps(place, store, 1)
    place.clock._now -= 300
    assert await store.commit([Put(KEY, b"y")]) > before


# --- leftovers -------------------------------------------------------------------------------------------


async def sweeps(place: SharedStore, store: Store, times: int = 15) -> None:
    """Let minutes pass, with an action in each."""
    assert isinstance(store, RedisStore)
    for _ in range(times):
        place.clock.advance(60)
        assert store._sweep_task is not None
        await store._sweep_task


@pytest.mark.row("D01")
async def test_ended_homes_leave_nothing(place: SharedStore, prefix: str) -> None:
    store, now = await place.enter(), place.clock.now()
    lease(await store.acquire("session/leased", "us", 30))
    await store.commit([Put("session/ended", b"", expires=now + 30), Put("session/ended/x", b"", expires=now + 200)])
    await store.commit([Put("session/deleted/x", b"x", expires=now + 1_000_000)])
    await store.commit([Delete("session/deleted/x")])
    await store.commit([Put("session/stays/x", b"x", expires=now + 30), Put("session/stays/y", b"y")])
    await store.commit([Put(f"session/many/{number:04}", b"", expires=now + 30) for number in range(1000)])
    place.clock.advance(60)
    await until(lambda: not {"{session/leased}:l", "{session/many}:i", "{session/deleted}:i"} & keys(prefix))
    assert "{session/ended}:i" in keys(prefix)
    await sweeps(place, store)
    left = {f"{{session/stays}}:{name}" for name in ("i", "m", "v", "last")}
    assert keys(prefix) == left | {"{homes}:all", "{homes}:schema"}
    assert [item.key for item in await walk(store)] == ["session/stays/y"]
    await store.commit([Delete("session/stays/y")])
    await sweeps(place, store)
    assert keys(prefix) == {"{homes}:schema"}


async def test_home_written_during_removal_is_found(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    assert isinstance(ours, RedisStore)
    assert ours._client is not None
    await ours.commit([Put(KEY, b"x", expires=place.clock.now() + 1)])
    place.clock._now += 1000  # and no store sweeps
    claim, homes = await ours._call(ours._client, "homes", b"claim", 100)
    assert homes == [b"session/1"]
    assert await ours._call(ours._client, "session/1", b"sweep", 100) == b""
    await theirs.commit([Put(KEY, b"new")])
    await ours._call(ours._client, "homes", b"settle", "session/1", claim.decode(), "")
    assert [item.value for item in await walk(ours)] == [b"new"]
    assert (await ours._call(ours._client, "homes", b"claim", 100))[1] == []  # a sweep follows within a minute
    place.clock._now += 60
    assert (await ours._call(ours._client, "homes", b"claim", 100))[1] == homes


async def test_known_home_is_registered_again_before_removal(place: SharedStore) -> None:
    store, dues = await place.enter(), list[float]()
    assert isinstance(store, RedisStore)
    for seconds in (1, 5, 15, 25, 700):
        place.clock._now += seconds
        await store.commit([Put(KEY, b"x")])
        with valkey().client() as client:
            [(_, due)] = client.zrange(f"{store._prefix}{{homes}}:due", 0, -1, withscores=True)
        assert due - place.clock.now() > 35  # longer than a commit may be in flight
        dues.append(due)
    assert len(set(dues)) == 4  # and not each time


async def test_scan_reads_each_home_once_per_page() -> None:
    items = [Item(key, b"", 1) for key in ["a/b", *(f"a/b!{number:03}" for number in range(50)), "a/b/1"]]
    index = sorted({place for item in items for place in (home(item.key), f"{home(item.key)}/")})
    asked: list[str] = []

    async def places(bounds: scan.Bounds, most: int) -> list[str]:
        return [place for place in index if place > bounds[0][1:] or bounds[0] == "["][:most]

    async def read(homes: Sequence[tuple[str, scan.Bounds]]) -> list[list[Item]]:
        asked.extend(at for at, _ in homes)
        return [[item for item in items if home(item.key) == at] for at, _ in homes]

    assert await scan.scan_homes("", "", 100, read_index=places, read_homes=read) == items
    assert len(asked) == len(set(asked)) == 51


# --- watches ---------------------------------------------------------------------------------------------


async def test_read_after_watch_is_not_older_than_watch(proxy: Proxy, prefix: str) -> None:
    ours, theirs = await through(proxy, prefix), await opened(prefix=prefix)
    told: list[frozenset[str] | None] = []
    proxy.hold(b"SUBSCRIBE")  # which has a separate connection
    ours.watch("session/1/", told.append)
    reading = asyncio.ensure_future(ours.get(KEY))
    for _ in range(20):  # time enough for a response
        await theirs.commit([Put(KEY, b"unseen")])
    assert not reading.done()
    proxy.go_on()
    found = await reading
    assert found is not None
    assert found.value == b"unseen"
    await theirs.commit([Put(KEY, b"seen")])
    await until(lambda: told)
    assert told == [{KEY}]
    for store in (ours, theirs):
        await store.close()


async def test_watch_reports_own_commit_in_flight(prefix: str) -> None:
    store = await opened(prefix=prefix)
    told: list[frozenset[str] | None] = []
    asked = asyncio.ensure_future(store.commit([Put(KEY, b"x")]))
    await asyncio.sleep(0)
    store.watch("session/1/", told.append)
    await asked
    await until(lambda: told)
    assert told == [{KEY}]
    await store.close()


async def test_watch_reports_any_change_after_reconnect(proxy: Proxy, prefix: str) -> None:
    ours, theirs = await through(proxy, prefix), await opened(prefix=prefix)
    told: list[frozenset[str] | None] = []
    ours.watch("session/", told.append)
    await ours.get(KEY)
    proxy.reset()
    await until(lambda: told)
    assert told == [None]
    await theirs.commit([Put(KEY, b"x")])
    await until(lambda: told[1:])
    assert told == [None, {KEY}]
    for store in (ours, theirs):
        await store.close()


async def test_watch_detects_silently_dead_connection(proxy: Proxy, prefix: str) -> None:
    ours, theirs = await through(proxy, prefix, patience=1.0), await opened(prefix=prefix)
    told: list[frozenset[str] | None] = []
    ours.watch("session/1/", told.append)
    await ours.get(KEY)
    proxy.half_open()
    await theirs.commit([Put(KEY, b"x")])
    await until(lambda: None in told)
    for store in (ours, theirs):
        await store.close()


async def test_last_watch_unsubscribes_channel(prefix: str) -> None:
    def channels() -> set[bytes]:
        with valkey().client() as client:
            return {name for name in client.pubsub_channels() if name.decode().startswith(prefix)}

    store = await opened(prefix=prefix)
    one, two = store.watch("session/1/", lambda _: None), store.watch("session/1/state", lambda _: None)
    broad = store.watch("session/", lambda _: None)
    await store.get(KEY)
    assert channels() == {f"{prefix}{{session/1}}".encode()}
    one.close()
    one.close()
    assert channels() == {f"{prefix}{{session/1}}".encode()}
    two.close()
    broad.close()
    await until(lambda: not channels())
    with valkey().client() as client:
        assert client.pubsub_numpat() == 0
    await store.close()


async def test_values_above_pubsub_limit_are_read(prefix: str) -> None:
    store = await opened(prefix=prefix)
    store.watch("", lambda _: None)
    value = bytes(33_000_000)
    await store.commit([Put(KEY, value)])
    found = await store.get(KEY)
    assert found is not None
    assert found.value == value
    await store.commit([Delete(KEY)])
    await store.close()


# --- sharing ---------------------------------------------------------------------------------------------


async def test_stores_with_other_prefixes_are_separate(prefix: str) -> None:
    ours, theirs = await opened(prefix=f"{prefix}a*:"), await opened(prefix=f"{prefix}ab:")
    told: list[frozenset[str] | None] = []
    ours.watch("session/", told.append)
    await ours.get(KEY)
    await theirs.commit([Put(KEY, b"theirs")])
    assert isinstance(await theirs.acquire("session/1", "them", 10), Lease)
    assert await walk(ours) == []
    assert isinstance(await ours.acquire("session/1", "us", 10), Lease)
    await ours.commit([Put("session/2/state", b"ours", version=ABSENT)])
    await until(lambda: told)
    assert told == [{"session/2/state"}]
    for store in (ours, theirs):
        await store.close()


async def test_newer_schema_is_refused(prefix: str) -> None:
    with valkey().client() as client:
        client.set(f"{prefix}{{homes}}:schema", SCHEMA + 1)
    with pytest.raises(StoreUnusable, match=f"written by a newer Trunkline: its schema is {SCHEMA + 1}"):
        await opened(prefix=prefix)


async def test_risky_redis_settings_are_warned_about(
    tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trunkline"):
        await (await opened(prefix=prefix)).close()
        warned = [record.getMessage() for record in caplog.records]
        assert any("has appendonly no: data is lost when Redis stops" in said for said in warned)
        assert any("has appendfsync everysec" in said for said in warned)
        caplog.clear()
        server = started(tmp_path, **SAFE)
        await (await opened(server.url)).close()
        server.kill()
        assert caplog.records == []
