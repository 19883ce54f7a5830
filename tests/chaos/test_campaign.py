"""Bounded campaigns, as `make chaos` runs longer ones; and some with defective stores, which show that the checker
would notice. All inject several faults into servers, hence the seconds that they take.
"""

from pathlib import Path

import pytest
from tests.chaos.campaign import run
from tests.chaos.checker import violations
from tests.chaos.plan import ClientPlan, Deployment, Fault, FaultInjection, Kind, Plan, plan

SEED = 20_260_728
SHORT = 1.0  # seconds: the leases of few clients
LONG = 60.0  # seconds: leases that do not expire while a busy machine has no time for a process
CAMPAIGNS = 5  # at most, until a defective store has done harm in one of them
LATE = (
    "was not told",
    "in time",
    "TimeoutError",
    "did not come to an end",
)  # violations that a lack of time may explain
SEVERAL: list[tuple[Deployment, tuple[Kind, ...]]] = [
    ("file", ("death", "term")),
    ("file", ("full", "clock")),
    ("workers", ("kill", "stop", "term")),
    ("workers", ("full", "clock")),
    ("valkey", ("kill", "term", "stall")),
    ("valkey", ("full", "clock", "forge")),
]


@pytest.mark.row("D08", "D09", "D10")
@pytest.mark.parametrize(("deployment", "kind"), [("file", "death"), ("workers", "kill")])
async def test_killed_server_loses_and_repeats_nothing_for_few_clients(
    deployment: Deployment, kind: Kind, tmp_path: Path
) -> None:
    injection = (FaultInjection(kind, answers=40, after=0.0),)
    planned = Plan(SEED, plan(SEED, clients=10, rounds=0).parts, injection, deployment, LONG)
    history, _ = await run(planned, tmp_path)
    assert violations(history) == []
    assert [period.kind for period in history.fault_periods][:1] == [kind]


@pytest.mark.row("D03", "D08", "D09", "D10", "J15")
@pytest.mark.long
@pytest.mark.parametrize(("deployment", "kinds"), SEVERAL)
async def test_no_fault_loses_or_repeats_anything(
    deployment: Deployment, kinds: tuple[Kind, ...], tmp_path: Path, seed: int
) -> None:
    history, _ = await run(plan(seed, clients=24, rounds=3, deployment=deployment, only=kinds), tmp_path)
    assert violations(history) == []
    assert {saw.kind for saw in history.observations if saw.outcome == "answered"} >= {
        "look",
        "pay",
        "pay_once",
        "keep",
        "count",
        "wait",
        "linger",
        "limited",
    }
    assert {period.kind for period in history.fault_periods} >= set(kinds)


def raw_clients_only() -> tuple[ClientPlan, ...]:
    """Raw clients, which remember all events."""
    return tuple(part for part in plan(SEED, 60, 0).parts if part.raw)


async def violations_with(
    deployment: Deployment, injection: tuple[FaultInjection, ...], fault: Fault, folder: Path, seed: int
) -> list[str]:
    """The violations with a defective store that a lack of time does not explain: a wait for lost data never ends,
    so the timeouts are short.
    """
    for number in range(CAMPAIGNS):
        place = folder / str(number)
        place.mkdir()
        planned = Plan(seed + number, raw_clients_only(), injection, deployment, SHORT)
        history, _ = await run(planned, place, fault=fault, patience=1.0)
        if found := [fault for fault in violations(history) if not any(late in fault for late in LATE)]:
            return found
    return []


@pytest.mark.long
@pytest.mark.parametrize(("deployment", "kind"), [("workers", "kill"), ("valkey", "kill")])
async def test_store_that_drops_writes_is_detected(
    deployment: Deployment, kind: Kind, tmp_path: Path, seed: int
) -> None:
    assert await violations_with(deployment, (FaultInjection(kind, 150, 0.0),), "losing", tmp_path, seed)


@pytest.mark.long
async def test_store_without_fences_is_detected(tmp_path: Path, seed: int) -> None:
    asleep = tuple(FaultInjection("stop", 20, 0.0, who, lasts=1.3 * SHORT) for who in (0.1, 0.35, 0.6, 0.85))
    assert await violations_with("workers", asleep, "unfenced", tmp_path, seed)


@pytest.mark.long
async def test_server_that_believes_forged_messages_is_detected(tmp_path: Path, seed: int) -> None:
    forging = tuple(FaultInjection("forge", 20, 0.0, lasts=SHORT) for _ in range(3))
    assert await violations_with("valkey", forging, "trusting", tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("deployment", ["workers", "valkey"])
async def test_server_that_keeps_its_name_after_eviction_is_detected(
    deployment: Deployment, tmp_path: Path, seed: int
) -> None:
    """Its peers send an evicted process no more messages, and the store refuses its writes. So its clients wait for
    ever. How many it has is a matter of chance.
    """
    asleep = tuple(FaultInjection("stop", 20, 0.0, who, lasts=1.5 * SHORT) for who in (0.1, 0.35, 0.6, 0.85))
    parts = plan(seed, clients=20, rounds=0).parts
    history, _ = await run(Plan(seed, parts, asleep, deployment, SHORT), tmp_path, fault="stale", patience=3.0)
    assert [fault for fault in violations(history) if "failed" in fault]


@pytest.mark.long
async def test_server_that_denies_started_calls_is_detected(tmp_path: Path, seed: int) -> None:
    """Clients repeat a call that was not started: if it was, and a graceful shutdown has interrupted it, it runs twice."""
    planned = plan(seed, clients=40, rounds=4, only=("term",), lease=SHORT)
    history, _ = await run(planned, tmp_path, fault="denying")
    assert [fault for fault in violations(history) if "done twice" in fault]
