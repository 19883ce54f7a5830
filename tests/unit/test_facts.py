"""Who is told what happened."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from trunkline import Context, Server
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
    SubscriptionStep,
)
from trunkline.testing import RawPeer, RecordingObserver

CLOSED = Closed(connection=1, at=0.0, reason="x")
FAILED = HandlerFailed(connection=1, at=0.0, request=1, method="m", reference="r", error=ValueError())


class FailuresOnly(RecordingObserver):
    failures_only = True


class Raising:
    def on(self, fact: Fact) -> None:
        raise RuntimeError("an observer's own fault")


def test_every_observer_is_told_in_order() -> None:
    one, other = RecordingObserver(), RecordingObserver()
    observers = Observers([one, other])
    observers.on(CLOSED)
    observers.on(FAILED)
    assert one.facts == other.facts == [CLOSED, FAILED]


def test_an_observer_that_raises_harms_nobody_and_is_counted() -> None:
    after = RecordingObserver()
    observers = Observers([Raising(), after])
    observers.on(CLOSED)
    assert after.facts == [CLOSED]
    assert observers.failures == 1


def test_one_who_wants_failures_only_hears_of_nothing_else() -> None:
    observer = FailuresOnly()
    observers = Observers([observer])
    observers.on(CLOSED)
    observers.on(FAILED)
    assert observer.facts == [FAILED]


def test_observers_are_true_when_somebody_listens_to_everything() -> None:
    assert not Observers()
    assert not Observers([FailuresOnly()])
    assert Observers([FailuresOnly(), RecordingObserver()])


def test_observers_hear_of_failures_when_anybody_is_there() -> None:
    assert not Observers().hear_failures
    assert Observers([FailuresOnly()]).hear_failures


# --- what it costs where nobody listens ----------------------------------------------------------------------------


@pytest.mark.parametrize("listening", [False, True])
async def test_no_fact_is_made_where_nobody_listens(listening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Lets whoever makes facts, of any kind, note that it does."""
    made: set[type[Fact]] = set()

    def noting(kind: type[Fact]) -> Callable[..., Fact]:
        def make(**members: Any) -> Fact:
            made.add(kind)
            return kind(**members)

        return make

    makers = [module for name, module in sys.modules.items() if name.startswith(("trunkline.server", "trunkline.conv"))]
    for module in makers:
        for name, kind in list(vars(module).items()):
            if isinstance(kind, type) and issubclass(kind, Fact):
                monkeypatch.setattr(module, name, noting(kind))
    return made
