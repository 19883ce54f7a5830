"""Versions of one entry: their order, and the names that they have."""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from trunkline.errors import DuplicateEntry, NameClash
from trunkline.registry.registry import Offered, Registry, VersionRule
from trunkline.registry.versions import version_order


class Thing(Struct, frozen=True):
    key: str
    version: str | None = None


RULE: VersionRule[Thing] = VersionRule(
    lambda thing: thing.version,
    lambda thing: None if thing.version == "none" else f"{thing.key}.v{thing.version}",
    lambda thing, key: replace(thing, key=key),
)


def versioned(*things: Thing, **options) -> Registry[Thing]:
    registry = Registry[Thing]("thing", versions=RULE, **options)
    for thing in things:
        registry.add(thing)
    return registry


def test_versions_are_compared_piece_by_piece() -> None:
    ascending = ["1", "1.2", "1.9", "1.10", "2.0-alpha", "2.0-rc1", "2.0-rc2", "2.0", "2.0.1", "v3", "10"]

    assert sorted(["v3"], key=version_order) == ["v3"]
    assert sorted([each for each in reversed(ascending) if each != "v3"], key=version_order) == [
        each for each in ascending if each != "v3"
    ]


def test_highest_version_has_the_name_and_each_one_a_name_of_its_own() -> None:
    registry = versioned(Thing("a", "2"), Thing("a", "10"), Thing("a", "1"))

    assert list(registry) == [Thing("a", "10")]
    assert registry.live == {
        "a": Thing("a", "10"),
        "a.v1": Thing("a.v1", "1"),
        "a.v2": Thing("a.v2", "2"),
        "a.v10": Thing("a.v10", "10"),
    }
    assert len(registry) == 1
    assert "a.v1" not in registry


def test_version_that_no_name_can_contain_has_no_name_of_its_own() -> None:
    assert versioned(Thing("a", "none")).live.keys() == {"a"}


def test_versions_are_disabled_and_removed_together() -> None:
    registry = versioned(Thing("a", "1"), Thing("a", "2"))
    registry.disable("a")
    assert registry.live == {}

    registry.enable("a")
    assert registry.live.keys() == {"a", "a.v1", "a.v2"}

    registry.remove("a")
    assert registry.live == {}


@pytest.mark.parametrize("again", [Thing("a", "1"), Thing("a")])
def test_same_version_or_none_is_a_duplicate(again: Thing) -> None:
    with pytest.raises(DuplicateEntry):
        versioned(Thing("a", "1"), again)


def test_entry_without_a_version_replaces_all_versions_if_configured() -> None:
    registry = versioned(Thing("a", "1"), Thing("a", "2"), Thing("a"), on_duplicate="replace")

    assert registry.live == {"a": Thing("a")}


def test_name_of_a_version_clashes_with_another_entry() -> None:
    with pytest.raises(NameClash, match=r"thing 'a.v1' of a new one clashes with that of a version of another one"):
        versioned(Thing("a", "1"), Thing("a.v1"))
    with pytest.raises(NameClash, match=r"thing 'a.v1' of a version of 'a' clashes with that of this server"):
        versioned(Thing("a.v1"), Thing("a", "1"))
    assert versioned(Thing("a.vNone"), Thing("a")).live.keys() == {"a", "a.vNone"}


def test_offered_and_replaced_entries_keep_their_versions() -> None:
    source, mirror, copied = versioned(Thing("a", "1"), Thing("a", "2")), versioned(), versioned(Thing("b", "1"))

    mirror.offer("x", source.offers())
    copied.replace_all(source)

    assert mirror.live == copied.live == source.live
    mirror.offer("x", [Offered(Thing("a", "1"), versions={"1": Thing("a", "1")})])
    assert mirror.live.keys() == {"a", "a.v1"}
