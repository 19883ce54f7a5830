"""Delivery of facts to observers."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Context, Server, Settings, facts
from trunkline.facts import (
    CallEnded,
    CallStarted,
    Closed,
    Connected,
    Dropped,
    Fact,
    HandlerFailed,
    Observers,
    PhaseChanged,
    PromptStep,
    Received,
    ShutdownStep,
    SubscriptionStep,
)
from trunkline.testing import RawPeer, RecordingObserver

CLOSED = Closed(connection=1, at=0.0, reason="x")
FAILED = HandlerFailed(connection=1, at=0.0, request=1, method="m", reference="r", error=ValueError())


class FailuresOnly(RecordingObserver):
    failures_only = True


class Raising:
    immediate = True

    def on(self, fact: Fact) -> None:
        raise RuntimeError("an observer's own fault")


def test_observers_receive_facts_in_order() -> None:
    one, other = RecordingObserver(), RecordingObserver()
    observers = Observers([one, other])
    observers.on(CLOSED)
    observers.on(FAILED)
    assert one.facts == other.facts == [CLOSED, FAILED]


def test_observer_exceptions_are_isolated_and_counted() -> None:
    after = RecordingObserver()
    observers = Observers([Raising(), after])
    observers.on(CLOSED)
    assert after.facts == [CLOSED]
    assert observers.failures == 1


def test_failures_only_observer_gets_failures_only() -> None:
    observer = FailuresOnly()
    observers = Observers([observer])
    observers.on(CLOSED)
    observers.on(FAILED)
    assert observer.facts == [FAILED]


def test_observers_are_truthy_if_one_wants_all_facts() -> None:
    assert not Observers()
    assert not Observers([FailuresOnly()])
    assert Observers([FailuresOnly(), RecordingObserver()])


def test_failures_are_delivered_if_any_observer_exists() -> None:
    assert not Observers().hear_failures
    assert Observers([FailuresOnly()]).hear_failures


# --- slow observers --------------------------------------------------------------------------------------------------


class SlowObserver:
    """Records facts, each when the test releases it."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.threads: set[int] = set()
        self.go_on = threading.Semaphore(0)

    def on(self, fact: Fact) -> None:
        assert self.go_on.acquire(timeout=PATIENCE)
        self.threads.add(threading.get_ident())
        self.facts.append(fact)


def numbered(number: int) -> Fact:
    return Received(connection=1, at=0.0, count=number)


async def test_slow_observer_does_not_delay_calls() -> None:
    slow = SlowObserver()
    server = Server("t", observers=[slow])
    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(3):
            assert await peer.result("ping") == {}
        assert slow.facts == []
    slow.go_on.release(1000)
    await server.aclose()
    assert [fact.outcome for fact in slow.facts if isinstance(fact, CallEnded)] == ["ok"] * 4
    assert isinstance(slow.facts[0], Connected)
    assert isinstance(slow.facts[-1], ShutdownStep)


async def test_closing_client_delivers_queued_facts() -> None:
    slow, server = SlowObserver(), Server("t", observers=[])
    async with Client(server, observers=[slow]) as client:
        await client.ping()
        assert slow.facts == []
        slow.go_on.release(1000)
    assert isinstance(slow.facts[-1], Closed | PhaseChanged)


async def test_facts_are_delivered_in_order_on_thread() -> None:
    slow = SlowObserver()
    observers = Observers([slow])
    facts = [numbered(number) for number in range(100)]
    for fact in facts:
        observers.on(fact)
    slow.go_on.release(100)
    await observers.drain(PATIENCE)
    assert slow.facts == facts
    assert len(slow.threads) == 1
    assert threading.get_ident() not in slow.threads
    await observers.drain(PATIENCE)  # there is nothing more
    observers.on(CLOSED)
    slow.go_on.release()
    await observers.drain(PATIENCE)
    assert slow.facts[-1] is CLOSED


async def test_facts_over_queue_limit_are_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowObserver()
    observers = Observers([slow])
    for number in range(10_100):
        observers.on(numbered(number))
    assert 99 <= observers.dropped <= 100  # one may have left the queue
    slow.go_on.release(20_000)
    await observers.drain(PATIENCE)
    assert len(slow.facts) == 10_100 - observers.dropped
    assert slow.facts == [numbered(number) for number in range(len(slow.facts))]
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "observers are too slow: 10000 facts wait for them, and further ones are dropped"
    assert last == f"{observers.dropped} facts were dropped while observers were too slow"


async def test_shutdown_waits_for_observers_within_stage_timeout() -> None:
    slow = SlowObserver()
    server = Server("t", observers=[slow], settings=Settings(stage_timeout=0.05))
    async with RawPeer(server) as peer:
        await peer.initialize()
    async with asyncio.timeout(PATIENCE):
        await server.aclose()
    assert slow.facts == []
    slow.go_on.release(1000)


async def test_threaded_observer_exceptions_are_counted() -> None:
    class Abort(BaseException):
        pass

    class Failing:
        def on(self, fact: Fact) -> None:
            raise Abort

    slow = SlowObserver()
    slow.go_on.release(2)
    observers = Observers([Failing(), slow])
    observers.on(CLOSED)
    observers.on(FAILED)
    await observers.drain(PATIENCE)
    assert slow.facts == [CLOSED, FAILED]
    assert observers.failures == 2


async def test_threaded_failures_only_observer_gets_failures_only() -> None:
    class Failures(SlowObserver):
        failures_only = True

    slow = Failures()
    slow.go_on.release(2)
    observers = Observers([slow])
    assert not observers
    observers.on(CLOSED)
    observers.on(FAILED)
    await observers.drain(PATIENCE)
    assert slow.facts == [FAILED]
    assert observers.dropped == Observers().dropped == 0


async def test_observer_thread_ends_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_IDLE_TIMEOUT", 0.01)
    slow = SlowObserver()
    observers = Observers([slow])
    slow.go_on.release(2)
    for _ in range(2):
        observers.on(CLOSED)
        async with asyncio.timeout(PATIENCE):
            while any(thread.name == "trunkline-observers" for thread in threading.enumerate()):
                await asyncio.sleep(0.001)
    assert slow.facts == [CLOSED, CLOSED]


# --- costs without observers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("listening", [False, True])
async def test_no_fact_is_created_without_observers(listening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_facts(monkeypatch)
    server = Server("t", observers=[RecordingObserver()] if listening else [])
    server.add_prompt("Hello {name}", name="hello")
    server.add_resource("doc://1", "text")
    began = asyncio.Event()

    @server.tool
    async def divide(a: int, b: int) -> float:
        return a / b

    @server.tool
    async def wait(ctx: Context) -> None:
        ctx.progress(2)
        ctx.progress(1)  # dropped
        began.set()
        await asyncio.Event().wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        for b in (1, 0):
            await peer.request("tools/call", {"name": "divide", "arguments": {"a": 1, "b": b}})
        await peer.request("prompts/get", {"name": "hello", "arguments": {"name": "you"}})
        await peer.request("resources/subscribe", {"uri": "doc://1"})
        peer.send("{")
        waiting = peer.call("tools/call", {"name": "wait"})
        await began.wait()
        peer.notify("notifications/cancelled", {"requestId": waiting})
        await peer.quiet()
    expected = {Connected, Received, PhaseChanged, CallStarted, CallEnded, HandlerFailed, Dropped}
    expected |= {PromptStep, SubscriptionStep, Closed}
    assert made == (expected if listening else set())


def count_facts(monkeypatch: pytest.MonkeyPatch) -> set[type[Fact]]:
    """Make the constructors of all facts record their calls."""
    made: set[type[Fact]] = set()

    def noting(kind: type[Fact]) -> Callable[..., Fact]:
        def make(**members: Any) -> Fact:
            made.add(kind)
            return kind(**members)

        return make

    makers = [module for name, module in sys.modules.items() if name.startswith(("trunkline.server", "trunkline.rpc"))]
    for module in makers:
        for name, kind in list(vars(module).items()):
            if isinstance(kind, type) and issubclass(kind, Fact):
                monkeypatch.setattr(module, name, noting(kind))
    return made
