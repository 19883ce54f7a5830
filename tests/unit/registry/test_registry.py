"""Registry: unique keys, stable order, pages, and a signal for every change."""

import pytest
from msgspec import Struct

from trunkline.errors import DuplicateEntry, InvalidCursor, InvalidPageSize, NotRegistered, PageSizeTooLarge
from trunkline.registry.cursors import Cursors
from trunkline.registry.registry import Registry


class Thing(Struct, frozen=True):
    key: str
    value: int = 0


def filled(*keys: str, **options) -> Registry[Thing]:
    registry: Registry[Thing] = Registry("thing", **options)
    for key in keys:
        registry.add(Thing(key))
    return registry


def keys(registry: Registry[Thing]) -> list[str]:
    return [thing.key for thing in registry]


def walk(registry: Registry[Thing], limit: int) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        page = registry.page(cursor, limit)
        pages.append([thing.key for thing in page.entries])
        if (cursor := page.next_cursor) is None:
            return pages


def test_entries_keep_insertion_order() -> None:
    registry = filled("c", "a", "b")

    assert keys(registry) == ["c", "a", "b"]
    assert len(registry) == 3
    assert "a" in registry
    assert "x" not in registry
    assert registry.get("a") == Thing("a")
    assert registry.get("x") is None


def test_readded_entry_comes_last() -> None:
    registry = filled("a", "b")
    registry.remove("a")
    assert keys(registry) == ["b"]

    registry.add(Thing("a"))

    assert keys(registry) == ["b", "a"]


def test_unknown_entry_cannot_be_changed() -> None:
    registry = filled()
    for change in (registry.remove, registry.enable, registry.disable):
        with pytest.raises(NotRegistered) as caught:
            change("x")
        assert str(caught.value) == "thing 'x' is not registered"


# --- duplicates ----------------------------------------------------------------------------------


@pytest.mark.row("R21")
def test_duplicate_is_refused_by_default() -> None:
    registry = filled("a")

    with pytest.raises(DuplicateEntry, match="thing 'a' is already registered") as caught:
        registry.add(Thing("a", 2))

    assert caught.value.kind == "thing_already_exists"
    assert registry.get("a") == Thing("a")


@pytest.mark.row("R21")
def test_duplicate_replaces_in_place_if_configured() -> None:
    registry = filled("a", "b", on_duplicate="replace")

    registry.add(Thing("a", 2))

    assert list(registry) == [Thing("a", 2), Thing("b")]
    assert registry.live["a"] == Thing("a", 2)


@pytest.mark.row("R21")
def test_duplicate_replaces_with_warning_if_configured() -> None:
    registry = filled("a", on_duplicate="warn")

    with pytest.warns(UserWarning, match="thing 'a' was registered before and is replaced") as warned:
        registry.add(Thing("a", 2))

    assert registry.get("a") == Thing("a", 2)
    assert warned[0].filename == __file__


def test_replaced_disabled_entry_stays_disabled() -> None:
    registry = filled("a", on_duplicate="replace")
    registry.disable("a")

    registry.add(Thing("a", 2))
    assert keys(registry) == []
    assert "a" not in registry.live

    registry.enable("a")
    assert registry.live == {"a": Thing("a", 2)}


# --- enabling and disabling ----------------------------------------------------------------------


def test_disabled_entry_is_not_listed() -> None:
    registry = filled("a", "b")

    registry.disable("a")

    assert keys(registry) == ["b"]
    assert walk(registry, 10) == [["b"]]
    assert "a" not in registry.live
    assert not registry.enabled("a")
    assert registry.enabled("b")
    assert not registry.enabled("x")
    assert registry.get("a") == Thing("a")


def test_enabled_entry_keeps_its_position() -> None:
    registry = filled("a", "b", "c")
    registry.disable("a")

    registry.enable("a")

    assert keys(registry) == ["a", "b", "c"]
    assert registry.live.keys() == {"a", "b", "c"}


def test_every_change_notifies() -> None:
    told: list[str] = []
    registry = filled(on_change=told.append, on_duplicate="replace")
    steps = [
        lambda: registry.add(Thing("a")),
        lambda: registry.add(Thing("a")),
        lambda: registry.disable("a"),
        lambda: registry.enable("a"),
        lambda: registry.remove("a"),
    ]
    for number, step in enumerate(steps, start=1):
        step()
        assert told == ["thing"] * number
        assert registry.version == number


def test_redundant_enable_does_not_notify() -> None:
    told: list[str] = []
    registry = filled("a", on_change=told.append)
    registry.enable("a")
    registry.disable("a")
    registry.disable("a")

    assert told == ["thing"] * 2


# --- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "pages"),
    [
        (1, [["a"], ["b"], ["c"], ["d"]]),
        (2, [["a", "b"], ["c", "d"]]),
        (3, [["a", "b", "c"], ["d"]]),
        (4, [["a", "b", "c", "d"]]),
        (5, [["a", "b", "c", "d"]]),
    ],
)
def test_last_page_has_no_cursor(limit: int, pages: list[list[str]]) -> None:
    assert walk(filled("a", "b", "c", "d"), limit) == pages


def test_empty_registry_has_one_empty_page() -> None:
    assert walk(filled(), 1) == [[]]


@pytest.mark.row("Y05")
def test_page_size_is_configurable() -> None:
    registry = filled("a", "b", "c", page_size=2)

    assert [thing.key for thing in registry.page().entries] == ["a", "b"]


@pytest.mark.row("Y03")
@pytest.mark.parametrize("limit", [0, -1, "x", "5", 1.5, True, [1]])
def test_invalid_limit_is_refused(limit: object) -> None:
    with pytest.raises(InvalidPageSize, match="limit must be an integer of 1 or more"):
        filled("a").page(None, limit)


@pytest.mark.row("Y03")
def test_limit_above_maximum_is_refused() -> None:
    registry = filled("a", page_size=2, max_page_size=2)
    assert registry.page(None, 2).entries == [Thing("a")]

    with pytest.raises(PageSizeTooLarge, match="limit 3 is above the maximum page size of 2") as caught:
        registry.page(None, 3)

    assert caught.value.data["maximum"] == 2


def test_cursor_survives_removal_of_its_entry() -> None:
    registry = filled("a", "b", "c")
    cursor = registry.page(None, 2).next_cursor
    registry.remove("b")

    assert [thing.key for thing in registry.page(cursor).entries] == ["c"]


def test_readded_entry_has_new_number() -> None:
    registry = filled("a", "b", "c")
    cursor = registry.page(None, 2).next_cursor
    registry.remove("a")
    registry.add(Thing("a"))

    assert [thing.key for thing in registry.page(cursor).entries] == ["c", "a"]


@pytest.mark.row("Y02")
def test_cursor_of_another_list_is_refused() -> None:
    cursors = Cursors()
    one: Registry[Thing] = Registry("one", cursors=cursors)
    other: Registry[Thing] = Registry("other", cursors=cursors)
    for registry in (one, other):
        registry.add(Thing("a"))
        registry.add(Thing("b"))

    with pytest.raises(InvalidCursor):
        other.page(one.page(None, 1).next_cursor)


# --- size ----------------------------------------------------------------------------------------


class CountingKey(str):
    """A string that counts its comparisons."""

    __slots__ = ("compared",)

    def __hash__(self) -> int:
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.compared = getattr(self, "compared", 0) + 1
        return super().__eq__(other)


@pytest.mark.row("A08")
def test_lookup_compares_few_keys() -> None:
    registry = filled(*(f"resource://{number}" for number in range(100_000)))
    wanted = CountingKey("resource://77777")

    assert registry.live[wanted].key == "resource://77777"
    assert registry.get(wanted) is not None
    assert wanted.compared <= 10


@pytest.mark.row("A13")
def test_ten_thousand_tools_can_be_changed_and_looked_up() -> None:
    registry = filled(*(f"tool{number}" for number in range(10_000)), on_duplicate="replace")
    registry.add(Thing("tool5000", 2))
    registry.remove("tool4999")

    assert len(registry) == 9_999
    assert registry.get("tool5000") == Thing("tool5000", 2)
    assert registry.get("tool4999") is None
    assert keys(registry)[4_998:5_000] == ["tool4998", "tool5000"]


@pytest.mark.row("Y04")
def test_skipped_entries_do_not_count_in_page() -> None:
    registry = filled("a", "b", "c", "d")

    first = registry.page(None, 2, without={"a"})

    assert [thing.key for thing in first.entries] == ["b", "c"]
    assert [thing.key for thing in registry.page(first.next_cursor, 2, without={"a"}).entries] == ["d"]


def test_all_returns_disabled_entries_too() -> None:
    registry = filled("a", "b")
    registry.disable("a")

    assert registry.all() == [Thing("a"), Thing("b")]
