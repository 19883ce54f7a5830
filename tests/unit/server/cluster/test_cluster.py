"""Processes that share a store: membership, failure detection, and acknowledged messages."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.connections import until
from tests.contract.valkey import started, valkey
from tests.limits import PATIENCE
from tests.unit.server.cluster.clusters import BEAT, SECONDS, ClusterMembers, Member, done, on_redis, round_trip

from trunkline.errors import StoreUnavailable
from trunkline.facts import Dropped, HandlerFailed
from trunkline.server.cluster.membership import ProcessLease
from trunkline.stores.store import Held, Lease
from trunkline.testing import ManualClock


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[ClusterMembers]:
    made = ClusterMembers(tmp_path / "c.db")
    yield made
    await made.end()


# --- membership --------------------------------------------------------------------------------------


async def test_joining_process_and_its_peers_know_each_other(processes: ClusterMembers) -> None:
    members = [await processes.one() for _ in range(3)]
    names = {member.name for member in members}
    assert len(names) == 3
    assert [member.cluster.peers for member in members] == [names - {member.name} for member in members]
    await members[0].cluster.join()
    assert members[0].seen.steps(members[0].name) == ["Join"]


async def test_leaving_process_departs_without_store_check(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name = other.name
    await other.cluster.leave()
    assert await one.seen.until("Depart") == name
    one.store.asked.clear()
    assert await one.cluster.evict_if_dead(name)
    assert (one.cluster.peers, one.lost, one.store.asked) == (frozenset(), [name], [])
    assert isinstance(await one.store.acquire(f"process/{name}", "somebody", 1), Lease)
    assert not one.cluster.send(name, b"t", b"")


async def test_failed_join_releases_lease(processes: ClusterMembers) -> None:
    one = await processes.one()
    await one.cluster.leave()
    bus = one.store.bus()
    await bus.close()
    one.store.bus = lambda: bus
    one.store.asked.clear()
    with pytest.raises(StoreUnavailable):
        await one.cluster.join()
    assert isinstance(await one.store.acquire(one.store.asked[0], "somebody", 1), Lease)
    assert one.cluster.broadcast_reliably(b"t", b"") is None


async def test_cluster_works_over_redis() -> None:
    one, other = await on_redis(valkey().url), await on_redis(valkey().url)
    assert (one.cluster.peers, other.cluster.peers) == ({other.name}, {one.name})
    await done(one.cluster.broadcast_reliably(b"t", b"news"))
    assert other.heard == [(one.name, b"news")]
    name = other.name
    await other.cluster.leave()
    assert await one.seen.until("Depart") == name
    await one.cluster.leave()
    for member in (one, other):
        await member.store.close()


async def test_cluster_survives_redis_restart(
    tmp_path: Path,
) -> None:
    redis = started(tmp_path / "redis", appendonly="yes", appendfsync="always")
    one, other = await on_redis(redis.url, 1.0), await on_redis(redis.url, 1.0)
    names = [one.name, other.name]
    redis.kill()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    async with asyncio.timeout(PATIENCE):
        while (
            max(one.cluster.membership.lease.valid_until, other.cluster.membership.lease.valid_until)
            > one.clock.now() - 0.3
        ):
            await asyncio.sleep(0.05)
    redis.start()
    await one.seen.until("Regain")
    await other.seen.until("Regain")
    await done(telling)
    await done(other.cluster.broadcast_reliably(b"t", b"more"))
    assert ([one.name, other.name], one.evictions + other.evictions) == (names, 0)
    assert (other.heard, one.heard) == ([(one.name, b"news")], [(other.name, b"more")])
    assert one.seen.of(HandlerFailed) + other.seen.of(HandlerFailed) == []
    for member in (one, other):
        await member.cluster.leave()
        await member.store.close()
    redis.kill()


# --- messages ------------------------------------------------------------------------------------------


async def test_broadcast_completes_after_all_acknowledgements(processes: ClusterMembers) -> None:
    one, other, third = await processes.one(), await processes.one(), await processes.one()
    other.confirms = asyncio.get_running_loop().create_future()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    await round_trip(one, other)
    await round_trip(one, third)
    assert (other.heard, third.heard) == ([(one.name, b"news")], [(one.name, b"news")])
    assert telling is not None
    assert not telling.done()
    other.confirms.set_result(None)
    await done(telling)


async def test_broadcast_without_peers_returns_none(processes: ClusterMembers) -> None:
    one = await processes.one()
    assert one.cluster.alone
    assert one.cluster.broadcast_reliably(b"t", b"news") is None


async def test_broadcasts_complete_in_order(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    other.confirms = asyncio.get_running_loop().create_future()
    first = one.cluster.broadcast_reliably(b"t", b"first")
    await round_trip(one, other)
    later, other.confirms = other.confirms, None
    second = one.cluster.broadcast_reliably(b"t", b"second")
    await round_trip(one, other)
    assert first is not None
    assert second is not None
    assert (first.done(), second.done()) == (False, False)
    later.set_result(None)
    await done(second)
    assert first.done()


async def test_lost_broadcast_is_resent_and_handled_once(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    other.confirms = asyncio.get_running_loop().create_future()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    one.cluster.lost(other.name)
    one.cluster.lost(None)
    await round_trip(one, other)
    assert other.heard == [(one.name, b"news")]
    assert one.lost == [other.name, None]
    other.confirms.set_result(None)
    await done(telling)


async def test_repeated_broadcast_is_acknowledged_again(processes: ClusterMembers) -> None:
    one, other, third = await processes.one(), await processes.one(), await processes.one()
    third.confirms = asyncio.get_running_loop().create_future()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    await round_trip(one, other)
    one.cluster._broadcasts._pending[0].unacknowledged.add(other.name)  # as if its message had been lost
    one.cluster.lost(other.name)
    await round_trip(one, other)
    assert other.heard == [(one.name, b"news")]
    third.confirms.set_result(None)
    await done(telling)


async def test_handler_exception_is_reported_and_acknowledged(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()

    def fails(_: str, __: bytes) -> None:
        raise RuntimeError("broken")

    other.cluster.on(b"f", fails)
    await done(one.cluster.broadcast_reliably(b"f", b"news"))
    await done(one.cluster.broadcast_reliably(b"unknown", b"news"))
    assert [str(fact.error) for fact in other.seen.of(HandlerFailed)] == ["broken"]
    with pytest.raises(ValueError, match="already has a handler"):
        other.cluster.on(b"f", fails)


async def test_unacknowledged_broadcast_is_resent_then_given_up(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    other.confirms = asyncio.get_running_loop().create_future()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    for _ in range(19):
        await other.beat()
        await round_trip(one, other)
        await one.beat()
    await done(telling)
    await round_trip(one, other)
    assert one.cluster.peers == {other.name}
    assert [fact.kind for fact in one.seen.of(Dropped)] == ["news"]
    assert (other.missed, len(other.heard)) == (1, 1)


# --- dead processes ------------------------------------------------------------------------------------


async def test_peer_with_recent_heartbeat_is_alive_without_store_check(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    for _ in range(6):
        await other.beat()
        await round_trip(one, other)
        await one.beat()
    one.store.asked.clear()
    assert not await one.cluster.evict_if_dead(other.name)
    assert not await one.cluster.evict_if_dead(one.name)
    assert one.store.asked == []


async def test_silent_peer_that_holds_its_lease_is_alive(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    other.cluster.membership._bus, bus = None, other.cluster.membership._bus  # no process receives it
    await other.cluster.membership.lease.renew()
    one.clock.advance(0)
    one.cluster._peers.mark_alive(other.name, one.clock.now())
    one.store.asked.clear()
    assert not await one.cluster.evict_if_dead(other.name)
    assert not await one.cluster.evict_if_dead(other.name)
    assert one.store.asked == [f"process/{other.name}"]
    other.cluster.membership._bus = bus


async def test_silent_peer_with_expired_lease_delays_no_reply(processes: ClusterMembers) -> None:
    one, other, third = await processes.one(), await processes.one(), await processes.one()
    name, other.store.slow = other.name, asyncio.Event()
    other.confirms = asyncio.get_running_loop().create_future()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    assert telling is not None
    for _ in range(2):
        await one.beat()
        await third.beat()
        await round_trip(one, third)
        assert not telling.done()
    await one.beat()
    await done(telling)
    assert one.seen.steps(name) == ["Meet", "DeclareDead"]
    await third.seen.until("Meet", 2)
    await until(lambda: name not in third.cluster.peers)
    assert (one.cluster.peers, third.cluster.peers) == ({third.name}, {one.name})
    assert (one.lost, third.lost) == ([name], [name])
    other.store.slow.set()


async def test_concurrent_checks_share_one_store_call(processes: ClusterMembers) -> None:
    one = await processes.one()
    assert await asyncio.gather(*(one.cluster.evict_if_dead("of-long-ago") for _ in range(10))) == [True] * 10
    assert one.store.asked.count("process/of-long-ago") == 1
    assert one.seen.steps("of-long-ago") == ["DeclareDead"]


async def test_holder_that_is_no_process_name_is_not_evicted(processes: ClusterMembers) -> None:
    """Earlier versions held leases under such names."""
    one = await processes.one()
    one.store.asked.clear()
    assert not await one.cluster.evict_if_dead("process 0123456789abcdef")
    assert not await one.cluster.evict_if_dead("process 0123456789abcdef, recovering")
    assert one.store.asked == []


async def test_name_is_confirmed_after_an_outage_and_replaced_after_an_eviction(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name, other.store.unavailable = other.name, True
    assert await other.cluster.confirm_name() == name
    other.clock.advance(SECONDS)
    assert not other.cluster.lease_valid
    with pytest.raises(StoreUnavailable):
        await other.cluster.confirm_name()
    assert other.cluster.is_own_name(name)
    await one.store.acquire(f"process/{name}", one.name, 1000.0, over=other.cluster.membership.lease._lease.token)
    other.store.unavailable = False
    assert await other.cluster.confirm_name() == other.name != name
    assert (other.cluster.lease_valid, other.cluster.is_own_name(name)) == (True, False)


async def test_cancelled_check_does_not_affect_other_callers(processes: ClusterMembers) -> None:
    one = await processes.one()
    one.store.slow = asyncio.Event()
    asking = [asyncio.ensure_future(one.cluster.evict_if_dead("of-long-ago")) for _ in range(2)]
    await asyncio.sleep(0)
    asking[0].cancel()
    one.store.slow.set()
    assert await asking[1]


async def test_killed_peer_is_evicted_before_its_lease_expires(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name = other.name
    await other.die_silently()
    assert await one.seen.until("DeclareDead") == name
    assert await one.cluster.evict_if_dead(name)
    held = await one.store.acquire(f"process/{name}", name, 1)
    assert isinstance(held, Held)
    assert held.holder == one.name


async def test_eviction_check_is_retried_after_store_failure(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name, one.store.unavailable = other.name, True
    with pytest.raises(StoreUnavailable):
        await one.cluster.evict_if_dead("of-long-ago")
    await other.die_silently()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    await asyncio.gather(*one.cluster._failure_detector._checks.values(), return_exceptions=True)
    one.store.unavailable = False
    await one.beat(SECONDS)
    await done(telling)
    assert one.seen.steps(name) == ["Meet", "DeclareDead"]
    assert one.seen.of(HandlerFailed) == []


# --- eviction ------------------------------------------------------------------------------------------


async def test_evicted_process_rejoins_under_another_name(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name = other.name
    for _ in range(3):
        await one.beat()
    assert await one.cluster.evict_if_dead(name)
    assert await other.seen.until("Join", 2) == other.name != name
    assert (other.evictions, other.missed, other.seen.steps(name)) == (1, 1, ["Join", "Deposed"])
    assert (one.cluster.peers, other.cluster.peers) == ({other.name}, {one.name})
    assert await other.cluster.evict_if_dead(name)
    assert other.lost == [None, None]
    await done(one.cluster.broadcast_reliably(b"t", b"news"))
    await done(other.cluster.broadcast_reliably(b"t", b"more"))
    assert (other.heard, one.heard) == ([(one.name, b"news")], [(other.name, b"more")])


async def test_broadcast_between_names_is_sent_under_the_next_name(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    await is_evicted_without_rejoining(one, other)
    assert (other.evictions, other.cluster.peers, other.cluster.alone) == (1, frozenset(), False)
    telling = other.cluster.broadcast_reliably(b"t", b"without a name")
    assert not other.cluster.send(one.name, b"t", b"")  # so that a request does not count as started
    await other.beat()
    assert telling is not None
    assert not telling.done()
    other.store.unavailable = False
    await other.beat()
    await done(telling)
    assert one.heard == [(other.name, b"without a name")]


async def test_pending_broadcast_is_resent_under_the_next_name(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    one.confirms = asyncio.get_running_loop().create_future()
    telling = other.cluster.broadcast_reliably(b"t", b"news")
    await round_trip(one, other)
    await is_evicted_without_rejoining(one, other)
    one.confirms = None
    other.store.unavailable = False
    await other.beat()
    await done(telling)
    assert [body for _, body in one.heard] == [b"news", b"news"]
    assert one.heard[0][0] != one.heard[1][0] == other.name


async def is_evicted_without_rejoining(one: Member, other: Member) -> None:
    """Another process evicts one, which cannot rejoin for now."""
    other.store.unavailable, other.store.exempt_node = True, f"process/{other.name}"
    for _ in range(3):
        await one.beat()
    assert await one.cluster.evict_if_dead(other.name)
    await other.seen.until("Deposed")
    await other.beat(0)


async def test_expired_lease_that_no_peer_took_is_regained(processes: ClusterMembers) -> None:
    one = await processes.one()
    name = one.name
    await one.beat(2 * SECONDS)
    assert (one.name, one.evictions, one.missed) == (name, 0, 1)
    assert one.seen.steps(name) == ["Join", "Regain"]
    assert one.cluster.membership.lease.valid_until > one.clock.now()


async def test_process_paused_beyond_eviction_record_counts_as_evicted(processes: ClusterMembers) -> None:
    one, clock = await processes.one(), ManualClock(start=1_000_000.0)
    standing = ProcessLease(one.store, SECONDS, clock, clock)
    assert not await standing.renew()
    assert await standing.acquire()
    clock.advance(11 * 3600.0)
    assert await standing.acquire()
    clock.advance(13 * 3600.0)
    assert not await standing.acquire()


async def test_process_is_not_evicted_while_its_lease_is_valid(processes: ClusterMembers) -> None:
    one = await processes.one()
    started = one.clock.now()
    assert one.cluster.membership.lease.valid_until < started + SECONDS
    one.store.slow = asyncio.Event()
    one.clock.advance(BEAT)
    asked, beating = one.clock.now(), one.cluster.membership._renewal
    assert beating is not None
    await asyncio.sleep(0)
    one.clock.advance(1.0)
    one.store.slow.set()
    await asyncio.wait([beating])
    assert started < one.cluster.membership.lease.valid_until < asked + SECONDS
    await one.cluster.leave()
    assert one.cluster.membership.lease.valid_until < started


@pytest.mark.parametrize("moment", range(5))
async def test_failing_heartbeat_does_not_rejoin_after_leave(processes: ClusterMembers, moment: int) -> None:
    one = await processes.one()
    one.store.slow, one.store.unavailable = asyncio.Event(), True
    one.clock.advance(BEAT)
    await asyncio.sleep(0)
    one.store.slow.set()
    for _ in range(moment):
        await asyncio.sleep(0)
    await one.cluster.close()
    one.store.unavailable = False
    await one.beat()
    assert one.cluster.alone
    assert one.seen.steps() == ["Join"]


async def test_unavailable_store_is_retried_silently(processes: ClusterMembers) -> None:
    one = await processes.one()
    name, one.store.unavailable = one.name, True
    for _ in range(6):
        await one.beat()
    assert one.cluster.membership.lease.valid_until < one.clock.now()
    one.store.unavailable = False
    await one.beat()
    assert (one.name, one.missed, one.cluster.membership.lease.valid_until > one.clock.now()) == (name, 1, True)
    assert one.seen.of(HandlerFailed) == []


async def test_resumed_process_evicts_no_peer(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    telling = one.cluster.broadcast_reliably(b"t", b"news")
    one.clock.advance(2 * SECONDS)
    other.clock.advance(2 * SECONDS)
    assert not await one.cluster.evict_if_dead(other.name)
    await done(telling)
    await other.beat(0)
    assert (one.evictions, other.evictions) == (0, 0)
    one.store.unavailable = True
    one.clock.advance(2 * SECONDS)
    with pytest.raises(StoreUnavailable, match="may have been evicted"):
        await one.cluster.evict_if_dead(other.name)


async def test_slow_store_causes_no_eviction(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    one.store.slow = asyncio.Event()
    one.clock.advance(BEAT)
    await asyncio.sleep(0)  # it asks while its lease is valid
    one.clock.advance(2 * SECONDS)
    one.store.slow.set()
    assert await one.seen.until("Regain") == one.name
    await one.beat()
    assert f"process/{other.name}" not in one.store.asked


async def test_store_outage_causes_no_eviction(processes: ClusterMembers) -> None:
    members = [await processes.one() for _ in range(3)]
    for member in members:
        member.store.unavailable = True
    for _ in range(20):
        for member in members:
            await member.beat(SECONDS / 12)
    names = [member.name for member in members]
    for member in members:
        member.store.unavailable = False
        await member.beat(SECONDS / 12)
    for _ in range(3):
        for member in members:
            await member.beat()
        await round_trip(members[0], members[1])
        await round_trip(members[1], members[2])
        await round_trip(members[0], members[2])
    assert [member.name for member in members] == names
    assert [member.seen.steps(member.name) for member in members] == [["Join", "Regain"]] * 3


async def test_silent_peer_is_evicted_without_waiting_callers(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name, other.store.slow = other.name, asyncio.Event()
    for _ in range(4):
        await one.beat()
    assert await one.seen.until("DeclareDead") == name
    other.store.slow.set()


async def test_all_silent_peers_are_evicted_when_their_leases_expire(processes: ClusterMembers) -> None:
    """Not only with the next heartbeat, and not one after another."""
    one, *others = [await processes.one() for _ in range(3)]
    for member in (one, *others):
        member.clock.advance(BEAT / 2)
    for other in others:
        other.cluster.membership.renew_now()
        await other.beat(0)
        await round_trip(one, other)
        other.store.slow = asyncio.Event()
    await one.beat(BEAT / 2)
    for _ in range(2):
        await one.beat()
    assert one.seen.steps(others[0].name) == one.seen.steps(others[1].name) == ["Meet"]
    one.clock.advance(BEAT / 2)
    await one.seen.until("DeclareDead", 2)
    assert one.cluster.alone
    for other in others:
        other.store.slow.set()


async def test_message_of_evicted_process_is_ignored_and_answered(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name, other.store.slow = other.name, asyncio.Event()
    one.cluster._peers.remove(name)
    other.cluster.send(one.name, b"t", b"I live")
    telling = other.cluster.broadcast_reliably(b"t", b"news")
    other.store.slow.set()
    async with asyncio.timeout(PATIENCE):
        while other.store.asked.count(f"process/{name}") < 2:
            await asyncio.sleep(0)
    assert one.heard == []
    assert telling is not None
