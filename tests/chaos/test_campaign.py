"""A bounded campaign, as `make chaos` runs longer ones; and one on a store that forgets, which shows that it would be
noticed. Both start a server that is killed several times, hence the seconds that they take."""

from pathlib import Path

from tests.chaos.campaign import run
from tests.chaos.judge import faults
from tests.chaos.plan import Kill, Plan, plan

SEED = 20_260_728
LATE = ("was not told", "in time", "TimeoutError", "did not come to an end")  # what may be for want of time


async def test_d09_d10_j15_nothing_is_lost_or_done_twice_though_the_server_is_killed_under_thirty_clients(
    tmp_path: Path,
) -> None:
    history, _ = await run(plan(SEED, clients=30, kills=3), tmp_path)
    assert faults(history) == []
    assert {saw.kind for saw in history.saw if saw.outcome == "answered"} >= {
        "look",
        "pay",
        "pay_once",
        "keep",
        "count",
    }
    assert any(saw.outcome == "unknown" for saw in history.saw), "somebody was cut off"


async def test_a_store_that_drops_one_write_in_a_hundred_is_found_out(tmp_path: Path) -> None:
    much = Plan(SEED, plan(SEED, clients=20, kills=0).parts, (Kill(150, 0.0), Kill(150, 0.0)))
    history, _ = await run(much, tmp_path, losing=100, patience=3.0)
    found = faults(history)
    assert [fault for fault in found if not any(late in fault for late in LATE)], found
