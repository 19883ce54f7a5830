"""The pass criteria: they reject what the suite lets pass, and a server or client that does nothing."""

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.gate import LEAST, complaints
from tests.conformance.suite import FIXTURES, REVISIONS, run, run_client, serving

# Changes to the server before the run.
CHANGED = """
import sys

sys.path.insert(0, {fixtures!r})
from everything import server

from trunkline import ToolError

server.remove_tool("test_simple_text")
{change}
server.run("http", port=int(sys.argv[1]))
"""
FAILING = """
@server.tool
async def test_simple_text() -> str:
    raise ToolError("not today")
"""


def check(status: str, ident: str = "a-check", **more: Any) -> dict[str, Any]:
    return {"id": ident, "status": status, **more}


def test_enough_successes_pass_and_information_is_ignored() -> None:
    assert complaints([check("SUCCESS"), check("SUCCESS"), check("INFO")], 2) == []


def test_scenario_without_checks_does_not_pass() -> None:
    assert complaints(None, 0) == ["wrote no checks"]


@pytest.mark.parametrize("status", ["FAILURE", "WARNING", "SKIPPED"])
def test_failures_warnings_and_skips_do_not_pass(status: str) -> None:
    told = complaints([check("SUCCESS"), check(status, errorMessage="so it is")], 1)
    assert told == [f"{status} a-check: so it is"]


def test_too_few_successes_do_not_pass() -> None:
    assert complaints([check("SUCCESS"), check("INFO")], 2) == ["only 1 of at least 2 checks succeeded"]


def test_unintended_tool_failure_does_not_pass() -> None:
    failed = {"result": {"content": [], "isError": True}}
    assert complaints([check("SUCCESS", details=failed)], 1) == [f"a-check: the tool failed: {failed['result']}"]
    assert complaints([check("SUCCESS", "tools-call-error", details=failed)], 1) == []


def test_idle_client_passes_the_suite_but_not_the_gate(tmp_path: Path) -> None:
    outcome = run_client("initialize", "--spec-version", REVISIONS[0], output=tmp_path, client="true")
    assert (outcome.status, outcome.checks) == (0, {"initialize": []})
    assert complaints([], LEAST[REVISIONS[0]]["client"]["initialize"]) != []


@pytest.mark.parametrize("least", [least for revision in REVISIONS for least in LEAST[revision].values()])
def test_scenario_without_success_does_not_pass(least: dict[str, int]) -> None:
    assert [scenario for scenario, count in least.items() if complaints([check("INFO")], count) == []] == []


@pytest.mark.parametrize(
    ("change", "because"),
    [("", "FAILURE tools-call-simple-text"), (FAILING, "the tool failed: ")],
    ids=["gone", "failing"],
)
def test_server_with_missing_or_failing_tool_does_not_pass(change: str, because: str, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(CHANGED.format(fixtures=str(FIXTURES), change=change))
    scenario = "tools-call-simple-text"
    with serving(script) as url:
        options = ["--url", url, "--scenario", scenario, "--spec-version", REVISIONS[0]]
        outcome = run("server", *options, output=tmp_path / "written")
    [checks] = outcome.checks.values()
    assert because in "; ".join(complaints(checks, LEAST[REVISIONS[0]]["server"][scenario]))
