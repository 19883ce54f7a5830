"""Registry: unique keys, stable order, pages, and a signal for every change."""

import pytest
from msgspec import Struct

from trunkline.errors import (
    DuplicateEntry,
    InvalidCursor,
    InvalidPageSize,
    MisuseError,
    NameClash,
    NotRegistered,
    PageSizeTooLarge,
)
from trunkline.registry.cursors import Cursors
from trunkline.registry.registry import Offered, Registry


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


def test_all_entries_are_replaced_at_once() -> None:
    changes: list[str] = []
    registry = filled("a", "b", "c", on_change=changes.append)
    registry.disable("b")
    cursor = registry.page(limit=1).next_cursor
    changes.clear()
    other = filled("d", "c", "b")
    other.disable("d")
    registry.replace_all(other)
    assert keys(registry) == ["b", "c"]
    assert [thing.key for thing in registry.all()] == ["b", "c", "d"]
    assert {*registry.live} == {"b", "c"}
    assert [thing.key for thing in registry.page(cursor).entries] == ["b", "c"]
    assert changes == ["thing"]


def test_replacing_nothing_by_nothing_is_no_change() -> None:
    changes: list[str] = []
    filled(on_change=changes.append).replace_all(filled())
    assert changes == []


# --- entries of providers ------------------------------------------------------------------------


def offered(*keys: str) -> list[Offered[Thing]]:
    return [Offered(Thing(key)) for key in keys]


def test_entries_of_a_provider_are_replaced_as_a_whole() -> None:
    registry = filled("own")
    registry.offer("p", offered("a", "b"))
    registry.offer("q", offered("c"))
    assert keys(registry) == ["own", "a", "b", "c"]
    assert (registry.provider_of("a"), registry.provider_of("own"), registry.provider_of("x")) == ("p", None, None)

    registry.offer("p", offered("d", "b"))
    assert keys(registry) == ["own", "b", "c", "d"]
    assert registry.live.keys() == {"own", "b", "c", "d"}

    registry.offer("p", [])
    assert keys(registry) == ["own", "c"]


def test_unchanged_offer_does_not_notify() -> None:
    told: list[str] = []
    registry, same = filled(on_change=told.append), offered("a")
    registry.offer("p", same)
    registry.offer("p", same)
    registry.offer("q", [])

    assert told == ["thing"]


def test_entry_of_a_provider_is_enabled_if_both_sides_enable_it() -> None:
    registry, thing = filled(), Thing("a")
    registry.offer("p", [Offered(thing, enabled=False)])
    assert not registry.enabled("a")
    assert registry.offers() == [Offered(thing, enabled=False)]

    registry.disable("a")
    registry.offer("p", [Offered(thing)])
    assert registry.live == {}

    registry.enable("a")
    assert registry.live == {"a": thing}


def test_clash_of_a_provider_is_refused_before_a_change() -> None:
    registry = filled("own", on_duplicate="replace")
    registry.offer("p", offered("a"))

    for provider, clashing in [("q", "a"), ("p", "own")]:
        with pytest.raises(NameClash, match=f"thing '{clashing}' of {provider} clashes with that of"):
            registry.offer(provider, offered("new", clashing))
    with pytest.raises(NameClash, match="thing 'x' of p clashes with that of the same server"):
        registry.offer("p", offered("x", "x"))
    with pytest.raises(NameClash, match="thing 'a' of a new one clashes with that of p"):
        registry.add(Thing("a"))
    with pytest.raises(NameClash, match="thing 'a' of a new one clashes with that of p"):
        registry.replace_all(filled("a"))
    with pytest.raises(MisuseError, match="thing 'a' is not registered here: it comes from p"):
        registry.remove("a")

    assert keys(registry) == ["own", "a"]


def test_replacing_registered_entries_leaves_those_of_providers() -> None:
    registry, other = filled("own"), filled("new")
    registry.offer("p", offered("a"))
    other.offer("q", offered("b"))

    registry.replace_all(other)
    assert keys(registry) == ["a", "new"]

    registry.replace_all(filled())
    registry.replace_all(filled())
    assert keys(registry) == ["a"]


def test_refused_entry_is_not_added() -> None:
    def refuse(kind: str, thing: Thing) -> None:
        raise MisuseError(f"{kind} {thing.key}")

    registry: Registry[Thing] = Registry("thing", before_add=refuse)
    for change in (
        lambda: registry.add(Thing("a")),
        lambda: registry.replace_all(filled("a")),
        lambda: registry.offer("p", offered("a")),
    ):
        with pytest.raises(MisuseError, match="thing a"):
            change()
    assert len(registry) == 0


def test_entries_are_switched_by_a_predicate() -> None:
    told: list[str] = []
    registry = filled("a", "b", "c", on_change=told.append)
    told.clear()

    registry.switch_where(lambda thing: thing.key != "b", on=False)
    registry.switch_where(lambda thing: thing.key != "b", on=False)
    assert keys(registry) == ["b"]
    registry.switch_where(lambda thing: thing.key == "a", on=True)

    assert registry.live.keys() == {"a", "b"}
    assert told == ["thing"] * 2


def test_new_entry_may_start_disabled() -> None:
    registry: Registry[Thing] = Registry("thing", starts_disabled=lambda thing: thing.value == 1)
    registry.add(Thing("a", 1))
    registry.add(Thing("b"))
    registry.offer("p", [Offered(Thing("c", 1)), Offered(Thing("d"))])

    assert keys(registry) == ["b", "d"]
