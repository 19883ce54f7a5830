"""The record of effects: complete and in order, also on a full disk."""

import os
from pathlib import Path

from tests.chaos.effects import Boards, EffectsLog, read_effects
from tests.chaos.full_disk import full_disk


def test_effects_are_read_in_the_order_of_writing(tmp_path: Path) -> None:
    first, second = EffectsLog(tmp_path / "effects"), EffectsLog(tmp_path / "effects")
    first.write("a", "pay", "a.1", run="r1")
    with full_disk([os.getpid()]):
        second.write("b", "count", "b.1", 7, "r2")
        first.write("a", "pay", "a.2")
    found = read_effects(tmp_path / "effects")
    assert [(one.what, one.operation, one.number, one.run, one.who) for one in found] == [
        ("pay", "a.1", 0, "r1", "a"),
        ("count", "b.1", 7, "r2", "b"),
        ("pay", "a.2", 0, "-", "a"),
    ]
    assert [one.at for one in found] == sorted(one.at for one in found)


def test_numbers_on_a_board_are_unique(tmp_path: Path) -> None:
    one, other = Boards(tmp_path / "boards"), Boards(tmp_path / "boards")
    assert one.read("b") == 0
    with full_disk([os.getpid()]):
        assert [one.write("b"), other.write("b"), one.write("b")] == [1, 2, 3]
    assert (other.read("b"), other.read("c")) == (3, 0)
