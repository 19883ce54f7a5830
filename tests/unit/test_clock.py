"""The clock of a loop, the time of day, and a clock that is moved by hand."""

import asyncio
import time

from tests.limits import PATIENCE

from trunkline.clock import LoopClock, WallClock
from trunkline.testing import ManualClock


async def test_the_clock_of_a_loop_tells_its_time_and_calls_back_in_order() -> None:
    loop = asyncio.get_running_loop()
    clock, seen, done = LoopClock(loop), [], asyncio.Event()
    now = clock.now()
    assert abs(now - loop.time()) < 5
    clock.call_at(now + 0.002, done.set)
    clock.call_at(now + 0.001, lambda: seen.append("called"))
    clock.call_at(now + 0.001, lambda: seen.append("called off")).cancel()
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == ["called"]


async def test_the_time_of_day_calls_back_too() -> None:
    clock, seen, done = WallClock(), [], asyncio.Event()
    assert abs(clock.now() - time.time()) < 5
    clock.call_at(clock.now() + 0.01, done.set)
    clock.call_at(clock.now() - 100, lambda: seen.append("late"))
    clock.call_at(clock.now(), lambda: seen.append("called off")).cancel()
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == ["late"]


def test_a_clock_moved_by_hand_does_what_falls_due_in_order_and_at_its_time() -> None:
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


def test_what_is_set_while_the_clock_moves_happens_in_the_same_move_if_it_falls_due() -> None:
    clock, seen = ManualClock(start=0), []
    clock.call_at(1, lambda: clock.call_at(2, lambda: seen.append(clock.now())))
    clock.advance(5)
    assert (seen, clock.now()) == ([2], 5)


def test_what_was_due_before_it_was_set_happens_at_the_next_move_without_turning_the_clock_back() -> None:
    clock, seen = ManualClock(start=10), []
    clock.call_at(1, lambda: seen.append(clock.now()))
    clock.advance(0)
    assert seen == [10]
