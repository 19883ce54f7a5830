"""Delivery of facts to observers."""

import asyncio
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import new_class
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Context, Server, Settings, TaskPolicy, ToolError, fact_queue, facts
from trunkline.errors import PeerError
from trunkline.facts import (
    CallEnded,
    CallStarted,
    CallStep,
    Closed,
    Connected,
    Dropped,
    Fact,
    HandlerFailed,
    Observers,
    PhaseChanged,
    PromptStep,
    Received,
    RequestEnded,
    ShutdownStep,
    SubscriptionStep,
    TaskRunEnded,
)
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

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
    (message,) = (record.getMessage() for record in caplog.records)  # the next one after a minute
    assert message == "observer SlowObserver is too slow: 10000 facts wait for it, and 1 were dropped so far"


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
    monkeypatch.setattr(fact_queue, "_IDLE_TIMEOUT", 0.01)
    slow = SlowObserver()
    observers = Observers([slow])
    slow.go_on.release(2)
    before = set(threading.enumerate())
    for _ in range(2):
        observers.on(CLOSED)
        async with asyncio.timeout(PATIENCE):
            while set(threading.enumerate()) - before:
                await asyncio.sleep(0.001)
    assert slow.facts == [CLOSED, CLOSED]


# --- faults of observers --------------------------------------------------------------------------------------------


class Hanging:
    """Never returns while the test runs."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def on(self, fact: Fact) -> None:
        self.released.wait(PATIENCE)


async def call_often(server: Server, times: int) -> None:
    """Call a tool, and expect each call to succeed."""
    async with RawPeer(server) as peer:
        await peer.initialize()
        for number in range(times):
            result = await peer.result("tools/call", {"name": "double", "arguments": {"n": number}})
            assert result["structuredContent"] == {"result": 2 * number}


def doubling(*observers: Any) -> Server:
    server = Server("t", observers=observers, settings=Settings(stage_timeout=0.05))

    @server.tool
    async def double(n: int) -> int:
        return 2 * n

    return server


@pytest.mark.row("V06", "U03")
async def test_calls_succeed_if_observer_always_raises(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def on(self, fact: Fact) -> None:
            raise OSError("no disk space left")

    server = doubling(Failing())
    await call_often(server, 100)
    await server.observers.drain(PATIENCE)
    assert server.observers.failures >= 100
    (record,) = (record for record in caplog.records if record.name == "trunkline")  # not one for each failure
    assert record.getMessage() == "observer Failing failed, 1 times so far; calls continue"
    assert record.exc_info is not None


@pytest.mark.row("V06", "U03")
async def test_hanging_observer_stops_neither_calls_nor_other_observers() -> None:
    hanging, slow = Hanging(), SlowObserver()
    slow.go_on.release(100_000)
    server = doubling(hanging, slow)
    await call_often(server, 100)
    while sum(isinstance(fact, CallEnded) for fact in slow.facts) < 101:
        await asyncio.sleep(0.001)
    hanging.released.set()
    await server.aclose()


@pytest.mark.row("V06")
async def test_flooded_observer_costs_dropped_facts_and_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_queue, "MAX_QUEUED", 10)
    hanging = Hanging()
    server = doubling(hanging)
    await call_often(server, 100)
    assert server.observers.dropped > 0
    hanging.released.set()
    await server.aclose()


@pytest.mark.row("V06")
async def test_blocking_immediate_observer_is_detected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(facts, "_LONGEST_IMMEDIATE", -1.0)
    observer = RecordingObserver()
    server = doubling(observer)
    await call_often(server, 3)
    assert server.observers.blocked == len(observer.facts)
    (record,) = (record for record in caplog.records if record.name == "trunkline")
    assert record.getMessage().startswith(
        "observer RecordingObserver blocked its caller for 0.0 s; without `immediate`"
    )


def test_forked_process_delivers_with_thread_of_its_own(tmp_path: Path) -> None:
    class ToFile:
        def on(self, fact: Fact) -> None:
            with (tmp_path / "facts").open("a") as file:
                file.write(f"{os.getpid()}\n")

    observers = Observers([ToFile()])
    observers.on(CLOSED)
    asyncio.run(observers.drain(PATIENCE))
    child = os.fork()
    if child == 0:
        observers.on(CLOSED)
        asyncio.run(observers.drain(PATIENCE))
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "facts").read_text().split() == [str(os.getpid()), str(child)]


# --- facts about calls ----------------------------------------------------------------------------------------------


class Steps(RecordingObserver):
    """Records the steps of calls, and how they end."""

    wants = (CallStep, CallEnded)


@pytest.mark.row("P16")
async def test_steps_of_a_tool_call_are_reported_in_order() -> None:
    observer = Steps()
    server = Server("t", observers=[observer])

    @server.tool
    async def count(ctx: Context, to: int) -> int:
        for number in range(to):
            ctx.progress(number + 1, to)
        return to

    async with RawPeer(server) as peer:
        await peer.initialize()
        observer.facts.clear()
        params = {"name": "count", "arguments": {"to": 2}, "_meta": {"progressToken": "p"}}
        await peer.result("tools/call", params)
    # parse, validate and track, route, run, respond; the id is free again before the reply is sent
    steps = [fact.step for fact in observer.of(CallStep)]
    assert steps == ["received", "admitted", "started", "decoded", "progress", "progress", "ended", "sent"]
    assert isinstance(observer.facts[-1], CallEnded)  # after all its steps
    times = [fact.seconds for fact in observer.of(CallStep)]
    assert times == sorted(times)
    assert [fact.target for fact in observer.of(CallStep)] == [None] * 3 + ["count"] * 5


async def test_queued_call_reports_its_wait() -> None:
    observer, go_on = Steps(), asyncio.Event()
    server = Server("t", observers=[observer], settings=Settings(max_calls=1))

    @server.tool
    async def wait(first: bool) -> None:
        if first:
            await go_on.wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        observer.facts.clear()
        for first in (True, False):
            peer.call("tools/call", {"name": "wait", "arguments": {"first": first}}, id=f"first {first}")
        await peer.quiet()
        go_on.set()
        for first in (True, False):
            await peer.answer_to(f"first {first}")
    queued = [fact.step for fact in observer.of(CallStep) if fact.request == "first False"]
    assert queued == ["received", "admitted", "queued", "started", "decoded", "ended", "sent"]
    (ended,) = (fact for fact in observer.of(CallEnded) if fact.request == "first False")
    assert 0 < ended.wait_seconds <= ended.seconds
    assert ended.seconds == pytest.approx(ended.wait_seconds + ended.run_seconds + ended.send_seconds)


async def test_ended_call_is_described() -> None:
    observer = Steps()
    server = Server("t", observers=[observer])

    @server.tool
    async def fail(how: str) -> None:
        if how == "expected":
            raise ToolError("no")
        raise ValueError("secret")

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with RawPeer(server) as peer:
        await peer.initialize()
        arguments = {"name": "fail", "arguments": {"how": "unexpected"}, "_meta": {"traceparent": trace}}
        reply = await peer.result("tools/call", arguments)
        await peer.request("tools/call", {"name": "fail", "arguments": {"how": "expected"}})
        await peer.request("no/such")
        await peer.request("tools/call", {"name": "none"})
    unexpected, expected, refused, unknown = observer.of(CallEnded)[1:]
    assert (unexpected.method, unexpected.target, unexpected.family) == ("tools/call", "fail", "tools")
    assert (unexpected.outcome, unexpected.kind, unexpected.code) == ("failed", "tool_execution_failed", None)
    assert unexpected.reference == reply["_meta"]["trunkline/error"]["reference"]
    assert unexpected.traceparent == trace
    assert (unexpected.transport, unexpected.revision) == ("memory", "2025-11-25")
    assert unexpected.request_size is not None
    assert unexpected.request_size > len(trace)
    assert unexpected.response_size is not None
    assert unexpected.response_size > 100
    assert (expected.outcome, expected.kind, expected.reference) == ("failed", None, None)
    assert (refused.outcome, refused.method, refused.kind) == ("refused", "no/such", "method_not_found")
    assert (unknown.outcome, unknown.target, unknown.kind) == ("error", "none", "tool_not_found")


@pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is an extra")
def test_durations_are_precise_on_a_loop_that_counts_in_milliseconds() -> None:
    import uvloop

    observer = Steps()

    async def call() -> None:
        async with RawPeer(doubling(observer)) as peer:
            await peer.initialize()
            for number in range(5):
                await peer.result("tools/call", {"name": "double", "arguments": {"n": number}})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(call())
    ended = observer.of(CallEnded)
    assert all(fact.run_seconds > 0 and fact.send_seconds > 0 for fact in ended)
    assert any(fact.seconds * 1000 % 1 > 0.001 for fact in ended)


async def test_client_reports_its_requests() -> None:
    class Requests(RecordingObserver):
        wants = (RequestEnded,)

    observer = Requests()
    server = Server("t", observers=[])
    server.add_resource("doc://1", "text")
    async with Client(server, observers=[observer]) as client:
        observer.facts.clear()
        await client.read_resource("doc://1")
        with pytest.raises(PeerError):
            await client.read_resource("doc://2")
    ok, failed = (fact for fact in observer.of(RequestEnded) if fact.method == "resources/read")
    assert (ok.method, ok.target, ok.outcome, ok.family) == ("resources/read", "doc://1", "ok", "resources")
    assert ok.request_size is not None
    assert ok.response_size is not None
    assert (failed.outcome, failed.kind) == ("error", "resource_not_found")
    assert failed.code is not None


def test_observer_receives_the_facts_it_wants() -> None:
    class Some(RecordingObserver):
        wants = (Closed,)

    some, rest = Some(), RecordingObserver()
    observers = Observers([some, rest])
    assert not observers.want(CallStep)
    observers.on(CLOSED)
    observers.on(FAILED)
    assert some.facts == [CLOSED]
    assert rest.facts == [CLOSED, FAILED]
    assert not Observers([some]).hear_failures
    assert list(observers) == [some, rest]


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

    def noting(kind: type[Fact]) -> type[Fact]:
        class Noting(type(kind)):  # type: ignore[misc]
            def __call__(cls, **members: Any) -> Fact:
                made.add(kind)
                return kind(**members)

        return new_class(kind.__name__, (kind,), {"metaclass": Noting, "frozen": True, "kw_only": True})

    makers = [module for name, module in sys.modules.items() if name.startswith(("trunkline.server", "trunkline.rpc"))]
    for module in makers:
        for name, kind in list(vars(module).items()):
            if isinstance(kind, type) and issubclass(kind, Fact):
                monkeypatch.setattr(module, name, noting(kind))
    return made


async def test_failed_result_of_a_request_is_reported_as_failed() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[])

    @server.tool
    async def fail(really: bool) -> str:
        if really:
            raise ToolError("not today")
        return '"isError":true'

    async with Client(server, observers=[observer]) as client:
        for really in (True, False):
            await client.call_tool("fail", {"really": really}, raise_on_error=False)
    ended = [fact for fact in observer.of(RequestEnded) if fact.method == "tools/call"]
    assert [fact.outcome for fact in ended] == ["failed", "ok"]


async def test_error_is_reported_with_its_message_on_both_sides() -> None:
    observer, other = RecordingObserver(), RecordingObserver()
    async with Client(Server("t", observers=[other], prompts=True), observers=[observer]) as client:
        with pytest.raises(PeerError) as raised:
            await client.get_prompt("unknown")
    (sent,) = (fact for fact in observer.of(RequestEnded) if fact.method == "prompts/get")
    (served,) = (fact for fact in other.of(CallEnded) if fact.method == "prompts/get")
    assert sent.message == served.message == raised.value.message


async def test_closed_connection_reports_its_duration_and_side() -> None:
    observer, clock = RecordingObserver(), ManualClock()
    server = Server("t", observers=[observer], clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize("2025-11-25")
        clock.advance(3.0)
    (closed,) = observer.of(Closed)
    assert (closed.seconds, closed.side, closed.transport, closed.revision) == (3.0, "server", "memory", "2025-11-25")
    assert closed.failure is None


async def test_end_of_a_task_run_is_reported() -> None:
    observer, ended = RecordingObserver(), asyncio.Event()
    server = Server("t", observers=[observer])

    @server.tool(task=TaskPolicy(support="required"))
    async def work(how: str) -> str:
        if how == "fail":
            raise ToolError("not today")
        if how == "wait":
            await ended.wait()
        return how

    async with Client(server) as client:
        for how in ("succeed", "fail"):
            await (await client.start_tool("work", {"how": how})).result(raise_on_error=False)
        await (await client.start_tool("work", {"how": "wait"})).cancel()
    await server.aclose()
    runs = [(fact.tool, fact.attempt, fact.outcome) for fact in observer.of(TaskRunEnded)]
    assert runs == [("work", 1, "ok"), ("work", 1, "failed"), ("work", 1, "cancelled")]
