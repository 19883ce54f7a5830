"""A client, a server and a faulty connection between them, in any order of events; invariants that always hold.

Each call carries a unique number, which its response must echo. The server counts its effects. The test moves the
clock, so nothing waits; in the end it removes all faults, and then every call has to end.
"""

import asyncio
from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import Phase as Phases
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.limits import PATIENCE

from trunkline import Client, Server, Settings
from trunkline.errors import TrunklineError
from trunkline.facts import PhaseChanged
from trunkline.protocol.lifecycle import LIFECYCLE, Phase
from trunkline.protocol.types import ToolAnnotations
from trunkline.testing import Faults, ManualClock, RecordingObserver

pytestmark = pytest.mark.no_cover  # thousands of steps through code that other tests measure

Direction = Literal["sent", "received"]
directions = st.sampled_from(["sent", "received"])
tools = st.sampled_from(["look", "pay"])
ENDED = {Phase.CLOSED, Phase.FAILED}


class Call:
    """A tool call, and whether its caller has given it up."""

    def __init__(self, number: int, tool: str, task: "asyncio.Task[Any]") -> None:
        self.number = number
        self.tool = tool
        self.task = task
        self.cancelled = False

    def check(self, done: int) -> None:
        """Check that the outcome is consistent with the server's count of effects."""
        assert self.tool == "look" or done <= 1, f"{self} was done {done} times"
        if not self.task.done():
            return
        if self.task.cancelled():
            assert self.cancelled, f"{self} was cancelled, and not by its caller"
        elif (error := self.task.exception()) is not None:
            assert isinstance(error, TrunklineError), f"{self} raised {error!r}"
            assert str(error), f"{self} raised {error!r} without a sentence"
        else:
            assert self.task.result().data == self.number, f"{self} got the answer to {self.task.result().data}"
            assert done, f"{self} was answered, and never done"

    def __repr__(self) -> str:
        return f"call {self.number} of {self.tool}"


class ClientMachine(RuleBasedStateMachine):
    """All events that can happen to a client."""

    revision = "2025-11-25"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.run = self.runner.get_loop().run_until_complete
        self.clock = ManualClock()
        self.delays = ManualClock()  # the same time, for other components
        self.faults = Faults(clock=self.delays)
        self.observer = RecordingObserver()
        self.done: Counter[int] = Counter()
        self.calls: list[Call] = []
        self.others: list[asyncio.Task[Any]] = []  # tasks that open and close
        self.complaints: list[Any] = []  # of the event loop
        self.run(self._start())

    async def _start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))
        self.gate = asyncio.Event()
        self.server = self._server()
        self.client = Client(
            self.faults.on(self.server),
            settings=Settings(backoff_jitter=0),
            clock=self.clock,
            observers=[self.observer],
            revision=self.revision,
        )

    def _server(self) -> Server:
        server = Server("s", clock=self.clock, observers=[])

        async def work(number: int, slow: bool) -> int:
            self.done[number] += 1
            if slow:
                await self.gate.wait()
            return number

        server.add_tool(work, name="look", annotations=ToolAnnotations(read_only_hint=True))
        server.add_tool(work, name="pay")
        return server

    def act(self, action: Any = None) -> Any:
        """Run an action on the loop, and then all callbacks that do not depend on the clock."""

        async def done() -> Any:
            value = None if action is None else action()
            for _ in range(25):
                await asyncio.sleep(0)
            return value

        return self.run(done())

    def task(self, coroutine: Any) -> "asyncio.Task[Any]":
        return self.act(lambda: asyncio.get_running_loop().create_task(coroutine))

    # --- actions of callers --------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Most rules need an open client that knows its tools."""
        self.open_or_close("open")
        self.call([("look", False, None)])

    @rule(which=st.sampled_from(["open", "open", "close"]))
    def open_or_close(self, which: str) -> None:
        self.others.append(self.task(getattr(self.client, which)()))

    @rule(asked=st.lists(st.tuples(tools, st.booleans(), st.sampled_from([None, 3.0])), min_size=1, max_size=4))
    def call(self, asked: list[tuple[str, bool, float | None]]) -> None:
        if self.client.phase in ENDED:
            self.open_or_close("open")
        for tool, slow, timeout in asked:
            number = len(self.calls)
            coroutine = self.client.call_tool(tool, {"number": number, "slow": slow}, timeout=timeout)
            self.calls.append(Call(number, tool, self.task(coroutine)))

    @precondition(lambda self: any(not call.task.done() for call in self.calls))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from([call for call in self.calls if not call.task.done()]))
        call.cancelled = True
        self.act(call.task.cancel)

    @precondition(lambda self: any(not task.done() for task in self.others))
    @rule(data=st.data())
    def cancel_opening_or_closing(self, data: st.DataObject) -> None:
        self.act(data.draw(st.sampled_from([task for task in self.others if not task.done()])).cancel)

    @rule()
    def let_slow_calls_finish(self) -> None:
        self.act(lambda: (self.gate.set(), setattr(self, "gate", asyncio.Event())))

    @rule(seconds=st.sampled_from([0.5, 1, 3, 5, 30, 70]))
    def advance(self, seconds: float) -> None:
        self.act(lambda: (self.delays.advance(seconds), self.clock.advance(seconds)))

    # --- faults --------------------------------------------------------------------------------

    @rule()
    def kill(self) -> None:
        self.act(self.faults.kill)

    @rule(
        direction=directions,
        fault=st.sampled_from(["drop", "truncate", "garble", "swap", "kill", "cut"]),
        ahead=st.integers(1, 3),
    )
    def harm(self, direction: Direction, fault: str, ahead: int) -> None:
        """Damage one of the next messages."""
        getattr(self.faults, fault)(**{direction: self.faults.counts[direction] + ahead})

    @rule(direction=directions, seconds=st.sampled_from([0.5, 4, 70]))
    def delay(self, direction: Direction, seconds: float) -> None:
        self.faults.delay(seconds, **{direction: self.faults.counts[direction] + 1})

    @rule(ahead=st.integers(1, 3))
    def say_twice(self, ahead: int) -> None:
        self.faults.duplicate(received=self.faults.counts["received"] + ahead)

    @rule(method=st.sampled_from(["initialize", "notifications/initialized", "ping", "notifications/cancelled"]))
    def ask_twice(self, method: str) -> None:
        """A call that its connection duplicates would be no fault of the client."""
        self.faults.duplicate(sent=method)

    @rule(times=st.integers(1, 3))
    def refuse_to_connect(self, times: int) -> None:
        self.faults.refuse(times)

    @rule(direction=directions)
    def stall(self, direction: Direction) -> None:
        self.faults.stall(direction)

    @precondition(lambda self: self.faults.stalled)
    @rule()
    def release(self) -> None:
        self.act(lambda: self.faults.release("sent").release("received"))

    # --- invariants ----------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        self.calls_come_to_what_is_true()
        self.those_who_open_and_close_hear_of_nothing_else()
        self.phases_follow_the_table()
        assert not self.complaints  # of the loop's

    def calls_come_to_what_is_true(self) -> None:
        for call in self.calls:
            call.check(self.done[call.number])

    def those_who_open_and_close_hear_of_nothing_else(self) -> None:
        for task in self.others:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, TrunklineError), repr(error)

    def phases_follow_the_table(self) -> None:
        last, connection = Phase.NEW, 0
        for fact in self.observer.of(PhaseChanged):
            before, after = Phase[fact.before], Phase[fact.after]
            assert after in LIFECYCLE[before].values(), f"{before} -> {after}"
            if fact.connection == connection or before is not Phase.NEW:
                assert before is last, f"{last}, and then {before} -> {after}"
            else:
                assert last in ENDED | {Phase.NEW}, f"a new line in phase {last}"
            last, connection = after, fact.connection

    def teardown(self) -> None:
        try:
            self._lift_all_faults()
            self._everything_ends()
            self._nothing_is_left()
        finally:
            self.runner.close()

    def _lift_all_faults(self) -> None:
        self.release()
        self.act(self.gate.set)

    def _everything_ends(self) -> None:
        for seconds in (*[1] * 70, *[30] * 60):
            waiting = [one for one in (*(call.task for call in self.calls), *self.others) if not one.done()]
            if not waiting:
                break
            self.advance(seconds)
        else:
            raise AssertionError(f"still waiting in phase {self.client.phase}: {waiting}")

    def _nothing_is_left(self) -> None:
        self.run(asyncio.wait_for(self.client.close(), PATIENCE))
        self.run(asyncio.wait_for(self.server.aclose(), PATIENCE))
        self.act()
        self.all_is_well()
        assert self.client.phase in {Phase.CLOSED, Phase.NEW}
        assert asyncio.all_tasks(self.runner.get_loop()) == set()
        assert self.server.connections == []
        assert self.clock.waiting == 0


class ModernMachine(ClientMachine):
    """The same in the modern era."""

    revision = "2026-07-28"


TestClientMachine = ClientMachine.TestCase
TestModernMachine = ModernMachine.TestCase
TestClientMachine.settings = settings(
    max_examples=120,
    stateful_step_count=30,
    deadline=None,
    phases=[Phases.reuse, Phases.generate],  # to make an example smaller takes longer than a test may
)
TestModernMachine.settings = settings(TestClientMachine.settings, max_examples=60)
