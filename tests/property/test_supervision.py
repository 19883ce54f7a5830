"""The child table against its invariants, and a supervisor that obeys it on an event loop with a manual clock."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trunkline.supervision.child_table import ChildDecision, ChildState, ChildTable, Escalate, Start, Stop
from trunkline.supervision.restart_policy import RestartPolicy
from trunkline.supervision.supervisor import Supervisor
from trunkline.testing import ManualClock

NAMES = st.sampled_from("abcd")
STRATEGIES = st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"])
TYPES = st.lists(st.sampled_from(["permanent", "transient", "temporary"]), min_size=4, max_size=4)
POLICY = RestartPolicy(intensity=2, period=10, first_delay=1, max_delay=4, pause=20)
ACTIVE = {ChildState.STARTING, ChildState.RUNNING}


class TableMachine(RuleBasedStateMachine):
    """A shell that reports any possible event. It knows which children exist, by the decisions that it carried out."""

    @initialize(strategy=STRATEGIES, types=TYPES, on_limit=st.sampled_from(["degrade", "escalate"]))
    def begin(self, strategy: str, types: list[str], on_limit: str) -> None:
        self.now = 0.0
        self.strategy, self.on_limit = strategy, on_limit
        self.table = ChildTable(strategy=strategy, policy=POLICY, on_limit=on_limit)  # type: ignore[arg-type]
        self.alive: dict[str, str] = {}  # children that the shell has started: starting, running or stopping
        self.order: list[str] = []  # those, by the order of their last start
        self.starts = dict.fromkeys("abcd", 0)
        self.losses: dict[str, list[float]] = {name: [] for name in "abcd"}
        self.by_hand = dict.fromkeys("abcd", 0)
        self.escalated = self.shutting_down = False
        for name, restart in zip("abcd", types, strict=True):
            self.table.add(name, restart, 0.0)  # type: ignore[arg-type]
        self.types = dict(zip("abcd", types, strict=True))
        self.apply(self.table.start(0.0))

    def apply(self, decisions: "list[ChildDecision] | tuple[ChildDecision, ...]") -> None:
        for decision in decisions:
            match decision:
                case Start(name):
                    assert name not in self.alive, "it runs already"
                    assert not self.shutting_down
                    assert not self.escalated
                    self.alive[name] = "starting"
                    self.order.append(name)
                    self.starts[name] += 1
                case Stop(name):
                    assert self.alive[name] in {"starting", "running"}
                    assert name == max(self.doomed(), key=self.order.index), "the last one started stops first"
                    self.alive[name] = "stopping"
                case Escalate():
                    assert self.on_limit == "escalate"
                    assert not self.alive
                    self.escalated = True

    def doomed(self) -> list[str]:
        """The children that have to be stopped, and have not been."""
        return [row.name for row in self.table if row.after_stop is not None]

    @precondition(lambda self: any(state == "starting" for state in self.alive.values()))
    @rule(data=st.data())
    def start_succeeds(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, state in self.alive.items() if state == "starting")))
        self.alive[name] = "running"
        self.apply(self.table.started(name, self.now))

    @precondition(lambda self: bool(self.alive))
    @rule(data=st.data(), fails=st.booleans(), chance=st.floats(0, 1))
    def child_ends(self, data: st.DataObject, fails: bool, chance: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        expected = self.alive.pop(name)
        if expected != "stopping" and name not in self.doomed() and fails and self.types[name] != "temporary":
            self.losses[name].append(self.now)
        self.order.remove(name)
        self.apply(self.table.ended(name, "broken" if fails else None, self.now, chance=chance))

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.table.next_due) is not None and due <= until:
            assert due > self.now, "everything that was due has started"
            self.now = due
            self.apply(self.table.tick(due))
        self.now = until

    @rule(name=NAMES)
    def restart_by_hand(self, name: str) -> None:
        self.by_hand[name] += 1
        for each in self.losses.values():
            each.clear()
        self.apply(self.table.restart(name, self.now))

    @rule()
    def shut_down(self) -> None:
        decisions = self.table.shut_down(self.now)
        self.shutting_down = True
        self.apply(decisions)

    @invariant()
    def table_knows_what_is_alive(self) -> None:
        alive = {row.name: row.state.value for row in self.table if row.state in {*ACTIVE, ChildState.STOPPING}}
        assert alive == self.alive
        assert list(alive.values()).count("stopping") <= 1
        assert self.table.stopped == (not alive)

    @invariant()
    def dependent_children_start_after_the_others(self) -> None:
        rows = list(self.table)
        if self.strategy != "one_for_one" and not self.doomed() and self.table.running:
            for row, later in pairwise(rows):
                if row.state not in {ChildState.RUNNING, ChildState.ENDED}:
                    assert later.state not in ACTIVE

    @invariant()
    def temporary_child_starts_once(self) -> None:
        if sum(self.by_hand.values()) == 0:
            assert all(self.starts[name] <= 1 for name, kind in self.types.items() if kind == "temporary")

    @invariant()
    def independent_children_are_stopped_only_by_hand_or_at_the_end(self) -> None:
        if self.strategy == "one_for_one" and self.table.running and sum(self.by_hand.values()) == 0:
            assert "stopping" not in self.alive.values()

    @invariant()
    def limit_of_restarts_holds(self) -> None:
        if self.on_limit == "degrade" and self.strategy == "one_for_one" and self.table.running:
            for row in self.table:
                recent = [when for when in self.losses[row.name] if self.now - when < POLICY.period]
                if len(recent) > POLICY.intensity and row.state is ChildState.BACKOFF:
                    pytest.fail(f"{row.name} was restarted too often")


TestTable = TableMachine.TestCase


class ScriptedChild:
    """A child that the machine starts, ends and breaks."""

    kind = "task"

    def __init__(self) -> None:
        self.running = 0
        self.end: asyncio.Future[None] | None = None

    async def run(self, started: Callable[[], None], /) -> None:
        self.running += 1
        self.end = asyncio.get_running_loop().create_future()
        try:
            started()
            await self.end
        finally:
            self.running -= 1


class SupervisorMachine(RuleBasedStateMachine):
    """Children that fail and end at random; after each step the supervisor and the real tasks must agree."""

    @initialize(strategy=STRATEGIES, types=TYPES)
    def begin(self, strategy: str, types: list[str]) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.children = {name: ScriptedChild() for name in "abcd"}
        self.supervisor = Supervisor("root", strategy=strategy, policy=POLICY, clock=self.clock)  # type: ignore[arg-type]
        for (name, child), restart in zip(self.children.items(), types, strict=True):
            self.supervisor.add(name, child, restart=restart)  # type: ignore[arg-type]
        self.run(self.supervisor.start)

    def run(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()
            for _ in range(40):
                await asyncio.sleep(0)

        self.loop.run_until_complete(act())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.supervisor.stop())
            assert not any(child.running for child in self.children.values())
            assert self.clock.waiting == 0
            self.loop.close()

    @rule(name=NAMES, fails=st.booleans())
    def end_child(self, name: str, fails: bool) -> None:
        end = self.children[name].end
        if self.children[name].running and end is not None and not end.done():
            self.run(lambda: end.set_exception(RuntimeError("broken")) if fails else end.set_result(None))

    @rule(seconds=st.sampled_from([0.5, 2.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(lambda: self.clock.advance(seconds))

    @rule(name=NAMES)
    def restart(self, name: str) -> None:
        self.run(lambda: self.supervisor.restart(name))

    @rule()
    def stop_and_start(self) -> None:
        self.loop.run_until_complete(self.supervisor.stop())
        assert not any(child.running for child in self.children.values())
        self.run(self.supervisor.start)

    @invariant()
    def description_agrees_with_the_tasks(self) -> None:
        if not hasattr(self, "loop"):
            return
        for status in self.supervisor.describe().children:
            child = self.children[status.name.rpartition("/")[2]]
            assert child.running == (status.state is ChildState.RUNNING)


TestSupervisor = SupervisorMachine.TestCase
