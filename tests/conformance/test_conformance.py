"""The official conformance suite, scenario by scenario: our server, and our client."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.gate import LEAST, LEAST_OF_OLDEST, complaints
from tests.conformance.suite import REVISIONS, Run, play, playable, run_client, servable
from tests.official import ROOT

SERVER = [(revision, scenario) for revision in REVISIONS for scenario in servable(revision)]
CLIENT = [(revision, scenario) for revision in REVISIONS for scenario in playable(revision)]


@pytest.mark.parametrize(("revision", "scenario"), SERVER)
def test_z08_conformance_server_passes(revision: str, scenario: str, server_run: Callable[[str], Run]) -> None:
    checks = server_run(revision).checks.get(scenario)
    assert complaints(checks, LEAST[revision]["server"][scenario]) == []


@pytest.mark.parametrize("revision", REVISIONS)
def test_z08_the_suite_is_content_with_the_server(revision: str, server_run: Callable[[str], Run]) -> None:
    outcome = server_run(revision)
    assert outcome.status == 0, outcome.said


@pytest.mark.parametrize(("revision", "scenario"), CLIENT)
def test_z08_conformance_client_passes(revision: str, scenario: str, tmp_path: Path) -> None:
    outcome = play(scenario, revision, tmp_path)
    assert outcome.status == 0, outcome.said
    assert complaints(outcome.checks.get(scenario), LEAST[revision]["client"][scenario]) == []


@pytest.mark.parametrize("scenario", LEAST_OF_OLDEST)
def test_z08_conformance_client_passes_for_servers_of_2025_03_26(scenario: str, tmp_path: Path) -> None:
    outcome = run_client(scenario, output=tmp_path)
    assert outcome.status == 0, outcome.said
    assert complaints(outcome.checks.get(scenario), LEAST_OF_OLDEST[scenario]) == []


@pytest.mark.parametrize("revision", REVISIONS)
def test_z08_the_gate_knows_every_scenario_and_no_other(revision: str) -> None:
    assert [*LEAST[revision]["server"]] == servable(revision)
    assert [*LEAST[revision]["client"]] == playable(revision)


def test_z08_the_manual_names_every_scenario_that_is_run() -> None:
    page = (ROOT / "docs/reference/conformance.md").read_text("utf-8")
    run = [*(scenario for _, scenario in [*SERVER, *CLIENT]), *LEAST_OF_OLDEST]
    assert [scenario for scenario in run if f"`{scenario}`" not in page] == []
