"""The plan of a campaign depends on its seed alone."""

from itertools import islice

from tests.chaos.campaign import Recovery, recoveries
from tests.chaos.history import FaultPeriod
from tests.chaos.plan import DEPLOYMENTS, REVISIONS, TASKS, operations, plan


def test_plan_depends_only_on_its_seed() -> None:
    first, again, other = plan(7, 100, 20), plan(7, 100, 20), plan(8, 100, 20)
    assert first == again
    assert first.injection != other.injection
    for part in first.parts:
        assert list(islice(operations(7, part), 50)) == list(islice(operations(7, part), 50))
    assert list(islice(operations(7, first.parts[0]), 50)) != list(islice(operations(8, first.parts[0]), 50))


def test_every_revision_and_board_has_its_clients() -> None:
    parts = plan(7, 30, 3).parts
    assert {part.revision for part in parts} == set(REVISIONS)
    for board in {part.board for part in parts}:
        there = [part for part in parts if part.board == board]
        assert sum(part.writes for part in there) == 1
        assert any(part.raw and not part.writes for part in there)
        assert any(not part.raw and not part.writes for part in there)


def test_every_kind_of_action_occurs_with_unique_ids() -> None:
    done = [operation for part in plan(7, 30, 3).parts for operation in islice(operations(7, part), 50)]
    kinds = {"look", "pay", "pay_once", "keep", "count", "ask", "post", "wait", "linger", "limited", *TASKS}
    assert {operation.kind for operation in done} == kinds
    assert len({operation.id for operation in done}) == len(done)


def test_every_kind_of_fault_occurs_and_lasts_long_enough() -> None:
    for deployment, kinds in DEPLOYMENTS.items():
        done = plan(7, 30, 2 * len(kinds), deployment, lease=3.0).injection
        assert sorted(one.kind for one in done) == sorted(2 * kinds)
        assert all(one.lasts > 3.0 for one in done if one.kind in {"stop", "stall"})


def test_recovery_time_starts_at_the_fault_unless_another_follows() -> None:
    deaths = [FaultPeriod("death", at, at + 1.0) for at in (10.0, 20.0, 30.0)]
    answers = [(9.0, "a"), (10.5, "a"), (12.0, "a"), (13.0, "b"), (14.0, "a"), (22.0, "b"), (32.0, "b"), (33.0, "a")]
    assert recoveries(deaths, answers, ["a", "b"]) == [
        Recovery("death", None, 1.0, 2.0, 3.0),
        Recovery("death", None, 1.0, 2.0, None),
        Recovery("death", None, 1.0, 2.0, 3.0),
    ]
    assert recoveries(deaths[:1], [], ["a"]) == [Recovery("death", None, 1.0, None, None)]


def test_recovery_time_of_one_process_uses_answers_of_others() -> None:
    term = FaultPeriod("term", 10.0, 12.0, stopped=10.25, partial=True)
    assert recoveries([term], [(10.5, "a"), (11.0, "b")], ["a", "b"]) == [Recovery("term", 0.25, 2.0, 0.5, 1.0)]
