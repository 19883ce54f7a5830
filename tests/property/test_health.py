"""The health of components against a model, and the monitor that runs their checks."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trunkline.facts import Observers
from trunkline.server.resilience.health_monitor import HealthCheck, HealthMonitor
from trunkline.server.resilience.health_states import HISTORY_LIMIT, ComponentHealth, HealthState, overall_state
from trunkline.testing import ManualClock

NAMES = st.sampled_from(["database", "queue", "cache"])


class HealthMachine(RuleBasedStateMachine):
    """Two critical components and one that is not; one of them needs three failures."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.components = {
            "database": ComponentHealth(failures=3),
            "queue": ComponentHealth(),
            "cache": ComponentHealth(critical=False),
        }
        self.results: dict[str, list[bool]] = {name: [] for name in self.components}
        self.changes: dict[str, int] = dict.fromkeys(self.components, 0)

    @rule(name=NAMES, passed=st.booleans())
    def check(self, name: str, passed: bool) -> None:
        self.clock.advance(1)
        before = self.components[name].state
        change = self.components[name].record(passed, "no", self.clock.now())
        self.results[name].append(passed)
        assert (change is None) == (before is self.components[name].state)
        self.changes[name] += change is not None

    def expected(self, name: str) -> HealthState:
        results, needed = self.results[name], 3 if name == "database" else 1
        if not results:
            return HealthState.UNKNOWN
        if results[-1]:
            return HealthState.HEALTHY
        failed = len(results) >= needed and not any(results[-needed:])
        return HealthState.UNHEALTHY if failed else HealthState.DEGRADED

    @invariant()
    def states_follow_the_results(self) -> None:
        states = {name: self.expected(name) for name in self.components}
        assert {name: component.state for name, component in self.components.items()} == states
        critical = {states["database"], states["queue"]}
        whole = overall_state(self.components.values())
        if HealthState.UNHEALTHY in critical:
            assert whole is HealthState.UNHEALTHY
        elif HealthState.UNKNOWN in critical:
            assert whole is HealthState.UNKNOWN
        else:
            assert (whole is HealthState.HEALTHY) == (set(states.values()) == {HealthState.HEALTHY})
        usable = all(component.usable for component in self.components.values())
        assert usable == (whole in {HealthState.HEALTHY, HealthState.DEGRADED})

    @invariant()
    def history_is_bounded_and_connected(self) -> None:
        for name, component in self.components.items():
            history = list(component.history)
            assert len(history) == min(self.changes[name], HISTORY_LIMIT)
            assert all(one.after is two.before and one.at < two.at for one, two in pairwise(history))


TestHealth = HealthMachine.TestCase


class MonitorMachine(RuleBasedStateMachine):
    """Checks that run on their intervals, on an event loop. The model runs each of them when it is due."""

    INTERVALS = {"database": 0.5, "queue": 0.75, "cache": 2.0}

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.works = dict.fromkeys(self.INTERVALS, True)
        self.runs = dict.fromkeys(self.INTERVALS, 0)
        checks = {
            name: HealthCheck(self.predicate(name), interval, critical=name != "cache")
            for name, interval in self.INTERVALS.items()
        }
        self.monitor = HealthMonitor(
            checks, lambda: self.clock, self.writable, lambda: (), lambda: None, observers=Observers([])
        )
        self.seen: dict[str, list[bool]] = {name: [] for name in self.INTERVALS}
        self.due: dict[str, float] = {}
        self.serving = False

    def teardown(self) -> None:
        self.loop.run_until_complete(self.change_serving(serving=False))
        assert self.clock.waiting == 0
        self.loop.close()

    async def writable(self) -> bool:
        return True

    def predicate(self, name: str) -> Callable[[], bool]:
        def run() -> bool:
            self.runs[name] += 1
            return self.works[name]

        return run

    def expect_run(self, name: str) -> None:
        self.seen[name].append(self.works[name])
        self.due[name] = self.clock.now() + self.INTERVALS[name]

    async def change_serving(self, *, serving: bool) -> None:
        if serving:
            self.monitor.start()
        else:
            self.monitor.close()
        for _ in range(3):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for _ in range(3):
            await asyncio.sleep(0)

    @rule()
    def start(self) -> None:
        if not self.serving:
            self.serving = True
            for name in self.INTERVALS:
                if self.clock.now() >= self.due.get(name, 0.0):
                    self.expect_run(name)
            self.loop.run_until_complete(self.change_serving(serving=True))

    @rule()
    def stop(self) -> None:
        self.serving = False
        self.due.clear()  # the next start runs all checks
        self.loop.run_until_complete(self.change_serving(serving=False))

    @rule(name=NAMES, works=st.booleans())
    def change(self, name: str, works: bool) -> None:
        self.works[name] = works

    @rule(quarters=st.integers(1, 12))
    def wait(self, quarters: int) -> None:
        for _ in range(quarters):
            self.loop.run_until_complete(self.advance(0.25))
            for name in self.INTERVALS:
                if self.serving and self.clock.now() >= self.due[name]:
                    self.expect_run(name)

    @invariant()
    def checks_run_when_due(self) -> None:
        assert self.runs == {name: len(results) for name, results in self.seen.items()}

    @invariant()
    def page_shows_the_last_results_at_once(self) -> None:
        if not self.serving:
            return
        report = self.loop.run_until_complete(self.monitor.report())
        for name, results in self.seen.items():
            expected = HealthState.HEALTHY if results[-1] else HealthState.UNHEALTHY
            assert report.components[name].state is expected


TestMonitor = MonitorMachine.TestCase
