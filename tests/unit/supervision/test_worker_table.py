"""Selection of the next worker, as a pure function."""

from trunkline.supervision.worker_table import STALE_AFTER, WorkerTable


def ready(count: int, now: float = 0.0) -> WorkerTable:
    rota = WorkerTable(count)
    for number in range(count):
        rota.mark_started(number, now)
        rota.record_heartbeat(number, now, "ready", 0)
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


def test_worker_with_the_fewest_connections_is_chosen() -> None:
    rota = ready(3)
    for number, connections in enumerate((5, 3, 4)):
        rota.record_heartbeat(number, 0.0, "ready", connections)
    held, taken = [5, 3, 4], []
    for ticket in range(9):
        taken.append(number := rota.next_worker(0.0))
        assert number is not None
        rota.mark_dispatched(ticket, number, 0.0)
        if number != 1:  # acknowledged or not, it counts
            held[number] += 1
            rota.mark_accepted(ticket, held[number])
    assert taken == [1, 2, 1, 2, 0, 1, 2, 0, 1]


def test_connections_stay_even_whatever_closes() -> None:
    rota = ready(2)
    kept = {0: 0, 1: 0}
    for ticket in range(40):
        number = rota.next_worker(0.0)
        assert number is not None
        rota.mark_dispatched(ticket, number, 0.0)
        rota.mark_accepted(ticket, kept[number] + 1)
        kept[number] += ticket % 2  # every other connection is a probe, which closes at once
    assert abs(kept[0] - kept[1]) <= 2  # without any heartbeat; turns would give one of them all


def test_declined_connection_does_not_count() -> None:
    rota = ready(2)
    rota.mark_dispatched(1, 0, 0.0)
    rota.release_ticket(1)
    rota.mark_dispatched(2, 1, 0.0)
    assert rota.next_worker(0.0) == 0


def test_restarted_worker_has_no_connections() -> None:
    rota = ready(2)
    for number in range(2):
        rota.record_heartbeat(number, 0.0, "ready", 7)
    rota.mark_started(1, 0.0)
    rota.record_heartbeat(1, 0.0, "ready", 0)
    assert turns(rota, 3) == [1, 1, 1]


def test_only_ready_workers_are_chosen() -> None:
    rota = WorkerTable(4)
    assert rota.next_worker(0.0) is None
    for number in range(3):
        rota.mark_started(number, 0.0)
    assert rota.next_worker(0.0) is None
    rota.record_heartbeat(1, 0.0, "ready", 0)
    rota.record_heartbeat(2, 0.0, "draining", 0)
    assert turns(rota, 3) == [1, 1, 1]
    assert rota.states(0.0) == ("starting", "ready", "draining", "gone")
    assert [rota.has_served(number) for number in range(4)] == [False, True, False, False]


def test_paused_worker_is_chosen_only_if_none_is_ready() -> None:
    rota = ready(2)
    rota.record_heartbeat(0, 0.0, "paused", 0)
    assert turns(rota, 2) == [1, 1]
    rota.record_heartbeat(1, 0.0, "paused", 0)
    assert turns(rota, 3) == [0, 1, 0]


def test_full_worker_is_not_chosen() -> None:
    rota = ready(2)
    rota.record_heartbeat(0, 0.0, "full", 0)
    assert turns(rota, 2) == [1, 1]
    rota.record_heartbeat(1, 0.0, "full", 0)
    assert rota.next_worker(0.0) is None
    rota.record_heartbeat(0, 0.0, "ready", 0)
    assert turns(rota, 2) == [0, 0]


def test_silent_worker_is_skipped_until_its_next_heartbeat() -> None:
    rota = ready(2)
    rota.record_heartbeat(0, STALE_AFTER / 2, "ready", 0)
    assert turns(rota, 2, STALE_AFTER) == [0, 0]
    assert rota.states(STALE_AFTER) == ("ready", "silent")
    rota.record_heartbeat(1, STALE_AFTER, "ready", 0)
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
