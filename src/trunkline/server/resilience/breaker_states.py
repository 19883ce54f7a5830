"""Circuit breaker as pure logic: a table of states, and a record that outcomes of calls change.

A record remembers the latest outcomes of calls as bits, the newest in the lowest bit, 1 for a failure. An empty history
counts as successes. The breaker opens when the latest outcomes are failures, or when too many of the last ones are.
While it is open, calls are refused. When its time has passed, it admits one call at a time as a probe, and the outcomes
of probes decide whether it closes or opens again.

Every transition begins a new generation. An outcome counts only in the generation that admitted its call, so a call
that began before the breaker opened neither closes it nor keeps it open. Invariants: an open breaker admits no call
before its time, at most one probe is under way, and only a probe changes a breaker that is half open.
"""

from collections.abc import Mapping
from enum import Enum, auto
from math import ceil
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

__all__ = [
    "TRANSITIONS",
    "Admission",
    "BreakerPolicy",
    "BreakerRecord",
    "BreakerState",
    "Outcome",
    "Permit",
    "Signal",
    "admit",
    "close_record",
    "may_probe",
    "open_record",
    "settle",
]

_PROBE_RETRY: Final = 1.0  # seconds after which a call may try again while a probe is under way


class BreakerState(Enum):
    """States of a circuit breaker."""

    CLOSED = "closed"  # calls pass, and their outcomes are counted
    OPEN = "open"  # calls are refused until the reset time
    HALF_OPEN = "half_open"  # calls pass one at a time, as probes


class Signal(Enum):
    """Events that change the state of a circuit breaker."""

    THRESHOLD_REACHED = auto()
    RESET_TIME_PASSED = auto()
    PROBE_SUCCEEDED = auto()
    ENOUGH_PROBES_SUCCEEDED = auto()
    PROBE_FAILED = auto()
    OPENED_BY_HAND = auto()
    CLOSED_BY_HAND = auto()


_BY_HAND: Final = {Signal.OPENED_BY_HAND: BreakerState.OPEN, Signal.CLOSED_BY_HAND: BreakerState.CLOSED}

TRANSITIONS: Final[Mapping[BreakerState, Mapping[Signal, BreakerState]]] = {
    BreakerState.CLOSED: {Signal.THRESHOLD_REACHED: BreakerState.OPEN, **_BY_HAND},
    BreakerState.OPEN: {Signal.RESET_TIME_PASSED: BreakerState.HALF_OPEN, **_BY_HAND},
    BreakerState.HALF_OPEN: {
        Signal.PROBE_SUCCEEDED: BreakerState.HALF_OPEN,
        Signal.ENOUGH_PROBES_SUCCEEDED: BreakerState.CLOSED,
        Signal.PROBE_FAILED: BreakerState.OPEN,
        **_BY_HAND,
    },
}


class Outcome(Enum):
    """How a call ended, as far as a circuit breaker is concerned."""

    SUCCESS = auto()
    FAILURE = auto()
    NEUTRAL = auto()  # cancelled, or the fault of the caller: it says nothing about the dependency


class BreakerPolicy(Struct, frozen=True, kw_only=True):
    """When a circuit breaker opens and closes."""

    failures: int = 5  # consecutive ones, with which it opens
    failure_rate: float | None = 0.5  # share of the last `window` calls, with which it opens; None: no such rule
    window: int = 10  # calls
    open_seconds: float = 60.0  # before the first probe
    successes: int = 2  # of probes, with which it closes

    @property
    def rate_threshold(self) -> int | None:
        """The number of failures in the window with which the breaker opens."""
        return None if self.failure_rate is None else ceil(self.failure_rate * self.window)


class BreakerRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one circuit breaker."""

    state: BreakerState = BreakerState.CLOSED
    generation: int = 0  # the number of transitions so far
    outcomes: int = 0  # bits of the latest calls
    until: float = 0.0  # open: when the first probe may pass; half open: when the probe under way is given up
    probe: str = ""  # half open: the id of the probe under way
    successes: int = 0  # half open: of probes


class Permit(NamedTuple):
    """The right to run one call."""

    generation: int
    probe: str = ""  # the id of a probe


class Admission(NamedTuple):
    """The answer to a call: a permit, or the seconds after which it may try again; and the record from then on."""

    record: BreakerRecord
    permit: Permit | None
    retry_after: float = 0.0


def admit(record: BreakerRecord, policy: BreakerPolicy, now: float, probe: str) -> Admission:
    """Admit or refuse a call; `probe` is the id that it gets as a probe. A probe without an outcome is given up after
    `open_seconds`: its process may have died."""
    if record.state is BreakerState.CLOSED:
        return Admission(record, Permit(record.generation))
    if not may_probe(record, now):
        is_open = record.state is BreakerState.OPEN
        return Admission(record, None, record.until - now if is_open else min(_PROBE_RETRY, policy.open_seconds))
    if record.state is BreakerState.OPEN:
        record = _step(record, Signal.RESET_TIME_PASSED)
    record = replace(record, probe=probe, until=now + policy.open_seconds)
    return Admission(record, Permit(record.generation, probe))


def may_probe(record: BreakerRecord, now: float) -> bool:
    """Return whether the next call is a probe: the breaker was open for long enough, or is half open and idle."""
    if record.state is BreakerState.OPEN:
        return now >= record.until
    return record.state is BreakerState.HALF_OPEN and (not record.probe or now >= record.until)


def settle(record: BreakerRecord, policy: BreakerPolicy, permit: Permit, outcome: Outcome, now: float) -> BreakerRecord:
    """Return the record after the outcome of a call. An outcome of an earlier generation changes nothing."""
    if permit.generation != record.generation or permit.probe != record.probe:
        return record
    if record.state is BreakerState.CLOSED:
        if outcome is Outcome.NEUTRAL or (outcome is Outcome.SUCCESS and not record.outcomes):
            return record
        history = max(policy.failures, policy.window)
        outcomes = (record.outcomes << 1 | (outcome is Outcome.FAILURE)) & ((1 << history) - 1)
        if outcome is Outcome.FAILURE and _exceeds(outcomes, policy):
            return _open(record, Signal.THRESHOLD_REACHED, now + policy.open_seconds)
        return replace(record, outcomes=outcomes)
    match outcome:
        case Outcome.FAILURE:
            return _open(record, Signal.PROBE_FAILED, now + policy.open_seconds)
        case Outcome.SUCCESS if record.successes + 1 >= policy.successes:
            return _step(record, Signal.ENOUGH_PROBES_SUCCEEDED)
        case Outcome.SUCCESS:
            successes = record.successes + 1
            return replace(record, state=_next(record, Signal.PROBE_SUCCEEDED), probe="", successes=successes)
        case Outcome.NEUTRAL:
            return replace(record, probe="")


def open_record(record: BreakerRecord, now: float, seconds: float) -> BreakerRecord:
    """Return the record of a breaker that was opened by hand."""
    return _open(record, Signal.OPENED_BY_HAND, now + seconds)


def close_record(record: BreakerRecord) -> BreakerRecord:
    """Return the record of a breaker that was closed by hand, without its history."""
    return _step(record, Signal.CLOSED_BY_HAND)


def _exceeds(outcomes: int, policy: BreakerPolicy) -> bool:
    latest = (1 << policy.failures) - 1
    most = policy.rate_threshold
    return outcomes & latest == latest or (
        most is not None and (outcomes & ((1 << policy.window) - 1)).bit_count() >= most
    )


def _next(record: BreakerRecord, signal: Signal) -> BreakerState:
    return TRANSITIONS[record.state][signal]


def _step(record: BreakerRecord, signal: Signal) -> BreakerRecord:
    """Begin a new generation."""
    return BreakerRecord(state=_next(record, signal), generation=record.generation + 1)


def _open(record: BreakerRecord, signal: Signal, until: float) -> BreakerRecord:
    return replace(_step(record, signal), until=until)
