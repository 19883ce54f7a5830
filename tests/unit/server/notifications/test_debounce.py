"""At most one announcement per kind in an interval; the last change is never lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.server.notifications.debounce import Coalescer


@pytest.mark.row("X13", "N04")
def test_first_change_is_announced_at_once() -> None:
    coalescer = Coalescer(100)
    assert coalescer.record_change("tools", now=0)
    assert coalescer.next_due() is None


@pytest.mark.row("X13", "N05")
def test_change_within_interval_is_announced_at_its_end() -> None:
    coalescer = Coalescer(100)
    assert coalescer.record_change("tools", now=0)
    assert not coalescer.record_change("tools", now=50)
    assert not coalescer.record_change("tools", now=60)
    assert coalescer.next_due() == 100
    assert coalescer.pop_due(99) == []
    assert coalescer.pop_due(100) == ["tools"]
    assert coalescer.next_due() is None
    assert not coalescer.record_change("tools", now=150)
    assert coalescer.next_due() == 200


@pytest.mark.row("X13")
def test_change_after_quiet_interval_is_announced_at_once() -> None:
    coalescer = Coalescer(100)
    assert coalescer.record_change("tools", now=0)
    assert coalescer.record_change("tools", now=100)


@pytest.mark.row("N03")
def test_kinds_are_debounced_independently() -> None:
    coalescer = Coalescer(100)
    assert coalescer.record_change("tools", now=0)
    assert coalescer.record_change("prompts", now=10)
    assert not coalescer.record_change("prompts", now=20)
    assert not coalescer.record_change("tools", now=30)
    assert coalescer.pop_due(100) == ["tools"]
    assert coalescer.next_due() == 110


@pytest.mark.row("N03", "N05", "PH24", "PH33", "PH43")
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 70)), max_size=60))
def test_announcements_are_an_interval_apart_and_complete(changes: list[tuple[str, int]]) -> None:
    coalescer, now = Coalescer(100), 0
    announced: dict[str, list[float]] = {"a": [], "b": []}
    changed: dict[str, float] = {}

    def pass_to(moment: float) -> None:
        while (due := coalescer.next_due()) is not None and due <= moment:
            for kind in coalescer.pop_due(due):
                announced[kind].append(due)

    for kind, pause in changes:
        now += pause
        pass_to(now)
        changed[kind] = now
        if coalescer.record_change(kind, now):
            announced[kind].append(now)
    pass_to(now + 100)
    for kind, times in announced.items():
        assert all(later - earlier >= 100 for earlier, later in itertools.pairwise(times))
        assert kind not in changed or changed[kind] <= times[-1] <= changed[kind] + 100
