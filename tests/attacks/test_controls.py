"""Every attack of this folder succeeds where its control is taken away: otherwise its test would show nothing."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attacks.controls import WITHOUT

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ATTACKS = sorted(path for path in HERE.glob("test_*.py") if path != Path(__file__))
LONGEST = [path for path in ATTACKS if path.stem == "test_exhaustion"]
GROUPS = {
    "the long ones": LONGEST,
    "the others": [path for path in ATTACKS if path not in LONGEST],
}  # to start twice only
UNUSED = ("cacheprovider", "pytest_cov", "xdist", "hypothesispytest", "anyio", "faker")  # plugins that only cost time


def attacks_in(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}
    return {name for name in names if name.startswith("test_")}


def test_every_attack_has_a_control_that_can_be_taken_away() -> None:
    assert {module: set(rows) for module, rows in WITHOUT.items()} == {path.stem: attacks_in(path) for path in ATTACKS}


@pytest.mark.parametrize("group", GROUPS)
def test_an_attack_succeeds_without_its_control(group: str) -> None:
    paths = GROUPS[group]
    options = [option for name in UNUSED for option in ("-p", f"no:{name}")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.attacks.controls",
            *options,
            "-q",
            "-s",
            "--tb=no",
            *map(str, paths),
        ],
        cwd=ROOT,
        env={**os.environ, "ATTACK_PATIENCE": "0.7"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    ended = [json.loads(line) for line in re.findall(r"^\{\"test.*\}$", done.stdout, re.MULTILINE)]
    ran = {one["test"].partition("[")[0] for one in ended}
    assert ran == set().union(*map(attacks_in, paths)), done.stdout + done.stderr
    assert {one["test"]: one["ended by"] for one in ended if one["ended by"] != "AssertionError"} == {}
