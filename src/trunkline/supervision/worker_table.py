"""Table of workers: their states, the connections dispatched to them, and the choice of the next worker. Pure; time is
an argument.

The next connection goes to the eligible worker with the fewest; workers with equally many take turns. Turns alone would
not keep them even: clients stay connected for different times, and the probes of a load balancer use up turns. A worker
reports how many are open with each heartbeat and each connection that it accepts, so a closed connection counts for a
quarter of a second at most.

A worker is eligible if its last heartbeat is less than a second old. A dispatched connection belongs to the worker once
it has acknowledged it. Without an acknowledgement within a second, the worker must decline it and the supervisor
dispatches it to another one. Both processes use the same clock, so a connection never has two owners.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

__all__ = [
    "ACCEPTING_STATES",
    "FULL",
    "GONE",
    "HEARTBEAT_INTERVAL",
    "STALE_AFTER",
    "STARTING",
    "WorkerState",
    "WorkerTable",
]

WorkerState = Literal["starting", "ready", "paused", "full", "draining", "silent", "gone"]

STARTING: Final = "starting"
FULL: Final = "full"  # only the descriptor reserve is free; declines connections
GONE: Final = "gone"
HEARTBEAT_INTERVAL: Final = 0.25  # seconds between two heartbeats
STALE_AFTER: Final = 1.0  # seconds without a heartbeat, or without an acknowledgement
_REDISPATCH_SLACK: Final = 0.1  # seconds more than the worker's own limit, since its acknowledgement takes time
_MAX_IN_FLIGHT: Final = 256  # unacknowledged connections per worker
ACCEPTING_STATES: Final = ("ready", "paused")  # in order of preference


class _Worker(Struct):
    state: str = GONE
    last_heartbeat: float = 0.0  # time of the last heartbeat
    served: bool = False  # it has been ready once
    open: int = 0  # connections that it has accepted, as of its last report
    in_flight: int = 0  # connections dispatched and not acknowledged


class WorkerTable:
    """Workers by number."""

    def __init__(self, count: int) -> None:
        self._workers = [_Worker() for _ in range(count)]
        self._dispatched: dict[int, tuple[int, float]] = {}  # ticket: worker and time
        self._last_chosen = count - 1  # the worker chosen last

    # --- states ------------------------------------------------------------------------------------

    def mark_started(self, number: int, now: float) -> None:
        """Record that a worker has started."""
        self._workers[number] = _Worker(STARTING, now)

    def record_heartbeat(self, number: int, now: float, state: str, connections: int) -> None:
        """Record a heartbeat with the state and the number of open connections."""
        worker = self._workers[number]
        worker.last_heartbeat = now
        worker.state = state
        worker.served = worker.served or state in ACCEPTING_STATES
        worker.open = connections

    def mark_gone(self, number: int) -> list[int]:
        """Record that a worker has ended; return the tickets that it has not acknowledged."""
        self._workers[number].state = GONE
        return [ticket for ticket, (worker_number, _) in self._dispatched.items() if worker_number == number]

    def has_served(self, number: int) -> bool:
        """Return whether a worker was ever ready."""
        return self._workers[number].served

    def states(self, now: float) -> tuple[str, ...]:
        """Return the state of each worker."""
        return tuple(
            "silent" if worker.state != GONE and self._is_silent(worker, now) else worker.state
            for worker in self._workers
        )

    def _is_silent(self, worker: _Worker, now: float) -> bool:
        return now - worker.last_heartbeat >= STALE_AFTER

    def unresponsive(self, now: float, timeout: float | None) -> list[int]:
        """Return the workers that have served and sent no heartbeat for `timeout` seconds."""
        if timeout is None:
            return []
        return [
            number
            for number, worker in enumerate(self._workers)
            if worker.served and worker.state != GONE and now - worker.last_heartbeat >= timeout
        ]

    # --- dispatch ----------------------------------------------------------------------------------

    def next_worker(self, now: float, skipped: Sequence[int] = ()) -> int | None:
        """Return the eligible worker with the fewest connections, except those in `skipped`; None if there is none.
        Of several it is the next one after the last one chosen."""
        count = len(self._workers)
        turns = [(self._last_chosen + step) % count for step in range(1, count + 1)]
        for state in ACCEPTING_STATES:
            eligible = [number for number in turns if number not in skipped and self._is_eligible(number, state, now)]
            if eligible:
                return min(eligible, key=self._connections)
        return None

    def _is_eligible(self, number: int, state: str, now: float) -> bool:
        worker = self._workers[number]
        return worker.state == state and worker.in_flight < _MAX_IN_FLIGHT and not self._is_silent(worker, now)

    def _connections(self, number: int) -> int:
        worker = self._workers[number]
        return worker.open + worker.in_flight

    def mark_dispatched(self, ticket: int, number: int, now: float) -> None:
        """Record the dispatch of a connection."""
        self._dispatched[ticket] = (number, now)
        self._workers[number].in_flight += 1
        self._last_chosen = number

    def mark_accepted(self, ticket: int, connections: int) -> None:
        """Record that its worker has acknowledged a ticket, and now has that many connections."""
        self._workers[self._dispatched[ticket][0]].open = connections
        self.release_ticket(ticket)

    def assigned_worker(self, ticket: int) -> int | None:
        """Return the worker that has not acknowledged a ticket yet; None if there is none."""
        entry = self._dispatched.get(ticket)
        return None if entry is None else entry[0]

    def release_ticket(self, ticket: int) -> None:
        """Forget a ticket that was acknowledged, declined or abandoned."""
        number, _ = self._dispatched.pop(ticket)
        self._workers[number].in_flight -= 1

    def overdue_tickets(self, now: float) -> list[int]:
        """Return the tickets whose acknowledgement is overdue."""
        return [
            ticket
            for ticket, (_, dispatched_at) in self._dispatched.items()
            if now - dispatched_at >= STALE_AFTER + _REDISPATCH_SLACK
        ]
