"""The tables of the scaling page match the output of the simulation."""

import re

import pytest
from bench import scale
from bench.scale_model import BUILT, FULL, LAST, STEPS, Load, busiest, looks, most_processes, rendezvous, slot_of, spent


def test_page_matches_simulation() -> None:
    page = scale.PAGE.read_text("utf-8")
    changed = page.replace("| processes | own work |", "| processes | less work |", 1)

    assert set(re.findall(r"<!-- simulated: ([\w-]+) -->", page)) == set(scale.TABLES)
    assert changed != page
    assert scale.renewed(changed) == page, "stale, run `python -m bench.scale --write`"


def test_valkey_capacity_matches_page() -> None:
    for _, design in STEPS:
        most = most_processes(design)
        assert spent(most, design).share <= FULL < spent(most + 1, design).share


def test_every_step_makes_room_for_more() -> None:
    room = [most_processes(design) for _, design in STEPS]

    assert room == sorted(room)
    assert room[-1] > room[0]


def test_task_recovery_scans_scale() -> None:
    load = Load()

    assert looks(1, load) * load.task_lease == 1
    assert round(looks(1000, load) * load.task_lease) == 7  # the page says so


def test_single_process_has_no_cluster_cost() -> None:
    alone, own = spent(1), spent(1).cpu["own work"]

    assert not any(alone.heard.values())
    assert own / sum(alone.cpu.values()) > 0.95
    assert spent(10, LAST).share == pytest.approx(10 * spent(1, LAST).share, rel=0.02)
    assert spent(10, BUILT).share > 11 * spent(1, BUILT).share


def test_home_slot_matches_redis_cluster() -> None:
    assert slot_of("123456789") == 0x31C3  # the check value of CRC16/XMODEM, which is below 16,384


def test_new_shard_only_takes_slots() -> None:
    few, more = rendezvous(4), rendezvous(5)

    assert {after for before, after in zip(few, more, strict=True) if before != after} == {4}
    assert busiest(few, [0, 0, 0, 0], None, 4) == 4


def test_events_follow_from_load() -> None:
    load = Load(calls=100, tasks=0.1, task_seconds=6)

    assert load.running == pytest.approx(60)
    assert load.happens()["poll"] == pytest.approx(60)
