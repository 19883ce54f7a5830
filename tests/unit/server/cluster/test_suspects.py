"""Suspected peers get no messages until a heartbeat arrives or they are evicted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.connections import turns
from tests.limits import PATIENCE
from tests.unit.server.cluster.clusters import ClusterMembers, round_trip

from trunkline.errors import StoreUnavailable


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[ClusterMembers]:
    made = ClusterMembers(tmp_path / "store")
    yield made
    await made.end()


async def test_unsuspected_peer_is_reachable_at_once(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    assert await one.cluster.wait_until_reachable(other.name)


@pytest.mark.parametrize("everybody", [False, True])
async def test_suspected_peer_is_pinged_and_reachable_when_it_answers(
    processes: ClusterMembers, everybody: bool
) -> None:
    one, other = await processes.one(), await processes.one()
    one.cluster.lost(None if everybody else other.name)
    there = asyncio.ensure_future(one.cluster.wait_until_reachable(other.name))
    await asyncio.sleep(0)
    assert not there.done()
    async with asyncio.timeout(PATIENCE):
        assert await there
    assert one.lost == [None if everybody else other.name]


async def test_suspected_peer_that_departed_is_not_reachable(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    name = other.name
    await other.die_silently()
    one.cluster.lost(name)
    async with asyncio.timeout(PATIENCE):
        assert not await one.cluster.wait_until_reachable(name)
        assert not await one.cluster.wait_until_reachable(name)


async def test_silent_suspect_is_awaited_until_evicted(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    await round_trip(one, other)
    other.cluster.heard = lambda *_: None  # it is suspended
    one.cluster.lost(other.name)
    there = asyncio.ensure_future(one.cluster.wait_until_reachable(other.name))
    for _ in range(2):
        await one.beat()
        assert not there.done()
    for _ in range(2):
        await one.beat()
    async with asyncio.timeout(PATIENCE):
        assert not await there


async def test_waiting_for_a_suspect_ends_when_the_cluster_is_left(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    other.cluster.heard = lambda *_: None
    one.cluster.lost(other.name)
    there = asyncio.ensure_future(one.cluster.wait_until_reachable(other.name))
    await asyncio.sleep(0)
    await one.cluster.leave()
    async with asyncio.timeout(PATIENCE):
        assert await there


async def test_wait_for_unreachable_live_suspect_times_out(processes: ClusterMembers) -> None:
    one, other = await processes.one(), await processes.one()
    await round_trip(one, other)
    one.cluster.heard = lambda *_: None  # nothing gets through
    one.cluster.lost(other.name)
    there = asyncio.ensure_future(one.cluster.wait_until_reachable(other.name))
    for _ in range(6):
        assert not there.done()
        await other.beat()
        await one.beat()
        await turns(50)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await there
