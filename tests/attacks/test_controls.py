"""Each attack of this folder succeeds when its control is disabled: otherwise its test would show nothing."""

import ast
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.attacks.controls import WITHOUT

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ATTACKS = sorted(path for path in HERE.glob("test_*.py") if path != Path(__file__))
LONGEST = HERE / "test_exhaustion.py"
AT_ONCE = 3  # processes: most attacks wait for something that does not happen without their controls
# Plugins that only cost time, or blame a test for what an earlier one has left behind.
UNUSED = ("cacheprovider", "xdist", "hypothesispytest", "anyio", "faker", "unraisableexception", "threadexception")


def attacks_in(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}
    return {name for name in names if name.startswith("test_")}


def test_every_attack_has_a_removable_control() -> None:
    assert {module: set(rows) for module, rows in WITHOUT.items()} == {path.stem: attacks_in(path) for path in ATTACKS}


def without_controls(attacks: list[str], report: Path) -> "subprocess.CompletedProcess[str]":
    """Run attacks in a process without their controls. The outcomes are in the report: standard output is shared with
    the processes that attacks start.
    """
    options = [option for name in UNUSED for option in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-p", "tests.attacks.controls", *options, "-q", "--tb=no", *attacks]
    environment = {**os.environ, "ATTACK_PATIENCE": "0.7", "ATTACK_REPORT": str(report)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("longest", [True, False], ids=["the long ones", "the others"])
def test_attack_succeeds_without_its_control(longest: bool, tmp_path: Path) -> None:
    paths = [path for path in ATTACKS if (path == LONGEST) is longest]
    attacks = [f"{path}::{name}" for path in paths for name in sorted(attacks_in(path))]
    parts = [attacks[part::AT_ONCE] for part in range(AT_ONCE)]
    reports = [tmp_path / str(part) for part in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as processes:
        done = list(processes.map(without_controls, parts, reports))
    said = "".join(one.stdout + one.stderr for one in done)
    assert [one.returncode for one in done] == [pytest.ExitCode.TESTS_FAILED] * AT_ONCE, said
    ended = [json.loads(line) for report in reports for line in report.read_text().splitlines()]
    ran = {one["test"].partition("[")[0] for one in ended}
    assert ran == set().union(*map(attacks_in, paths)), said
    assert {one["test"]: one["ended by"] for one in ended if one["ended by"] != "AssertionError"} == {}
