"""Selection of the next worker, as a pure function."""

from trunkline.supervision.worker_table import STALE_AFTER, WorkerTable


def ready(count: int, now: float = 0.0) -> WorkerTable:
    rota = WorkerTable(count)
    for number in range(count):
        rota.mark_started(number, now)
        rota.record_heartbeat(number, now, "ready")
    return rota


def turns(rota: WorkerTable, times: int, now: float = 0.0) -> list[int | None]:
    taken = []
    for ticket in range(1000, 1000 + times):
        number = rota.next_worker(now)
        if number is not None:
            rota.mark_dispatched(ticket, number, now)
            rota.release_ticket(ticket)
        taken.append(number)
    return taken


def test_workers_take_turns_by_number() -> None:
    assert turns(ready(3), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_only_ready_workers_are_chosen() -> None:
    rota = WorkerTable(4)
    assert rota.next_worker(0.0) is None
    for number in range(3):
        rota.mark_started(number, 0.0)
    assert rota.next_worker(0.0) is None
    rota.record_heartbeat(1, 0.0, "ready")
    rota.record_heartbeat(2, 0.0, "draining")
    assert turns(rota, 3) == [1, 1, 1]
    assert rota.states(0.0) == ("starting", "ready", "draining", "gone")
    assert [rota.has_served(number) for number in range(4)] == [False, True, False, False]


def test_paused_worker_is_chosen_only_if_none_is_ready() -> None:
    rota = ready(2)
    rota.record_heartbeat(0, 0.0, "paused")
    assert turns(rota, 2) == [1, 1]
    rota.record_heartbeat(1, 0.0, "paused")
    assert turns(rota, 3) == [0, 1, 0]


def test_full_worker_is_not_chosen() -> None:
    rota = ready(2)
    rota.record_heartbeat(0, 0.0, "full")
    assert turns(rota, 2) == [1, 1]
    rota.record_heartbeat(1, 0.0, "full")
    assert rota.next_worker(0.0) is None
    rota.record_heartbeat(0, 0.0, "ready")
    assert turns(rota, 2) == [0, 0]


def test_silent_worker_is_skipped_until_its_next_heartbeat() -> None:
    rota = ready(2)
    rota.record_heartbeat(0, STALE_AFTER / 2)
    assert turns(rota, 2, STALE_AFTER) == [0, 0]
    assert rota.states(STALE_AFTER) == ("ready", "silent")
    rota.record_heartbeat(1, STALE_AFTER)
    assert turns(rota, 2, STALE_AFTER) == [1, 0]
    rota.mark_gone(1)
    assert rota.states(10 * STALE_AFTER) == ("silent", "gone")


def test_only_served_workers_become_unresponsive() -> None:
    rota = ready(2)
    rota.mark_started(1, 0.0)
    assert rota.unresponsive(29.9, 30.0) == []
    assert rota.unresponsive(30.0, 30.0) == [0]
    assert rota.unresponsive(30.0, None) == []
    rota.mark_gone(0)
    assert rota.unresponsive(30.0, 30.0) == []


def test_unacknowledged_ticket_becomes_overdue() -> None:
    rota = ready(2)
    rota.mark_dispatched(7, 0, 0.0)
    rota.mark_dispatched(8, 1, 0.0)
    rota.release_ticket(8)
    assert (rota.assigned_worker(7), rota.assigned_worker(8)) == (0, None)
    assert rota.overdue_tickets(STALE_AFTER) == []  # when the worker no longer accepts it
    assert rota.overdue_tickets(STALE_AFTER * 1.2) == [7]


def test_gone_worker_returns_its_tickets() -> None:
    rota = ready(2)
    rota.mark_dispatched(7, 0, 0.0)
    rota.mark_dispatched(8, 1, 0.0)
    assert rota.mark_gone(0) == [7]
    assert turns(rota, 2) == [1, 1]


def test_worker_with_many_connections_in_flight_is_skipped() -> None:
    rota = ready(2)
    for ticket in range(256):
        rota.mark_dispatched(ticket, 0, 0.0)
    assert turns(rota, 2) == [1, 1]
    assert rota.next_worker(0.0, [1]) is None
