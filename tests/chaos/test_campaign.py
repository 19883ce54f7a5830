"""Bounded campaigns, as `make chaos` runs longer ones; and some on stores that are not as they should be, which show that it
would be noticed. All start servers that are killed several times, hence the seconds that they take."""

from pathlib import Path

import pytest
from tests.chaos.campaign import run
from tests.chaos.judge import faults
from tests.chaos.plan import House, Mischief, Plan, plan

SEED = 20_260_728
LATE = ("was not told", "in time", "TimeoutError", "did not come to an end")  # what may be for want of time


@pytest.mark.parametrize(("house", "clients"), [("file", 30)])
async def test_d08_d09_d10_j15_nothing_is_lost_or_done_twice_whatever_is_done_to_the_server(
    house: House, clients: int, tmp_path: Path
) -> None:
    history, _ = await run(plan(SEED, clients, 3, house), tmp_path)
    assert faults(history) == []
    assert {saw.kind for saw in history.saw if saw.outcome == "answered"} >= {
        "look",
        "pay",
        "pay_once",
        "keep",
        "count",
    }
    if house == "file":
        assert any(saw.outcome == "unknown" for saw in history.saw), "somebody was cut off"


async def test_a_store_that_drops_one_write_in_a_hundred_is_found_out(tmp_path: Path) -> None:
    twice = (Mischief("death", 150, 0.0), Mischief("death", 150, 0.0))
    history, _ = await run(Plan(SEED, plan(SEED, 20, 0).parts, twice), tmp_path, fault="losing", patience=3.0)
    found = faults(history)
    assert [fault for fault in found if not any(late in fault for late in LATE)], found
