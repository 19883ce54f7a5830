"""The gates of the test command: CI runs it, and missing coverage fails it."""

from pathlib import Path
from typing import Any

import pytest
from tools.coverage_gates import GATES, judge

ROOT = Path(__file__).parents[1]
PARTS = (*GATES, "transports")


def measured(**missing: int) -> dict[str, Any]:
    """A report of a hundred lines in each part, of which so many did not run."""
    return {
        f"src/trunkline/{part}/module.py": {
            "summary": {
                "num_statements": 100,
                "covered_lines": 100 - missing.get(part.replace("/", "_"), 0),
                "num_branches": 0,
                "covered_branches": 0,
            },
            "missing_lines": [7] * missing.get(part.replace("/", "_"), 0),
            "missing_branches": [],
        }
        for part in PARTS
    }


@pytest.mark.row("Z07", "X28")
def test_full_coverage_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(measured()) == 0
    assert "FAIL" not in capsys.readouterr().out


@pytest.mark.row("Z07", "X28", "PH15", "PH26", "PH36", "PH45")
@pytest.mark.parametrize("part", GATES)
def test_one_missing_line_fails_a_part_that_needs_all(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(measured(**{part.replace("/", "_"): 1})) == 1
    assert f"src/trunkline/{part}/module.py: lines [7]" in capsys.readouterr().out


@pytest.mark.row("Z07", "X28", "PH64")
def test_less_than_nine_tenths_overall_fails() -> None:
    assert judge(measured(transports=49)) == 0
    assert judge(measured(transports=51)) == 1


def test_unmeasured_part_fails(capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: file for name, file in measured().items() if "/wire/" not in name}
    assert judge(files) == 1
    assert "nothing was measured in wire" in capsys.readouterr().out


@pytest.mark.row("Z12")
def test_ci_runs_the_test_command_with_conformance_and_gates() -> None:
    assert (ROOT / ".ci/run").read_text("utf-8").splitlines()[-1] == "make test"
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ntest: check")[2].partition("\n\n")[0]
    assert "pytest" in recipe
    assert "tools/coverage_gates.py" in recipe
    assert (ROOT / "tests/conformance/test_conformance.py").exists()
