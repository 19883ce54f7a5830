"""The loop clock, the wall clock, and the manual clock."""

import asyncio
import time

from tests.limits import PATIENCE

from trunkline.clock import LoopClock, WallClock
from trunkline.testing import ManualClock


async def test_loop_clock_calls_back_in_order() -> None:
    loop = asyncio.get_running_loop()
    clock, seen, done = LoopClock(loop), [], asyncio.Event()
    now = clock.now()
    assert abs(now - loop.time()) < 5
    clock.call_at(now + 0.002, done.set)
    clock.call_at(now + 0.001, lambda: seen.append("called"))
    clock.call_at(now + 0.001, lambda: seen.append("called off")).cancel()
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == ["called"]


async def test_wall_clock_calls_back() -> None:
    clock, seen, done = WallClock(), [], asyncio.Event()
    assert abs(clock.now() - time.time()) < 5
    clock.call_at(clock.now() + 0.01, done.set)
    clock.call_at(clock.now() - 100, lambda: seen.append("late"))
    clock.call_at(clock.now(), lambda: seen.append("called off")).cancel()
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == ["late"]


def test_manual_clock_runs_due_timers_in_order() -> None:
    clock, seen = ManualClock(start=0), []
    for when in (3, 1, 2, 2):
        clock.call_at(when, lambda when=when: seen.append((when, clock.now())))
    clock.call_at(2, lambda: seen.append("never")).cancel()
    assert clock.waiting == 4
    clock.advance(0.5)
    assert (seen, clock.now()) == ([], 0.5)
    clock.advance(2)
    assert (seen, clock.now()) == ([(1, 1), (2, 2), (2, 2)], 2.5)
    clock.advance(0.5)
    assert seen[3:] == [(3, 3)]
    assert clock.waiting == 0


def test_timer_set_during_advance_runs_if_due() -> None:
    clock, seen = ManualClock(start=0), []
    clock.call_at(1, lambda: clock.call_at(2, lambda: seen.append(clock.now())))
    clock.advance(5)
    assert (seen, clock.now()) == ([2], 5)


def test_overdue_timer_runs_without_moving_clock_back() -> None:
    clock, seen = ManualClock(start=10), []
    clock.call_at(1, lambda: seen.append(clock.now()))
    clock.advance(0)
    assert seen == [10]
