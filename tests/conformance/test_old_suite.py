"""Suite 0.1.16, which many projects still use. It has no requirement sets."""

from pathlib import Path

import pytest
from tests.conformance.gate import old_complaints
from tests.conformance.suite import (
    OLD_CLIENT_SCENARIOS,
    OLD_SERVER_SCENARIOS,
    OLD_SUITE,
    playable_before,
    run,
    run_client,
)

# Only `make conformance-old` runs the logins: the newer suite has the same ones, and more of them.
CLIENT = ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"]


@pytest.mark.row("Z08")
def test_old_suite_accepts_the_server(url: str, tmp_path: Path) -> None:
    outcome = run("server", "--url", url, "--suite", "all", output=tmp_path, suite=OLD_SUITE)
    told = {name: old_complaints(name, checks) for name, checks in outcome.checks.items()}
    assert {name: words for name, words in told.items() if words} == {}
    assert (outcome.status, len(told)) == (0, OLD_SERVER_SCENARIOS), outcome.said


@pytest.mark.row("Z08")
def test_old_suite_has_all_client_scenarios() -> None:
    scenarios = playable_before()
    assert len(scenarios) == OLD_CLIENT_SCENARIOS
    assert [name for name in scenarios if not name.startswith("auth/")] == CLIENT


@pytest.mark.row("Z08")
@pytest.mark.parametrize("scenario", CLIENT)
def test_old_suite_accepts_the_client(scenario: str, tmp_path: Path) -> None:
    outcome = run_client(scenario, output=tmp_path, suite=OLD_SUITE)
    assert outcome.status == 0, outcome.said
    assert old_complaints(scenario, outcome.checks.get(scenario)) == []
