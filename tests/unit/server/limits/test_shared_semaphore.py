"""A tool's slots that processes share: each with its own store object, all on one file."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import until
from tests.limits import PATIENCE
from tests.unit.server.cluster.clusters import SECONDS, Member

from trunkline import Server
from trunkline.clock import Clock, WallClock
from trunkline.errors import Refusal
from trunkline.server.cluster.membership import evict_process
from trunkline.server.cluster.messages import EVICTED
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, TooManyCalls
from trunkline.server.limits.shared_semaphore import Permit, SharedSemaphore, SharedSemaphores
from trunkline.stores.shared_values import load_identity
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Put, scan_all
from trunkline.testing import FaultyStore, ManualClock, RawPeer


class Process:
    """One process's handle of a tool."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.store = FaultyStore(SqliteStore(path, clock=clock, watch_every=0.005, synchronous="NORMAL"))
        self.member = Member(self.store, clock)
        self.slots = SharedSemaphores(self.store, clock, "server", self.member.cluster, SECONDS)

    async def open(self) -> None:
        await self.store.open()
        await load_identity(self.store, 0.0)  # as in a deployment that is older than a lease
        await self.member.cluster.join()

    async def evict(self, other: "Process") -> None:
        """Evict another process that lives, and does not notice it while its renewals are held."""
        cluster, name = self.member.cluster, other.member.name
        await evict_process(self.store, name, cluster.name, PATIENCE, known_dead=True)
        other.member.cluster.send(cluster.name, EVICTED, name.encode())
        await until(lambda: name not in cluster.peers)

    def turns(self, most: int, longest: int = 64, tool: str = "tool") -> SharedSemaphore:
        return self.slots.semaphore_for(ConcurrencyLimit(tool, most, longest))

    async def taken(self) -> list[str]:
        return [item.key for item in await scan_all(self.store, "tool/") if "/slots/" in item.key]

    async def wait_for_queue(self, number: int = 1) -> None:
        """Wait until so many processes are queued."""
        while sum("/waiting/" in item.key for item in await scan_all(self.store, "tool/")) != number:
            await asyncio.sleep(0.001)


Begin = Callable[..., Any]


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Begin]:
    made: list[Process] = []

    async def begin(clock: Clock | None = None) -> Process:
        made.append(Process(tmp_path / "shared.db", clock or WallClock()))
        await made[-1].open()
        return made[-1]

    yield begin
    for one in made:
        await one.slots.close()
        await one.member.cluster.leave()
        await one.store.close()


async def settled(one: Process) -> None:
    """Wait until all releases are complete."""
    while one.slots._background:
        await asyncio.wait(one.slots._background)


@pytest.mark.row("T18")
async def test_limit_holds_across_processes_and_all_calls_run(process: Begin) -> None:
    running, most, served = 0, 0, 0

    async def call(turns: SharedSemaphore) -> None:
        nonlocal running, most, served
        turn = await turns.acquire()
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        served += 1
        turns.release(turn)

    all_turns = [(await process()).turns(3) for _ in range(3)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(call(turns) for turns in all_turns for _ in range(20)))
    assert (most, served) == (3, 60)


@pytest.mark.row("T18")
async def test_waiter_gets_permit_released_by_another_process(process: Begin) -> None:
    one, other = await process(), await process()
    other.slots.wall_clock = ManualClock(start=time.time())  # so that it polls on notification only
    turn = await one.turns(1).acquire()
    waiting = asyncio.create_task(other.turns(1).acquire())
    await one.wait_for_queue()
    assert not waiting.done()
    one.turns(1).release(turn)
    other.turns(1).release(await asyncio.wait_for(waiting, PATIENCE))
    await settled(other)
    assert await scan_all(one.store, "tool/") == []


@pytest.mark.row("T18")
async def test_concurrent_calls_acquire_permits_in_one_commit(process: Begin) -> None:
    one = await process()
    turns = await asyncio.gather(*(one.turns(4).acquire() for _ in range(4)))
    assert len({turn.version for turn in turns}) == 1
    assert len(await one.taken()) == 4


@pytest.mark.row("T18")
async def test_queue_limit_is_per_process(process: Begin) -> None:
    one, other = await process(), await process()
    turn = await one.turns(1, 1).acquire()
    waiting = [asyncio.create_task(each.turns(1, 1).acquire()) for each in (one, other)]
    await one.wait_for_queue(2)
    for each in (one, other):
        with pytest.raises(TooManyCalls, match="queue is full"):
            await each.turns(1, 1).acquire()
    one.turns(1, 1).release(turn)
    for done in asyncio.as_completed(waiting, timeout=PATIENCE):
        one.turns(1, 1).release(await done)


@pytest.mark.row("T18")
async def test_last_of_concurrent_waiters_are_rejected(process: Begin) -> None:
    turns = (await process()).turns(2, 1)
    calls = [asyncio.create_task(turns.acquire()) for _ in range(5)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
    while len(done) < 4:
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [isinstance(call.exception(), TooManyCalls) for call in calls if call in done] == [False, False, True, True]
    assert waiting == {calls[2]}
    turns.release(calls[0].result())
    await asyncio.wait_for(calls[2], PATIENCE)


@pytest.mark.row("T18")
async def test_rejected_process_does_not_block_itself_later(process: Begin) -> None:
    one, other = await process(), await process()
    for _ in range(20):
        turn = await one.turns(1).acquire()
        waiting = asyncio.create_task(other.turns(1).acquire())
        await one.wait_for_queue()
        waiting.cancel()
        one.slots.delete_later(turn.key, turn.holder_id, turn.version)
        await settled(one)
        other.turns(1).release(await asyncio.wait_for(other.turns(1, 0).acquire(), PATIENCE))
        await settled(other)


@pytest.mark.row("T18")
async def test_semaphores_are_per_tool_and_server(process: Begin) -> None:
    one = await process()
    other = SharedSemaphores(one.store, WallClock(), "another server", one.member.cluster, SECONDS)
    apart = [one.turns(1), one.turns(1, tool="another tool"), other.semaphore_for(ConcurrencyLimit("tool", 1, 64))]
    taken = [await asyncio.wait_for(turns.acquire(), PATIENCE) for turns in apart]
    for turns, turn in zip(apart, taken, strict=True):
        turns.release(turn)
    await other.close()


@pytest.mark.row("T18")
@pytest.mark.parametrize("waits", [True, False])
async def test_permits_of_killed_process_are_free_at_once(process: Begin, waits: bool) -> None:
    killed, other = await process(), await process()
    await killed.turns(2).acquire()
    await killed.turns(2).acquire()
    if not waits:
        await killed.member.die_silently()
    waiting = [asyncio.create_task(other.turns(2).acquire()) for _ in range(2)]
    if waits:
        await other.wait_for_queue()
        await killed.member.die_silently()
    async with asyncio.timeout(PATIENCE / 4):  # less than a third of the lease: no timer of the semaphore helps
        await asyncio.gather(*waiting)


@pytest.mark.row("T18")
async def test_ticket_of_killed_process_blocks_no_process(process: Begin) -> None:
    killed, one, other = await process(), await process(), await process()
    turn = await one.turns(1).acquire()
    waiting = asyncio.create_task(killed.turns(1).acquire())
    await one.wait_for_queue()
    last = asyncio.create_task(other.turns(1).acquire())
    await one.wait_for_queue(2)
    await killed.member.die_silently()
    killed.store.fail()
    one.turns(1).release(turn)
    await asyncio.wait_for(last, PATIENCE)
    waiting.cancel()


@pytest.mark.row("T18")
async def test_process_whose_clock_was_set_back_keeps_no_permit(process: Begin) -> None:
    one, other = await process(), await process()
    turn = await one.turns(1).acquire()
    waiting = asyncio.create_task(other.turns(1).acquire())
    await one.wait_for_queue()
    own = asyncio.create_task(one.turns(1).acquire())
    await one.wait_for_queue(2)
    one.slots.wall_clock = ManualClock(start=time.time() - 3600)
    one.turns(1).release(turn)
    await asyncio.wait_for(waiting, PATIENCE)
    own.cancel()


@pytest.mark.row("T18")
async def test_permits_and_tickets_are_not_renewed(process: Begin) -> None:
    clock = ManualClock(start=1_000_000.0)
    one, other = await process(clock), await process(clock)
    await one.turns(1).acquire()
    waiting = asyncio.create_task(other.turns(1).acquire())
    await one.wait_for_queue()
    before = await scan_all(one.store, "tool/")
    for _ in range(6):
        for each in (one, other):
            await each.member.beat(SECONDS / 12)
    assert await scan_all(one.store, "tool/") == before
    assert not waiting.done()


@pytest.mark.row("T18")
async def test_evicted_process_does_not_release_foreign_permit(process: Begin) -> None:
    paused, other = await process(), await process()
    mine = await paused.turns(1).acquire()
    paused.store.hold("renew")
    await other.evict(paused)
    theirs = await asyncio.wait_for(other.turns(1).acquire(), PATIENCE)
    paused.turns(1).release(mine)
    await settled(paused)
    assert await other.taken() == [theirs.key]


@pytest.mark.row("T18")
async def test_evicted_process_drops_its_permit_and_its_ticket(process: Begin) -> None:
    one, other = await process(), await process()
    former = one.member.name
    mine = await one.turns(1).acquire()
    waiting = asyncio.create_task(one.turns(1).acquire())
    await other.wait_for_queue()
    await other.evict(one)
    await until(lambda: one.member.name != former)
    again = await asyncio.wait_for(waiting, PATIENCE)  # under its new name
    assert (mine.owner, again.owner) == (former, one.member.name)
    one.turns(1).release(mine)
    await settled(one)
    [item] = await scan_all(one.store, "tool/")
    assert item.value == again.holder_id


@pytest.mark.row("T18")
async def test_process_that_may_be_evicted_acquires_no_permit(process: Begin) -> None:
    clock = ManualClock(start=1_000_000.0)
    one = await process(clock)
    one.store.fail("renew")
    clock.advance(SECONDS)
    with pytest.raises(Refusal, match="try again later"):
        await one.turns(1).acquire()
    assert await one.taken() == []


@pytest.mark.row("T18")
async def test_process_that_may_be_evicted_passes_no_permit_on(process: Begin) -> None:
    clock = ManualClock(start=1_000_000.0)
    one = await process(clock)
    one.store.fail("renew")
    clock.advance(one.member.cluster.membership.lease.valid_until - clock.now() - 0.1)
    fault = one.store.hold("commit", key="tool/", times=1)
    waiting = asyncio.create_task(one.turns(1).acquire())
    await fault.reached.wait()
    clock.advance(0.2)
    fault.lift()  # as if the process was suspended before the reply arrived
    with pytest.raises(Refusal, match="try again later"):
        await asyncio.wait_for(waiting, PATIENCE)
    await settled(one)
    assert await one.taken() == []


@pytest.mark.row("T18")
async def test_last_waiter_that_leaves_during_an_attempt_harms_no_later_call(process: Begin) -> None:
    one = await process()
    fault = one.store.hold("scan", times=1)
    leaving = asyncio.create_task(one.turns(1).acquire())
    await fault.reached.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    attempt = one.turns(1)._acquire_task
    assert attempt is not None
    fault.lift()
    await asyncio.wait_for(attempt, PATIENCE)
    await asyncio.wait_for(one.turns(1).acquire(), PATIENCE)


@pytest.mark.row("T18")
async def test_permit_of_an_older_release_is_held_until_it_expires(process: Begin) -> None:
    clock = ManualClock(start=1_000_000.0)
    one = await process(clock)
    key = f"{one.turns(1)._permit_prefix}000000"
    await one.store.commit([Put(key, b"0123456789abcdef-0", clock.now() + 5.0)])
    with pytest.raises(TooManyCalls):
        await one.turns(1, 0).acquire()
    waiting = asyncio.create_task(one.turns(1).acquire())
    await one.wait_for_queue()
    clock.advance(4.9)
    assert await one.taken() == [key]
    clock.advance(0.2)
    await asyncio.wait_for(waiting, PATIENCE)


@pytest.mark.row("T18")
async def test_permit_is_released_after_a_store_outage(process: Begin) -> None:
    one = await process()
    turn = await one.turns(1).acquire()
    fault = one.store.fail("commit", key="tool/")
    one.turns(1).release(turn)
    await fault.reached.wait()
    fault.lift()
    await settled(one)
    assert await scan_all(one.store, "tool/") == []


@pytest.mark.row("T18")
async def test_unconfirmed_permit_is_deleted(process: Begin) -> None:
    one = await process()
    one.store.fail("commit", key="tool/", done=True, times=1)
    with pytest.raises(Refusal, match="try again later"):
        await one.turns(1).acquire()
    await settled(one)
    assert await scan_all(one.store, "tool/") == []


@pytest.mark.row("T18")
async def test_check_of_owners_is_repeated_after_a_store_outage(process: Begin) -> None:
    killed, other = await process(), await process()
    await killed.turns(1).acquire()
    fault = other.store.fail("acquire")
    await killed.member.die_silently()
    waiting = asyncio.create_task(other.turns(1).acquire())
    await fault.reached.wait()
    await other.wait_for_queue()
    fault.lift()
    other.turns(1).check_owners()
    await asyncio.wait_for(waiting, PATIENCE)


@pytest.mark.row("T18")
async def test_busy_process_does_not_starve_others(process: Begin) -> None:
    clock = ManualClock()
    busy, other = await process(clock), await process(clock)
    turn: Permit | None = await busy.turns(1).acquire()
    waiting = asyncio.create_task(other.turns(1).acquire())
    await other.wait_for_queue()
    handed_on = 0
    async with asyncio.timeout(PATIENCE):
        while not waiting.done():
            following = asyncio.create_task(busy.turns(1).acquire())
            await asyncio.sleep(0)
            clock.advance(0.1)
            if turn is not None:
                busy.turns(1).release(turn)
            turn = None
            for _ in range(50):
                await asyncio.sleep(0.001)
                if following.done():
                    turn, handed_on = following.result(), handed_on + 1
                    break
                if waiting.done():
                    following.cancel()
                    break
    assert 5 <= handed_on <= 15


@pytest.mark.row("T18")
async def test_abandoned_permit_is_released(process: Begin) -> None:
    one = await process()
    turns = one.turns(1)
    calls = [asyncio.create_task(turns.acquire()) for _ in range(2)]
    turn = await calls[0]
    await one.wait_for_queue()
    turns.release(turn)
    calls[1].cancel()
    await asyncio.wait(calls)
    await settled(one)
    assert await scan_all(one.store, "tool/") == []


@pytest.mark.row("T18")
async def test_calls_are_rejected_while_store_is_unavailable(process: Begin) -> None:
    one = await process()
    await one.store.close()
    with pytest.raises(Refusal, match="try again later"):
        await one.turns(1).acquire()


@pytest.mark.row("T18")
async def test_two_servers_on_one_file_share_a_tool_limit(tmp_path: Path) -> None:
    began: asyncio.Queue[str] = asyncio.Queue()
    go = asyncio.Event()

    def made(name: str, most: int) -> Server:
        server = Server("t", observers=[], store=SqliteStore(tmp_path / "shared.db"))

        @server.tool(max_concurrency=most, max_queue=0)
        async def tool() -> str:
            began.put_nowait(name)
            await go.wait()
            return name

        return server

    servers = [made("one", 1), made("other", 1)]
    for server in servers:
        await server.start()
    async with RawPeer(servers[0]) as peer, RawPeer(servers[1]) as other:
        await peer.initialize()
        await other.initialize()
        first = peer.call("tools/call", {"name": "tool"})
        assert await began.get() == "one"
        refused = await other.request("tools/call", {"name": "tool"})
        assert refused["result"]["_meta"]["trunkline/error"]["kind"] == "maximum_concurrent_tools_exceeded"
        go.set()
        assert (await peer.answer_to(first))["result"]["content"][0]["text"] == "one"
    for server in servers:
        await server.aclose()
