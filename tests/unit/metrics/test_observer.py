"""Facts as metrics, with labels whose number is bounded."""

import os
from typing import Any

import pytest

from trunkline import facts
from trunkline.facts import CallEnded, CallStarted, Fact
from trunkline.metrics import families as f
from trunkline.metrics import observer as observer_module
from trunkline.metrics.observer import OTHER, UNKNOWN, MetricsObserver
from trunkline.metrics.samples import MetricsMemory


class Counted:
    """An observer and its memory."""

    def __init__(self, tools: int = 1) -> None:
        self.memory = MetricsMemory()
        known = {f"tool {number}" for number in range(tools)}
        self.observer = MetricsObserver(
            self.memory.writer(0), is_known_method="tools/call".__eq__, is_known_tool=known.__contains__
        )

    def values(self, family: f.Family) -> dict[tuple[str, ...], float]:
        """The values by label; of a histogram, the counts."""
        return {
            sample.labels: sum(sample.values[:-1]) if family.buckets else sample.values[0]
            for sample in self.memory.read()
            if sample.family is family
        }


def started(method: str = "tools/call") -> CallStarted:
    return CallStarted(connection=1, at=0.0, request=1, method=method, target="tool 0", transport="tcp")


def ended(target: str = "tool 0", method: str = "tools/call", outcome: str = "ok", **more: Any) -> CallEnded:
    return CallEnded(
        **{"connection": 1, "at": 0.0, "request": 1, "method": method, "target": target, "outcome": outcome}
        | {"code": None, "seconds": 0.2, "transport": "tcp", "started": True, **more}
    )


def test_calls_are_counted_and_timed() -> None:
    counted = Counted()
    for fact in (started(), started(), ended(), started(), ended(outcome="failed")):
        counted.observer.on(fact)
    assert counted.values(f.CALLS) == counted.values(f.CALL_SECONDS)
    assert counted.values(f.CALLS) == {("tools/call", "tcp", "ok"): 1, ("tools/call", "tcp", "failed"): 1}
    assert counted.values(f.CALLS_IN_PROGRESS) == {("tools/call", "tcp"): 1}
    assert counted.values(f.CALL_WAIT_SECONDS) == {("tcp",): 2}
    assert counted.values(f.TOOL_CALLS) == {("tool 0", "ok"): 1, ("tool 0", "failed"): 1}
    assert counted.values(f.TOOL_CALL_SECONDS) == {("tool 0",): 2}


def test_call_that_never_started_is_not_in_progress() -> None:
    counted = Counted()
    counted.observer.on(ended(outcome="cancelled", started=False))
    assert counted.values(f.CALLS_IN_PROGRESS) == {("tools/call", "tcp"): 0}
    assert counted.values(f.CALL_WAIT_SECONDS) == {("tcp",): 0}


def test_calls_of_a_killed_predecessor_are_lost() -> None:
    counted = Counted()
    predecessor = os.fork()
    if predecessor == 0:
        counted.observer.take_over(1.0)
        for fact in (started(), started(), ended()):
            counted.observer.on(fact)
        os._exit(0)
    assert os.waitpid(predecessor, 0)[1] == 0
    counted.observer.use(counted.memory.writer(0))
    counted.observer.take_over(2.0)
    counted.observer.take_over(3.0)  # the same process serves again
    assert counted.values(f.CALLS) == {("tools/call", "tcp", "ok"): 1, ("tools/call", "tcp", "lost"): 1}
    assert counted.values(f.CALLS_IN_PROGRESS) == {("tools/call", "tcp"): 0}


def test_unknown_names_never_become_labels() -> None:
    counted = Counted()
    for number in range(1000):
        counted.observer.on(ended(target=f"invented {number}", outcome="error"))
        counted.observer.on(ended(method=f"invented/{number}", outcome="refused", started=False))
    assert counted.values(f.TOOL_CALLS) == {(UNKNOWN, "error"): 1000}
    assert counted.values(f.CALLS) == {(UNKNOWN, "tcp", "refused"): 1000, ("tools/call", "tcp", "error"): 1000}
    assert len(counted.observer._calls) == 1
    assert counted.observer._tools == {}


def test_number_of_tool_labels_is_limited() -> None:
    limit = observer_module._MAX_NAMES
    counted = Counted(tools=limit + 50)
    for number in range(limit + 50):
        counted.observer.on(ended(target=f"tool {number}"))
    counted.observer.on(ended(target="tool 3"))
    values = counted.values(f.TOOL_CALLS)
    assert len(values) == limit + 1
    assert values[OTHER, "ok"] == 50
    assert values["tool 3", "ok"] == 2


@pytest.mark.parametrize(
    ("fact", "family", "labels"),
    [
        (facts.Connected(connection=1, at=0, transport="tcp", peer="x"), f.CONNECTIONS_OPENED, ("tcp",)),
        (
            facts.ConnectionFailed(connection=1, at=0, transport="tcp", peer="x", incident="1", error=OSError()),
            f.CONNECTION_FAILURES,
            (),
        ),
        (
            facts.HandlerFailed(connection=1, at=0, request=1, method="ping", reference="1", error=OSError()),
            f.HANDLER_FAILURES,
            (),
        ),
        (
            facts.HttpRefused(connection=0, at=0, method="GET", path="/x", status=404, kind="not_found", client=""),
            f.HTTP_REFUSED,
            ("404", "not_found"),
        ),
        (facts.RateExceeded(connection=0, at=0, scope="each session", limit="1/s"), f.RATE_EXCEEDED, ("each session",)),
        (facts.MessageUnreadable(connection=1, at=0, why="x"), f.UNREADABLE_MESSAGES, ()),
        (facts.Dropped(connection=1, at=0, why="x", kind="late"), f.DROPPED, ("late",)),
        (facts.TaskEnded(connection=0, at=0, task="1", state="failed", seconds=1), f.TASKS_ENDED, ("failed",)),
        (
            facts.BreakerChanged(connection=0, at=0, name="db", before="closed", after="open"),
            f.BREAKER_CHANGES,
            ("db", "open"),
        ),
        (facts.CrewStep(connection=0, at=0, step="Join", process="1"), f.CLUSTER_CHANGES, ("Join",)),
        (
            facts.ChildChanged(connection=0, at=0, name="server/x", kind="listener", state="backoff", failure="x"),
            f.RESTARTS,
            ("listener",),
        ),
        (facts.StreamOpened(connection=0, at=0), f.STREAMS, ()),
        (facts.StoreProbed(connection=0, at=0, seconds=0.1, error=""), f.STORE_UP, ()),
        (
            facts.StoreCallEnded(connection=0, at=0, operation="get", outcome="ok", seconds=0.1),
            f.STORE_CALL_SECONDS,
            ("get", "ok"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fact) else "",
)
def test_facts_are_counted(fact: Fact, family: f.Family, labels: tuple[str, ...]) -> None:
    counted = Counted()
    assert type(fact) in counted.observer.wants
    counted.observer.on(fact)
    assert counted.values(family) == {labels: 1}


def test_state_changes_that_are_no_restart_are_not_counted() -> None:
    counted = Counted()
    for state in ("starting", "running", "degraded", "stopping", "stopped", "ended"):
        counted.observer.on(
            facts.ChildChanged(connection=0, at=0, name="server/x", kind="listener", state=state, failure="")
        )
    assert counted.values(f.RESTARTS) == {}


def test_closed_stream_and_failed_store_lower_their_gauges() -> None:
    counted = Counted()
    counted.observer.on(facts.StreamOpened(connection=0, at=0))
    counted.observer.on(facts.StreamClosed(connection=0, at=1, seconds=1))
    counted.observer.on(facts.StoreProbed(connection=0, at=0, seconds=0.1, error=""))
    counted.observer.on(facts.StoreProbed(connection=0, at=0, seconds=9, error="no space left"))
    assert counted.values(f.STREAMS) == counted.values(f.STORE_UP) == {(): 0}
    assert counted.values(f.STREAMS_OPENED) == {(): 1}
