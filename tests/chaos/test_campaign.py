"""Bounded campaigns, as `make chaos` runs longer ones; and some on stores that are not as they should be, which show that it
would be noticed. All start servers to which something is done several times, hence the seconds that they take."""

from pathlib import Path

import pytest
from tests.chaos.campaign import run
from tests.chaos.faulty import Fault
from tests.chaos.judge import faults
from tests.chaos.plan import House, Kind, Mischief, Part, Plan, plan

SEED = 20_260_728
SHORT = 1.0  # seconds: the leases of few clients
LATE = ("was not told", "in time", "TimeoutError", "did not come to an end")  # what may be for want of time
SEVERAL: list[tuple[House, tuple[Kind, ...]]] = [
    ("file", ("death",)),
    ("workers", ("kill", "stop")),
    ("valkey", ("kill", "stop", "stall")),
]


@pytest.mark.parametrize(("house", "kinds"), SEVERAL)
async def test_d03_d08_d09_d10_j15_nothing_is_lost_or_done_twice_whatever_is_done_to_the_server(
    house: House, kinds: tuple[Kind, ...], tmp_path: Path
) -> None:
    history, _ = await run(plan(SEED, clients=24, rounds=3, house=house, only=kinds, lease=SHORT), tmp_path)
    assert faults(history) == []
    assert {saw.kind for saw in history.saw if saw.outcome == "answered"} >= {
        "look",
        "pay",
        "pay_once",
        "keep",
        "count",
        "wait",
    }
    assert {trouble.kind for trouble in history.troubles} >= set(kinds)


def by_hand() -> tuple[Part, ...]:
    """Clients that lose nothing by themselves: each remembers all events."""
    return tuple(part for part in plan(SEED, 60, 0).parts if part.raw)


async def found_out(house: House, mischief: tuple[Mischief, ...], fault: Fault, folder: Path) -> list[str]:
    """What is wrong on a store with a fault, and is not for want of time: who waits for what was lost waits for ever, so
    there is little patience."""
    history, _ = await run(Plan(SEED, by_hand(), mischief, house, SHORT), folder, fault=fault, patience=1.0)
    return [fault for fault in faults(history) if not any(late in fault for late in LATE)]


@pytest.mark.parametrize(("house", "kind"), [("workers", "kill"), ("valkey", "kill")])
async def test_a_store_that_drops_one_write_in_a_hundred_is_found_out(house: House, kind: Kind, tmp_path: Path) -> None:
    assert await found_out(house, (Mischief(kind, 150, 0.0),), "losing", tmp_path)


async def test_a_store_without_fences_is_found_out_by_processes_that_were_asleep(tmp_path: Path) -> None:
    asleep = tuple(Mischief("stop", 20, 0.0, who, lasts=1.3 * SHORT) for who in (0.1, 0.35, 0.6, 0.85))
    assert await found_out("workers", asleep, "unfenced", tmp_path)
