"""Walking the pages of a registry while it changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from trunkline.registry.registry import Registry


class Thing(Struct, frozen=True):
    key: str


# Changes between two pages: an entry is added, or the entry at an index is removed, disabled or replaced.
changes = st.tuples(st.sampled_from(["add", "remove", "disable", "enable", "replace"]), st.integers(0, 40))


@pytest.mark.row("Y04")
@given(
    count=st.integers(0, 25),
    limits=st.lists(st.integers(1, 7), min_size=1),
    between=st.lists(st.lists(changes, max_size=4), max_size=25),
)
def test_iteration_sees_remaining_entries_exactly_once(
    count: int, limits: list[int], between: list[list[tuple[str, int]]]
) -> None:
    registry: Registry[Thing] = Registry("thing", on_duplicate="replace")
    added: list[str] = []

    def add() -> None:
        added.append(f"thing {len(added)}")
        registry.add(Thing(added[-1]))

    for _ in range(count):
        add()
    touched: set[str] = set()  # was absent or disabled at some time during the walk
    seen: list[str] = []
    cursor = None
    for step in range(10_000):
        page = registry.page(cursor, limits[step % len(limits)])
        seen += [thing.key for thing in page.entries]
        assert len(page.entries) <= limits[step % len(limits)]
        if (cursor := page.next_cursor) is None:
            break
        for change, index in between[step] if step < len(between) else []:
            key = added[index % len(added)]
            if change == "add":
                add()
            elif key in registry:
                if change == "replace":
                    registry.add(Thing(key))
                else:
                    touched.add(key)
                    getattr(registry, change)(key)

    assert cursor is None
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen, key=added.index)
    assert set(seen) >= set(added) - touched
    assert registry.live == {thing.key: thing for thing in registry}


@pytest.mark.row("Y04")
@given(count=st.integers(0, 60), limit=st.integers(1, 20))
def test_pages_of_any_size_form_whole_list(count: int, limit: int) -> None:
    registry: Registry[Thing] = Registry("thing")
    for number in range(count):
        registry.add(Thing(str(number)))
    seen, cursor, pages = [], None, 0
    while cursor is not None or pages == 0:
        page = registry.page(cursor, limit)
        seen += page.entries
        cursor, pages = page.next_cursor, pages + 1

    assert seen == list(registry)
    assert pages == max(1, -(-count // limit))
