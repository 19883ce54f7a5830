"""Periodic polling, one poll after the other."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from msgspec import UNSET
from tests.limits import PATIENCE

from trunkline.rpc.threads import ThreadPool
from trunkline.server.files.polling import Poller
from trunkline.testing import ManualClock


class ManualPoll:
    """A poll of states that the test sets, and which waits for the test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.threads = ThreadPool(asyncio.get_running_loop(), 2)
        self.poll = Poller(lambda: SimpleNamespace(clock=self.clock, threads=self.threads), 1.0)  # type: ignore[arg-type,return-value]
        self.states: dict[str, Any] = {}
        self.told: list[str] = []
        self.looks: list[str] = []
        self.looking, self.go = threading.Event(), threading.Event()
        self.go.set()

    def see(self, key: str, state: Any) -> None:
        self.states[key] = state
        self.poll.watch(key, state, lambda before: self._look(key), lambda: self.told.append(key))

    def _look(self, key: str) -> Any:
        self.looks.append(key)
        go = self.go
        self.looking.set()
        go.wait(PATIENCE)
        return self.states[key]

    async def settle(self) -> None:
        """Wait until the current poll has ended and been reported."""
        self.go.set()
        while self.poll._job is not None:
            await asyncio.sleep(0)


async def begun() -> ManualPoll:
    """A poll that is under way."""
    watched = ManualPoll()
    watched.go.clear()
    watched.see("a", 1)
    watched.clock.advance(1)
    assert await asyncio.to_thread(watched.looking.wait, 10)
    return watched


async def test_change_is_reported_once() -> None:
    watched = ManualPoll()
    watched.see("a", 1)
    watched.see("b", 1)
    watched.states["b"] = 2
    for expected in (["b"], ["b"]):
        watched.clock.advance(1)
        await watched.settle()
        assert watched.told == expected
    assert watched.looks == ["a", "b", "a", "b"]


async def test_no_polling_without_targets() -> None:
    watched = ManualPoll()
    watched.see("a", 1)
    assert watched.clock.waiting == 1
    watched.poll.unwatch("a", "never seen")
    assert watched.clock.waiting == 0


async def test_polls_do_not_overlap() -> None:
    watched = await begun()
    watched.see("b", 1)
    assert watched.clock.waiting == 0
    await watched.settle()
    assert watched.clock.waiting == 1


async def test_poll_finished_after_close_changes_nothing() -> None:
    watched = await begun()
    watched.poll.close()
    first, watched.go = watched.go, threading.Event()
    watched.looking.clear()
    watched.see("a", 1)
    watched.clock.advance(1)  # a second poll, while the first one is under way
    assert await asyncio.to_thread(watched.looking.wait, 10)
    first.set()
    await watched.threads.run(lambda: None)
    assert watched.clock.waiting == 0  # the second one goes on
    await watched.settle()
    assert watched.clock.waiting == 1
    assert watched.told == []


async def test_state_set_during_a_poll_wins() -> None:
    watched = await begun()
    watched.see("a", 2)
    assert watched.told == ["a"]
    watched.states["a"] = 3  # which the poll, that began before, finds
    await watched.settle()
    assert watched.told == ["a"]
    watched.clock.advance(1)
    await watched.settle()
    assert watched.told == ["a", "a"]


async def test_vanished_target_is_not_polled_again() -> None:
    watched = ManualPoll()
    watched.see("a", 1)
    watched.states["a"] = UNSET
    watched.clock.advance(1)
    await watched.settle()
    assert watched.told == []
    assert watched.clock.waiting == 0
