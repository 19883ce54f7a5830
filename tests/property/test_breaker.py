"""The circuit breaker against a model: any number of calls in flight, any order of outcomes."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trunkline.server.resilience.breaker_states import (
    TRANSITIONS,
    BreakerPolicy,
    BreakerRecord,
    BreakerState,
    Outcome,
    Permit,
    Signal,
    admit,
    close_record,
    open_record,
    settle,
)
from trunkline.testing import ManualClock

POLICY = BreakerPolicy(failures=3, failure_rate=0.5, window=6, open_seconds=10, successes=2)
OUTCOMES = st.sampled_from(Outcome)


class BreakerMachine(RuleBasedStateMachine):
    """The model states the rules in the words of the documentation: lists instead of bits."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.record = BreakerRecord()
        self.calls: list[Permit] = []  # in flight
        self.probes = 0
        self.state = "closed"
        self.history: list[bool] = []  # failures of this generation, the newest last
        self.good_probes = 0
        self.probe: Permit | None = None
        self.reset_at = 0.0
        self.lease_ends = 0.0

    def open(self) -> None:
        self.state, self.probe, self.reset_at = "open", None, self.clock.now() + POLICY.open_seconds

    def close(self) -> None:
        self.state, self.probe, self.history = "closed", None, []

    @rule()
    def begin(self) -> None:
        self.probes += 1
        now = self.clock.now()
        answer = admit(self.record, POLICY, now, f"probe {self.probes}")
        if self.state == "open" and now >= self.reset_at:
            self.state, self.good_probes, self.probe = "half_open", 0, None
        expected = self.state == "closed" or (
            self.state == "half_open" and (self.probe is None or now >= self.lease_ends)
        )
        assert (answer.permit is not None) == expected
        self.record = answer.record
        if answer.permit is None:
            assert 0 < answer.retry_after <= POLICY.open_seconds
            return
        assert bool(answer.permit.probe) == (self.state == "half_open")
        if self.state == "half_open":
            self.probe, self.lease_ends = answer.permit, now + POLICY.open_seconds
        self.calls.append(answer.permit)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), outcome=OUTCOMES)
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        permit = data.draw(st.sampled_from(self.calls))
        self.calls.remove(permit)
        generation = self.record.generation
        self.record = settle(self.record, POLICY, permit, outcome, self.clock.now())
        if permit.generation != generation or (self.state == "half_open" and permit != self.probe):
            assert self.record.generation == generation  # a late outcome changes nothing
            return
        if self.state == "closed" and outcome is not Outcome.NEUTRAL:
            self.history.append(outcome is Outcome.FAILURE)
            recent = self.history[-POLICY.window :]
            if self.history[-1] and (self.history[-POLICY.failures :] == [True] * POLICY.failures or sum(recent) >= 3):
                self.open()
        elif self.state == "half_open":
            self.probe = None
            if outcome is Outcome.FAILURE:
                self.open()
            elif outcome is Outcome.SUCCESS:
                self.good_probes += 1
                if self.good_probes == POLICY.successes:
                    self.close()

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.999, 10.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(opened=st.booleans())
    def change_by_hand(self, opened: bool) -> None:
        if opened:
            self.record = open_record(self.record, self.clock.now(), POLICY.open_seconds)
            self.open()
        else:
            self.record = close_record(self.record)
            self.close()

    @invariant()
    def state_matches(self) -> None:
        assert self.record.state.value == self.state
        assert self.record.outcomes < 1 << POLICY.window


TestBreaker = BreakerMachine.TestCase


def test_table_is_complete() -> None:
    assert set(TRANSITIONS) == set(BreakerState)
    assert {signal for row in TRANSITIONS.values() for signal in row} == set(Signal)
    reached = {after for row in TRANSITIONS.values() for after in row.values()}
    assert reached == set(BreakerState)
