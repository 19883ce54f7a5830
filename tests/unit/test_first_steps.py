"""The comparison of first steps: its table and its refusal to measure failures."""

import sys
from pathlib import Path

import pytest
from bench.first_steps import Cost, StepFailed, lines, run, sides


def test_table_counts_commands_and_lines() -> None:
    ours, created, theirs = found = sides()
    assert ours.source.splitlines()[4:] == theirs.source.splitlines()[4:]
    for side in found:
        side.set_up = [Cost(1, 1), Cost(2, 2)]
        side.calls = [Cost(3, 3), Cost(0.5, 0.25), Cost(0.7, 0.3)]
    created.created = Cost(0.1, 0.1)
    table = lines(found)
    assert table[1].split()[:4] == ["trunkline", "4", "7", "6.0"]
    assert table[3].split()[:5] == ["trunkline", "new", "3", "0", "3.1"]
    assert table[5].split()[:4] == ["fastmcp", "4", "7", "6.0"]
    assert table[1].split()[-6:] == ["3.00", "s", "(3.00)", "0.50", "s", "(0.25)"]
    assert "median of 2 later calls 0.60 s" in table[2]


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "print(7)"])
def test_failed_or_wrong_call_is_not_measured(program: str, tmp_path: Path) -> None:
    with pytest.raises(StepFailed):
        run([sys.executable, "-c", program], tmp_path, expected="8")


def test_cost_has_cpu_time_of_the_command(tmp_path: Path) -> None:
    cost = run([sys.executable, "-c", "sum(range(5_000_000)); print(8)"], tmp_path, expected="8")
    assert cost.cpu > 0
    assert cost.wall > 0
