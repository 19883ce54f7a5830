"""A store on Redis with replicas: writes that they have confirmed survive a failover."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.contract.connections import until
from tests.contract.valkey import Valkey, sentinel, started
from tests.limits import PATIENCE

from trunkline.errors import ConfigError, Conflict, Fenced, StoreUnavailable
from trunkline.stores.redis.connection import NO_REPLY
from trunkline.stores.redis.store import MAX_PATIENCE, RedisStore
from trunkline.stores.store import ABSENT, Lease, Put

KEY = "session/1/state"
Start = Callable[..., Valkey]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers that end with the test."""
    with ExitStack() as stack:

        def started_for_test(name: str, **settings: str) -> Valkey:
            server = started(tmp_path / name, **settings)
            stack.callback(server.kill)
            return server

        yield started_for_test


def is_synchronized(replica: Valkey) -> bool:
    with replica.client() as client:
        return client.info("replication")["master_link_status"] == "up"


async def replicated(start: Start) -> tuple[Valkey, Valkey]:
    """A master, and a replica that follows it."""
    master = start("master", **{"repl-diskless-sync-delay": "0"})
    replica = start("replica", replicaof=f"127.0.0.1 {master.port}")
    await until(lambda: is_synchronized(replica))
    return master, replica


async def test_confirmed_write_is_on_the_replica(start: Start) -> None:
    master, replica = await replicated(start)
    store = RedisStore(master.url, replicas=1)
    await store.open()
    with replica.client() as client:
        for number in range(20):
            await store.commit([Put(KEY, b"%d" % number)])
            assert client.hget("trunkline:{session/1}:v", "/state") == b"%d" % number
    await store.close()


async def test_write_without_enough_replicas_is_not_acknowledged(start: Start) -> None:
    master = start("master", **{"repl-diskless-sync-delay": "0"})
    store = RedisStore(master.url, replicas=1, patience=2.0)
    await store.open()
    outcomes = await asyncio.gather(
        store.commit([Put(KEY, b"unconfirmed")]), store.acquire("session/2", "holder", 10), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
    assert (await store.get(KEY)) is not None  # reads need no replica
    await store.close()


async def test_unconfirmed_write_fails_when_its_connection_ends(start: Start) -> None:
    master = start("master")
    store = RedisStore(master.url, replicas=1, patience=MAX_PATIENCE)
    await store.open()
    writing = asyncio.ensure_future(store.commit([Put(KEY, b"written")]))
    with master.client() as client:
        await until(lambda: client.hget("trunkline:{session/1}:v", "/state") == b"written")
    await settle(store)
    master.kill()
    with pytest.raises(StoreUnavailable, match="unknown whether"):
        await asyncio.wait_for(writing, MAX_PATIENCE / 2)
    await store.close()


async def settle(store: RedisStore) -> None:
    """Wait until the reply to a write has arrived, which is not confirmed yet."""
    client = store._client
    assert client is not None
    await until(lambda: bool(client._unconfirmed) and client._unconfirmed[0][1][0].reply is not NO_REPLY)


async def test_refusals_are_the_same_with_replicas(start: Start) -> None:
    master, _ = await replicated(start)
    store = RedisStore(master.url, replicas=1)
    await store.open()
    lease = await store.acquire("session/1", "holder", 10)
    assert isinstance(lease, Lease)
    assert (await store.renew(lease, 20)).token == lease.token
    await store.commit([Put(KEY, b"1")], fence=lease)
    with pytest.raises(Conflict):
        await store.commit([Put(KEY, b"2", version=ABSENT)])
    await store.release(lease)
    with pytest.raises(Fenced):
        await store.renew(lease, 20)
    with pytest.raises(Fenced):
        await store.commit([Put(KEY, b"3")], fence=lease)
    await store.close()


async def test_script_is_loaded_again_with_replicas(start: Start) -> None:
    master, _ = await replicated(start)
    store = RedisStore(master.url, replicas=1)
    await store.open()
    with master.client() as client:
        client.script_flush()
    results = await asyncio.gather(*(store.commit([Put(f"session/{number}/state", b"x")]) for number in range(5)))
    assert all(results)
    await store.close()


async def test_acknowledged_writes_survive_failover(start: Start, tmp_path: Path) -> None:
    master, replica = await replicated(start)
    watcher = sentinel(tmp_path / "sentinel", "main", master.port, down_after=300)
    store = RedisStore(f"redis+sentinel://127.0.0.1:{watcher.port}/main", replicas=1, patience=1.0)
    await store.open()
    acknowledged: list[str] = []

    async def write(client: int) -> None:
        for number in range(1000):
            try:
                await store.commit([Put(f"session/{client}/{number}", b"x")])
            except StoreUnavailable:
                return
            acknowledged.append(f"session/{client}/{number}")

    writers = [asyncio.create_task(write(number)) for number in range(20)]
    await until(lambda: len(acknowledged) > 200)
    master.kill()
    await asyncio.wait(writers, timeout=PATIENCE)
    survivor = RedisStore(f"redis+sentinel://127.0.0.1:{watcher.port}/main", patience=1.0)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await survivor.open()
                break
            except StoreUnavailable:
                survivor = RedisStore(f"redis+sentinel://127.0.0.1:{watcher.port}/main", patience=1.0)
    with replica.client() as client:
        assert client.info("replication")["role"] == "master"
    lost = [key for key in acknowledged if await survivor.get(key) is None]
    assert lost == []
    for each in (store, survivor):
        await each.close()
    watcher.kill()


def test_number_of_replicas_is_checked() -> None:
    with pytest.raises(ConfigError, match="replicas"):
        RedisStore("redis://localhost", replicas=-1)
