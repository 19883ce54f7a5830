"""The official conformance suite, scenario by scenario: our server, and our client."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.chaos.forwarder import forwarded
from tests.conformance.gate import LEAST, LEAST_OF_OLDEST, complaints
from tests.conformance.suite import REVISIONS, Run, play, playable, run, run_client, servable, serving
from tests.official import ROOT

SERVER = [(revision, scenario) for revision in REVISIONS for scenario in servable(revision)]
CLIENT = [(revision, scenario) for revision in REVISIONS for scenario in playable(revision)]
WITH_WORKERS = {  # one run of the suite each
    "2025-11-25": ["--requirements", "2025-11-25"],
    "2026-07-28": ["--spec-version", "2026-07-28", "--scenario", "server-stateless"],
}


@pytest.mark.row("Z08", "PH51", "PH61")
@pytest.mark.parametrize(("revision", "scenario"), SERVER)
def test_conformance_server_passes(revision: str, scenario: str, server_run: Callable[[str], Run]) -> None:
    checks = server_run(revision).checks.get(scenario)
    assert complaints(checks, LEAST[revision]["server"][scenario]) == []


@pytest.mark.row("Z08")
@pytest.mark.parametrize("revision", REVISIONS)
def test_suite_accepts_the_server(revision: str, server_run: Callable[[str], Run]) -> None:
    outcome = server_run(revision)
    assert outcome.status == 0, outcome.said


@pytest.mark.row("PROMISE-4", "Z08")
async def test_conformance_server_passes_with_a_worker_per_request(
    tmp_path: Path,
) -> None:
    with serving(workers=4) as url:
        async with forwarded(int(url.removesuffix("/mcp").rpartition(":")[2])) as front:
            there = ["--url", f"http://localhost:{front.port}/mcp"]
            for revision, asked in WITH_WORKERS.items():
                outcome = await asyncio.to_thread(run, "server", *there, *asked, output=tmp_path / revision)
                assert outcome.status == 0, outcome.said
                least = LEAST[revision]["server"]
                assert {name: complaints(found, least[name]) for name, found in outcome.checks.items()} == {
                    name: [] for name in (servable(revision) if "--requirements" in asked else asked[-1:])
                }


@pytest.mark.row("Z08", "PH51", "PH61")
@pytest.mark.parametrize(("revision", "scenario"), CLIENT)
def test_conformance_client_passes(revision: str, scenario: str, tmp_path: Path) -> None:
    outcome = play(scenario, revision, tmp_path)
    assert outcome.status == 0, outcome.said
    assert complaints(outcome.checks.get(scenario), LEAST[revision]["client"][scenario]) == []


@pytest.mark.row("Z08")
@pytest.mark.parametrize("scenario", LEAST_OF_OLDEST)
def test_conformance_client_passes_for_servers_of_2025_03_26(scenario: str, tmp_path: Path) -> None:
    outcome = run_client(scenario, output=tmp_path)
    assert outcome.status == 0, outcome.said
    assert complaints(outcome.checks.get(scenario), LEAST_OF_OLDEST[scenario]) == []


@pytest.mark.row("Z08")
@pytest.mark.parametrize("revision", REVISIONS)
def test_gate_knows_exactly_the_scenarios_of_the_suite(revision: str) -> None:
    assert [*LEAST[revision]["server"]] == servable(revision)
    assert [*LEAST[revision]["client"]] == playable(revision)


@pytest.mark.row("Z08")
def test_manual_names_every_scenario() -> None:
    page = (ROOT / "docs/reference/conformance.md").read_text("utf-8")
    run = [*(scenario for _, scenario in [*SERVER, *CLIENT]), *LEAST_OF_OLDEST]
    assert [scenario for scenario in run if f"`{scenario}`" not in page] == []
