"""What the whole suite stands on: every message that a server or client of ours sends in a test is judged by the
official schema."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.judge import judge

from trunkline.testing import RawPeer, ScriptedServer, Transcript

ROOT = Path(__file__).parent
UNCOUNTED = {"attacks", "authorization", "browser", "chaos", "conformance", "docs", "faults", "interop"}
"""Folders whose tests take whole programs for granted: what decides is seen by the others, and counting costs time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Counts no lines where that shows nothing."""
    for item in items:
        if item.path.is_relative_to(ROOT) and item.path.relative_to(ROOT).parts[0] in UNCOUNTED:
            item.add_marker("no_cover")


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def revision(request: pytest.FixtureRequest) -> str:
    """The newest of either era, for what is the same in both."""
    return request.param


@pytest.fixture(autouse=True)
def wire_truth(request: pytest.FixtureRequest) -> Iterator[list[Transcript]]:
    """Judges the transcripts of all lines that a test has closed, once the test itself has passed."""
    transcripts: list[Transcript] = []
    of_clients: list[Transcript] = []
    RawPeer.taps.append(transcripts.append)
    ScriptedServer.taps.append(of_clients.append)
    yield transcripts
    RawPeer.taps.remove(transcripts.append)
    ScriptedServer.taps.remove(of_clients.append)
    if request.node.get_closest_marker("off_the_record") is None:
        for transcript in transcripts:
            judge(transcript.frames, "server")
        for transcript in of_clients:
            judge(transcript.frames, "client")
