"""Table of workers: their states, the connections dispatched to them, and the choice of the next worker. Pure; time is
an argument.

Workers take turns. A worker is eligible if its last heartbeat is less than a second old. A dispatched connection
belongs to the worker once it has acknowledged it. Without an acknowledgement within a second, the worker must decline
it and the supervisor dispatches it to another one. Both processes use the same clock, so a connection never has two
owners.
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

    def record_heartbeat(self, number: int, now: float, state: str | None = None) -> None:
        """Record a heartbeat, and the state if there is one."""
        worker = self._workers[number]
        worker.last_heartbeat = now
        if state is not None:
            worker.state = state
            worker.served = worker.served or state in ACCEPTING_STATES

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
        """Return the next eligible worker after the last one chosen, except those in `skipped`; None if there is
        none."""
        in_flight = [worker_number for worker_number, _ in self._dispatched.values()]
        for state in ACCEPTING_STATES:
            for step in range(1, len(self._workers) + 1):
                number = (self._last_chosen + step) % len(self._workers)
                worker = self._workers[number]
                if worker.state != state or number in skipped or self._is_silent(worker, now):
                    continue
                if in_flight.count(number) < _MAX_IN_FLIGHT:
                    return number
        return None

    def mark_dispatched(self, ticket: int, number: int, now: float) -> None:
        """Record the dispatch of a connection."""
        self._dispatched[ticket] = (number, now)
        self._last_chosen = number

    def assigned_worker(self, ticket: int) -> int | None:
        """Return the worker that has not acknowledged a ticket yet; None if there is none."""
        entry = self._dispatched.get(ticket)
        return None if entry is None else entry[0]

    def release_ticket(self, ticket: int) -> None:
        """Forget a ticket that was acknowledged, declined or abandoned."""
        self._dispatched.pop(ticket, None)

    def overdue_tickets(self, now: float) -> list[int]:
        """Return the tickets whose acknowledgement is overdue."""
        return [
            ticket
            for ticket, (_, dispatched_at) in self._dispatched.items()
            if now - dispatched_at >= STALE_AFTER + _REDISPATCH_SLACK
        ]
