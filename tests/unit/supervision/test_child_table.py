"""Decisions about the children of a supervisor: strategies, restart types, limits and shutdown."""

import pytest

from trunkline.errors import MisuseError
from trunkline.supervision.child_table import TRANSITIONS, ChildState, ChildTable, Escalate, Start, Stop
from trunkline.supervision.restart_policy import RestartPolicy

POLICY = RestartPolicy(intensity=2, period=60, first_delay=1, pause=300)


def running(table: ChildTable, names: str = "abc", restart: str = "permanent") -> ChildTable:
    """A table whose children have all started, at the time 0."""
    for name in names:
        table.add(name, restart, 0)  # type: ignore[arg-type]
    waiting = list(table.start(0))
    while waiting:
        waiting.extend(table.started(waiting.pop(0).name, 0))  # type: ignore[union-attr]
    assert states(table) == dict.fromkeys(names, "running")
    return table


def states(table: ChildTable) -> dict[str, str]:
    return {child.name: child.state.value for child in table}


def test_every_state_has_transitions() -> None:
    assert set(TRANSITIONS) == set(ChildState)


@pytest.mark.row("U01", "U02")
def test_one_for_one_restarts_the_failed_child_only() -> None:
    table = running(ChildTable(policy=POLICY))
    assert table.ended("b", "broken", 1) == [Start("b")]
    assert states(table) == {"a": "running", "b": "starting", "c": "running"}
    assert (table["b"].restarts, table["b"].last_failure) == (1, "broken")


def test_one_for_all_stops_all_in_reverse_order_and_starts_them_in_order() -> None:
    table = running(ChildTable(strategy="one_for_all", policy=POLICY))
    assert table.ended("b", "broken", 1) == [Stop("c")]
    assert table.ended("c", None, 1) == [Stop("a")]
    assert table.ended("a", None, 1) == [Start("a")]
    assert table.started("a", 1) == [Start("b")]
    assert table.started("b", 1) == [Start("c")]
    assert table.started("c", 1) == []


def test_rest_for_one_leaves_earlier_children_alone() -> None:
    table = running(ChildTable(strategy="rest_for_one", policy=POLICY))
    assert table.ended("b", "broken", 1) == [Stop("c")]
    assert table.ended("c", "badly", 1) == [Start("b")]
    assert table.started("b", 1) == [Start("c")]
    assert table["a"].restarts == 0


@pytest.mark.row("U05", "X32")
@pytest.mark.parametrize(
    ("restart", "failure", "state"),
    [
        ("permanent", None, "starting"),
        ("permanent", "broken", "starting"),
        ("transient", None, "ended"),
        ("transient", "broken", "starting"),
        ("temporary", None, "ended"),
        ("temporary", "broken", "ended"),
    ],
)
def test_restart_type_decides_which_ends_lead_to_a_restart(restart: str, failure: str | None, state: str) -> None:
    table = running(ChildTable(policy=POLICY), "a", restart)
    table.ended("a", failure, 10)
    assert states(table) == {"a": state}


def test_failed_starts_back_off_with_jitter() -> None:
    table = ChildTable(policy=RestartPolicy(jitter=0.5))
    table.add("a", "permanent", 0)
    assert table.start(0) == [Start("a")]
    assert table.ended("a", "broken", 0, chance=1.0) == []
    assert table.next_due == 1.5
    assert table.tick(1.4) == []
    assert table.tick(1.5) == [Start("a")]
    table.ended("a", "broken", 1.5)
    assert table.next_due == 3.5


@pytest.mark.row("U06")
def test_too_many_restarts_degrade_the_child_and_leave_others_alone() -> None:
    table = running(ChildTable(policy=POLICY))
    for now in (1, 2):
        table.ended("a", "broken", now)
        table.started("a", now)
        table.ended("b", "once" if now == 1 else None, now)
        table.started("b", now)
    assert table.ended("a", "broken", 3) == []
    assert states(table) == {"a": "degraded", "b": "running", "c": "running"}
    assert table.next_due == 303


def test_degraded_child_has_one_attempt_after_the_pause() -> None:
    table = running(ChildTable(policy=POLICY), "a")
    for now in (1, 2, 3):
        table.ended("a", "broken", now)
        table.started("a", now)
    assert table.tick(302) == []
    assert table.tick(303) == [Start("a")]
    table.started("a", 303)
    table.ended("a", "broken", 304)
    assert states(table) == {"a": "degraded"}


def test_restart_by_hand_forgets_failures() -> None:
    table = running(ChildTable(policy=RestartPolicy(intensity=1, pause=None)), "a")
    for now in (1, 2):
        table.ended("a", "broken", now)
        table.started("a", now)
    assert (states(table), table.next_due) == ({"a": "degraded"}, None)
    assert table.restart("a", 5) == [Start("a")]
    table.started("a", 5)
    assert table.ended("a", "broken", 6) == [Start("a")]


def test_restart_by_hand_stops_a_running_child_first() -> None:
    table = running(ChildTable(policy=POLICY))
    assert table.restart("b", 1) == [Stop("b")]
    assert table.ended("b", None, 2) == [Start("b")]


@pytest.mark.row("U06")
def test_escalation_stops_all_children_and_then_fails() -> None:
    table = running(ChildTable(policy=POLICY, on_limit="escalate"))
    table.ended("a", "broken", 1)
    table.started("a", 1)
    table.ended("b", "broken", 2)  # all children count together
    table.started("b", 2)
    assert table.ended("c", "broken", 3) == [Stop("b")]
    assert table.ended("b", None, 3) == [Stop("a")]
    (escalation,) = table.ended("a", None, 3)
    assert escalation == Escalate("c", "it was lost 3 times within 60 s; the limit is 2")
    assert table.tick(1000) == []


def test_degraded_group_starts_together_after_the_pause() -> None:
    table = running(ChildTable(strategy="one_for_all", policy=RestartPolicy(intensity=0, pause=10)), "ab")
    assert table.ended("a", "broken", 1) == [Stop("b")]
    assert table.ended("b", None, 1) == []
    assert states(table) == {"a": "degraded", "b": "degraded"}
    assert table.tick(11) == [Start("a")]
    assert table.started("a", 11) == [Start("b")]


def test_shutdown_stops_in_reverse_order_of_start() -> None:
    table = running(ChildTable(policy=POLICY))
    table.ended("a", "broken", 1)
    table.started("a", 1)  # now the last one started
    assert table.shut_down(2) == [Stop("a")]
    assert table.ended("c", "broken", 2) == []  # it ends before its turn
    assert table.ended("a", None, 2) == [Stop("b")]
    assert table.ended("b", None, 2) == []
    assert table.stopped
    assert table.restart("a", 3) == ()


def test_orderly_end_is_no_loss_unless_it_follows_the_start_at_once() -> None:
    table = running(ChildTable(policy=POLICY), "a")
    for now in (10, 20, 30, 40):
        assert table.ended("a", None, now) == [Start("a")]
        table.started("a", now)
    for _ in range(2):
        table.ended("a", None, 40.5)
        table.started("a", 40.5)
    table.ended("a", None, 40.5)
    assert states(table) == {"a": "degraded"}


def test_start_without_resources_is_no_loss() -> None:
    table = ChildTable(policy=RestartPolicy(intensity=0))
    table.add("a", "permanent", 0)
    table.start(0)
    table.ended("a", "no descriptors", 0, is_loss=False)
    assert states(table) == {"a": "backoff"}


def test_removed_child_is_stopped_and_forgotten() -> None:
    table = running(ChildTable(policy=POLICY))
    assert table.remove("b", 1) == [Stop("b")]
    assert table.ended("b", None, 1) == []
    assert "b" not in table
    table.add("b", "transient", 2)
    assert states(table) == {"a": "running", "c": "running", "b": "starting"}
    with pytest.raises(MisuseError, match="there is a child 'a' already"):
        table.add("a", "permanent", 2)
