"""The tour: `make demo`."""

import subprocess
import sys
from pathlib import Path

from tests.limits import PATIENCE

TOUR = Path(__file__).parents[2] / "examples/tour.py"


def test_tour_runs_without_terminal() -> None:
    done = subprocess.run(
        [sys.executable, str(TOUR)], check=False, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for point in (
        "greenhouse 1.0, speaking 2026-07-28",
        "greenhouse://beds/{bed}",
        "3/3",
        "warning, sensors: the bed of bell peppers is dry",
        "heard notifications/resources/updated",
        "watered tomatoes with 3 l",
        "spring, summer",
        "user: Make a planting plan for the bed of tomatoes in summer. It holds 65 % water now.",
        "Which seeds shall be ordered?",
        "ordered 3 packets of basil",
        "tool 'water' failed: there is no bed of roses",
        "lost 1 time, and still subscribed to greenhouse://log",
        "OutcomeUnknown: tools/call of 'water' was not answered",
        "the server process was killed by SIGKILL",
        "the next one says: 06:00 lights on",
        "page 6 by process",
        "printed 3 copies, job 1 of process",
        ", in the same session",
        "Closed",
    ):
        assert point in done.stdout
