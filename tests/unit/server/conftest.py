"""Fixtures of server tests: successive servers on one file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.server.server_runs import ServerRuns

from trunkline.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=1_000_000.0)


@pytest.fixture
async def runs(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ServerRuns]:
    made = ServerRuns(tmp_path / "kept.db", clock)
    yield made
    await made.end()
