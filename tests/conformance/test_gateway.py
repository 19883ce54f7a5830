"""The official scenarios for servers through a gateway, in front of the server of the other conformance tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.conformance.gate import LEAST, complaints
from tests.conformance.suite import REVISIONS, run, servable

from trunkline import Gateway
from trunkline.testing import serve_http

LIMITS: Final = {
    "2025-11-25": {
        "server-sse-polling": "the backend ends its event stream early; that of the gateway stays open",
    },
    "2026-07-28": {
        "server-stateless": "a backend adds an entry and removes it at once, and the gateway finds no change in its list",
    },
}
"""Scenarios that cannot pass through a gateway, and why."""
PASSING_ENTRIES: Final = {
    "sep-2575-server-sends-prompts-list-changed-on-subscription",
    "sep-2575-server-sends-tools-list-changed-on-subscription",
}  # the only checks of `server-stateless` that fail
FEW: Final = [
    ("2025-11-25", "tools-call-elicitation"),
    ("2026-07-28", "input-required-result-multi-round"),
]


@pytest.fixture(scope="module")
def gateway_url(url: str) -> Iterator[str]:
    """The URL of a gateway in front of the server."""
    gateway = Gateway({"behind": url}, options={"behind": {"prefix": ""}}, pins=False, cache=False)
    with serve_http(gateway.server) as address:
        yield address.replace("127.0.0.1", "localhost")


@pytest.mark.row("Z08")
@pytest.mark.parametrize(("revision", "scenario"), FEW)
def test_scenario_passes_through_a_gateway(revision: str, scenario: str, gateway_url: str, tmp_path: Path) -> None:
    chosen = ["--spec-version", revision, "--scenario", scenario]
    outcome = run("server", "--url", gateway_url, *chosen, output=tmp_path)
    assert complaints(outcome.checks.get(scenario), LEAST[revision]["server"][scenario]) == []


@pytest.mark.long
@pytest.mark.row("Z08")
@pytest.mark.parametrize("revision", REVISIONS)
def test_all_scenarios_but_known_ones_pass_through_a_gateway(revision: str, gateway_url: str, tmp_path: Path) -> None:
    outcome = run("server", "--url", gateway_url, "--requirements", revision, output=tmp_path)
    least = LEAST[revision]["server"]
    told = {name: complaints(outcome.checks.get(name), least[name]) for name in servable(revision)}
    failed = {name: words for name, words in told.items() if words}
    assert {name: words for name, words in failed.items() if name not in LIMITS[revision]} == {}
    assert failed.keys() == LIMITS[revision].keys(), "a scenario that passes has no limit"
    stateless = outcome.checks.get("server-stateless", [])
    assert {check["id"] for check in stateless if check["status"] in {"FAILURE", "WARNING"}} <= PASSING_ENTRIES
