"""The figures of a load test: latencies, errors by kind and responses over time, as a function of recorded requests.

A request belongs to the measurement by its intended start: not before the end of the warm-up, and before the end of
the run. Its latency counts from there, also if the load generator or a full queue delayed it; otherwise a server that
stalls would hide its stall from the figures (coordinated omission). Latencies are those of responses and of timeouts:
leaving out timeouts would make a slow server look fast. Other errors may be quick refusals and are only counted.
Throughput counts the responses that arrived within the run.
"""

import math
from typing import Any, Final

from msgspec import Struct

from trunkline.cli.bench.histogram import LatencyHistogram

__all__ = ["TIMEOUT", "ErrorCount", "Interval", "Measurement", "Outcome", "Plan"]

TIMEOUT: Final = "timeout"
_INTERVALS: Final = 60  # of the plot over time
_MIN_INTERVAL: Final = 0.1  # seconds


class Plan(Struct, frozen=True, kw_only=True):
    """The load to apply: a rate of requests per second (open loop), or a number of requests at a time (closed loop)."""

    rate: float | None
    concurrency: int
    connections: int
    duration: float
    warm_up: float

    def describe(self) -> str:
        """Return the load in words."""
        load = f"{self.concurrency} at a time" if self.rate is None else f"{self.rate:g} per second (open loop)"
        return f"{load}, {self.connections} connection{'s' if self.connections > 1 else ''}"


class Outcome(Struct, frozen=True):
    """The end of a request: `error` is the kind of its failure, None for a response."""

    error: str | None = None
    detail: str = ""


class ErrorCount(Struct):
    """Errors of one kind, with the message of the first."""

    count: int
    example: str


class Interval(Struct):
    """The requests that ended in one interval of the run."""

    responses: int = 0
    errors: int = 0
    slowest: float = 0.0


class Measurement:
    """Collects the requests of one run. All times are seconds of one clock."""

    def __init__(self, plan: Plan, started: float) -> None:
        self.plan = plan
        self.started = started
        self.begins = started + plan.warm_up
        self.ends = self.begins + plan.duration
        self.interval = max(plan.duration / _INTERVALS, _MIN_INTERVAL)
        self.latencies = LatencyHistogram()
        self.delays = LatencyHistogram()  # between the intended and the actual start, in the open loop
        self.errors: dict[str, ErrorCount] = {}
        self.intervals = [Interval() for _ in range(math.ceil(plan.duration / self.interval))]
        self.requests = 0  # that were begun
        self.ended = 0
        self.unsent = 0  # due within the run, but not begun when it ended
        self.responses_in_run = 0
        self.interrupted_at: float | None = None
        self.reconnections = 0
        self.server_cpu: float | None = None  # seconds
        self.client_cpu: float | None = None

    def begin(self, intended: float, now: float) -> None:
        """Record that a request is sent."""
        if intended >= self.begins:
            self.requests += 1
            self.delays.record(now - intended)

    def end(self, intended: float, now: float, outcome: Outcome) -> None:
        """Record the end of a request."""
        if intended < self.begins:
            return
        self.ended += 1
        if outcome.error is None or outcome.error == TIMEOUT:
            self.latencies.record(now - intended)
        if outcome.error is not None:
            known = self.errors.setdefault(outcome.error, ErrorCount(0, outcome.detail))
            known.count += 1
        if now >= self.ends:
            return
        interval = self.intervals[min(int((now - self.begins) / self.interval), len(self.intervals) - 1)]
        interval.slowest = max(interval.slowest, now - intended)
        if outcome.error is None:
            self.responses_in_run += 1
            interval.responses += 1
        else:
            interval.errors += 1

    def interrupt(self, now: float) -> None:
        """End the run early."""
        self.interrupted_at = now

    @property
    def seconds(self) -> float:
        """The measured time."""
        if self.interrupted_at is None:
            return self.plan.duration
        return min(max(self.interrupted_at - self.begins, 0.0), self.plan.duration)

    @property
    def failed(self) -> int:
        """The number of requests that failed."""
        return sum(error.count for error in self.errors.values())

    @property
    def unfinished(self) -> int:
        """The number of requests without a response when the run was interrupted."""
        return self.requests - self.ended

    @property
    def throughput(self) -> float:
        """Responses per second."""
        return self.responses_in_run / self.seconds if self.seconds else 0.0

    def measured_intervals(self) -> list[Interval]:
        """Return the intervals that passed completely, or all after a run that was not interrupted."""
        return (
            self.intervals[: math.floor(self.seconds / self.interval + 1e-9)] if self.interrupted_at else self.intervals
        )

    def as_json(self) -> dict[str, Any]:
        """Return all figures; durations are in seconds."""
        latencies = self.latencies
        plan = self.plan
        return {
            "load": {
                "rate": plan.rate,
                "concurrency": plan.concurrency if plan.rate is None else None,
                "connections": plan.connections,
                "duration": plan.duration,
                "warmUp": plan.warm_up,
            },
            "measuredSeconds": self.seconds,
            "interrupted": self.interrupted_at is not None,
            "requests": self.requests,
            "throughput": self.throughput,
            "latency": {
                "p50": latencies.percentile(50),
                "p90": latencies.percentile(90),
                "p99": latencies.percentile(99),
                "max": latencies.max,
                "mean": latencies.mean,
                "count": latencies.count,
            },
            "errors": {kind: {"count": error.count, "example": error.example} for kind, error in self.errors.items()},
            "unfinished": self.unfinished,
            "unsent": self.unsent,
            "reconnections": self.reconnections,
            "startDelay": None
            if plan.rate is None
            else {"p50": self.delays.percentile(50), "p99": self.delays.percentile(99), "max": self.delays.max},
            "serverCpuSeconds": self.server_cpu,
            "clientCpuSeconds": self.client_cpu,
            "intervalSeconds": self.interval,
            "intervals": [
                {"responses": one.responses, "errors": one.errors, "slowest": one.slowest}
                for one in self.measured_intervals()
            ],
        }
