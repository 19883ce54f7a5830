"""The identity of the store: processes with different identities are different deployments, and a store that loses its
data gets a new one.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import until
from tests.contract.valkey import started, valkey
from tests.unit.server.cluster.clusters import SECONDS, ClusterMembers, Member, done, on_redis, round_trip

from trunkline import Server, Settings
from trunkline.errors import StoreUnavailable
from trunkline.facts import Dropped
from trunkline.server.cluster.messages import EVICTED
from trunkline.stores.redis.bus import Channels
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.shared_values import IDENTITY, read_identity
from trunkline.stores.store import Delete, Held, Lease, Store


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[ClusterMembers]:
    made = ClusterMembers(tmp_path / "c.db")
    yield made
    await made.end()


async def test_two_databases_of_one_redis_are_two_deployments() -> None:
    here, there = await on_redis(f"{valkey().url}/1"), await on_redis(f"{valkey().url}/2")
    also_here = await on_redis(f"{valkey().url}/1")
    assert (here.cluster.peers, also_here.cluster.peers) == ({also_here.name}, {here.name})
    assert there.cluster.peers == frozenset()
    there.cluster.broadcast(EVICTED, also_here.name.encode())
    await done(here.cluster.broadcast_reliably(b"t", b"news"))
    assert also_here.heard == [(here.name, b"news")]
    assert (there.heard, there.seen.steps()) == ([], ["Join"])
    assert also_here.name in here.cluster.peers
    assert [member.seen.of(Dropped) for member in (here, also_here, there)] == [[], [], []]
    for member in (here, also_here, there):
        await member.cluster.leave()
        await member.store.close()


# --- a store that loses its data -----------------------------------------------------------------------


async def test_processes_rejoin_one_cluster_after_store_loss(tmp_path: Path) -> None:
    redis = started(tmp_path / "redis")
    members = [await on_redis(redis.url, 2.0) for _ in range(3)]
    names, before = {member.name for member in members}, await read_identity(members[0].store)
    reset: list[Member] = []
    for member in members:
        member.cluster.on_store_reset(partial(reset.append, member))
    with redis.client() as client:
        client.flushall()
    for member in members:
        await member.seen.until("Join", 2)
    await until(lambda: all(len(member.cluster.peers) == 2 for member in members))
    assert not names & {member.name for member in members}
    assert [member.evictions for member in members] == [1, 1, 1]
    assert set(map(id, reset)) == set(map(id, members))
    assert all(member.seen.steps().count("Regain") == 0 for member in members)
    after = await read_identity(members[0].store)
    assert after is not None
    assert after != before
    assert {member.cluster.membership.lease.identity for member in members} == {after}
    await done(members[0].cluster.broadcast_reliably(b"t", b"news"))
    assert [member.heard for member in members[1:]] == [[(members[0].name, b"news")]] * 2
    for member in members:
        await member.cluster.leave()
        await member.store.close()
    redis.kill()


async def test_process_evicted_before_store_loss_stays_evicted(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name = other.name
    await one.store.acquire(f"process/{name}", one.name, 100.0, over=other.cluster.membership.lease._lease.token)
    await lose_data(one.store, one.name, name)
    await other.beat()
    assert other.seen.steps(name)[-1] == "Deposed"
    assert (other.evictions, other.name == name) == (1, False)


async def test_lease_is_not_valid_before_store_identity_is_known(processes: ClusterMembers) -> None:
    one = await processes.one()
    name, get = one.name, one.store.get

    async def fail(_: str) -> None:
        raise StoreUnavailable("not now")

    await lose_data(one.store, name)
    one.store.get = fail
    for _ in range(2):  # the second time there is a lease again that could be renewed
        await one.beat(SECONDS)
        assert one.cluster.membership.lease.valid_until < one.clock.now()
        assert one.name == name
    one.store.get = get
    await one.beat()
    assert (one.evictions, one.name == name) == (1, False)


async def lose_data(store: Store, *names: str) -> None:
    """Delete the membership data of a store, as if it had lost all."""
    await store.commit([Delete(IDENTITY)])
    for name in names:
        lease = await store.acquire(f"process/{name}", "nobody", 1, over=(await held(store, name)).token)
        assert isinstance(lease, Lease)
        await store.release(lease)


async def held(store: Store, name: str) -> Held:
    found = await store.acquire(f"process/{name}", "nobody", 1)
    assert isinstance(found, Held)
    return found


async def test_eviction_notice_is_checked_in_the_store(processes: ClusterMembers) -> None:
    one, other, third = await processes.one(), await processes.one(), await processes.one()
    one.store.asked.clear()
    other.cluster.broadcast(EVICTED, third.name.encode())
    await round_trip(one, other)
    await until(lambda: f"process/{third.name}" in one.store.asked)
    await round_trip(one, third)
    assert third.name in one.cluster.peers
    assert third.seen.steps(third.name) == ["Join"]
    assert not await one.cluster.evict_if_dead(third.name)


async def test_silence_evicts_no_process_while_identity_is_young(tmp_path: Path) -> None:
    redis = started(tmp_path / "redis")
    began = asyncio.get_running_loop().time()
    one = await on_redis(redis.url, SECONDS)
    standing = one.cluster.membership.lease
    assert began + SECONDS <= standing.may_evict_from <= one.clock.now() + SECONDS
    assert not await one.cluster.evict_if_dead("silent")  # it may not know yet that the store has lost its data
    standing.may_evict_from = one.clock.now()
    assert await one.cluster.evict_if_dead("silent")
    await one.cluster.leave()
    await one.store.close()
    redis.kill()


async def test_rejected_frame_is_reported() -> None:
    one = await on_redis(valkey().url)
    identity = one.cluster.membership.lease.identity
    assert identity is not None
    with valkey().client(db=1) as client:
        client.publish(Channels("crew", identity)._channel_for_peer(one.name), b"forged")
    await until(lambda: one.seen.of(Dropped))
    [fact] = one.seen.of(Dropped)
    assert (fact.kind, fact.why) == ("bus frame", "it is not a bus frame")
    await one.cluster.leave()
    await one.store.close()


async def test_processes_agree_on_keys_after_store_loss(tmp_path: Path) -> None:
    redis = started(tmp_path / "redis")
    servers = [
        Server("s", store=RedisStore(redis.url), settings=Settings(process_lease=2.0, task_lease=4.0)) for _ in range(2)
    ]
    for server in servers:
        await server.start()
    servings: list[Any] = [server._runtime for server in servers]
    keys = [serving.get_services().state_tokens._stored_keys for serving in servings]
    cursors = [serving._catalog.cursors for serving in servings]
    before = keys[0].secrets()
    with redis.client() as client:
        client.flushall()
    await until(lambda: before not in [key.secrets() for key in keys])
    await until(lambda: keys[0].secrets() == keys[1].secrets())
    await until(lambda: not any(serving._background_tasks for serving in servings))
    assert cursors[0].open("tool", cursors[1].seal("tool", 3)) == 3
    for server in servers:
        await server.aclose()
    redis.kill()
