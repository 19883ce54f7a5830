"""A tool's slots that processes share: each with its own store object, all on one file."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Server
from trunkline.clock import Clock, WallClock
from trunkline.errors import Refusal
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, TooManyCalls
from trunkline.server.limits.shared_semaphore import Permit, SharedSemaphore, SharedSemaphores, scan_all
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import ManualClock, RawPeer

LEASE = 5.0


class Process:
    """One process's handle of a tool."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.store = SqliteStore(path, clock=clock, watch_every=0.005, synchronous="NORMAL")
        self.slots = SharedSemaphores(self.store, clock, "server", LEASE)

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
        await made[-1].store.open()
        return made[-1]

    yield begin
    for one in made:
        await one.slots.close()
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
        one.slots.run_in_background(one.turns(1)._release_permit(turn))
        await settled(one)
        other.turns(1).release(await asyncio.wait_for(other.turns(1, 0).acquire(), PATIENCE))
        await settled(other)


@pytest.mark.row("T18")
async def test_semaphores_are_per_tool_and_server(process: Begin) -> None:
    one = await process()
    other = SharedSemaphores(one.store, WallClock(), "another server", LEASE)
    apart = [one.turns(1), one.turns(1, tool="another tool"), other.semaphore_for(ConcurrencyLimit("tool", 1, 64))]
    taken = [await asyncio.wait_for(turns.acquire(), PATIENCE) for turns in apart]
    for turns, turn in zip(apart, taken, strict=True):
        turns.release(turn)
    await other.close()


@pytest.mark.row("T18")
async def test_permits_of_dead_process_expire(process: Begin) -> None:
    alive = ManualClock()
    dead, other = await process(ManualClock()), await process(alive)
    await dead.turns(1).acquire()
    waiting = asyncio.create_task(other.turns(1).acquire())
    await other.wait_for_queue()
    while alive.now() < 1000 + LEASE - 0.2:
        alive.advance(0.1)
        await asyncio.sleep(0)
    assert len(await other.taken()) == 1
    assert not waiting.done()
    async with asyncio.timeout(PATIENCE):
        while not waiting.done():
            alive.advance(0.1)
            await asyncio.sleep(0.001)


@pytest.mark.row("T18")
async def test_long_call_renews_its_permit(process: Begin) -> None:
    clock = ManualClock()
    one, other = await process(clock), await process(clock)
    turn = await one.turns(1).acquire()
    for _ in range(20):
        clock.advance(LEASE / 2)
        await settled(one)
    with pytest.raises(TooManyCalls):
        await other.turns(1, 0).acquire()
    one.turns(1).release(turn)
    await settled(one)
    await asyncio.wait_for(other.turns(1, 0).acquire(), PATIENCE)


@pytest.mark.row("T18")
async def test_paused_process_does_not_release_foreign_permit(process: Begin) -> None:
    slow, clock = ManualClock(), ManualClock()
    sleeper, other = await process(slow), await process(clock)
    mine = await sleeper.turns(1).acquire()
    clock.advance(LEASE + 1)
    theirs = await asyncio.wait_for(other.turns(1).acquire(), PATIENCE)
    slow.advance(LEASE + 1)
    await settled(sleeper)
    assert mine.lost
    sleeper.turns(1).release(mine)
    await settled(sleeper)
    assert await other.taken() == [theirs.key]


@pytest.mark.row("T18")
async def test_paused_process_reacquires_free_permit(process: Begin) -> None:
    slow, clock = ManualClock(), ManualClock()
    sleeper, other = await process(slow), await process(clock)
    mine = await sleeper.turns(1).acquire()
    clock.advance(LEASE + 1)
    assert await other.taken() == []
    slow.advance(LEASE + 1)
    await settled(sleeper)
    assert not mine.lost
    assert await other.taken() == [mine.key]


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
