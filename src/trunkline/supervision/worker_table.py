"""Whose turn it is: workers and how they stand, and what has been handed to whom. Pure; time comes in.

Whoever has said within a second how it stands takes its turn, one after another. What was handed to a worker belongs to
it when it has said that it took it. If it has not within a second, it must not take it any more, and somebody else is
given it: both sides look at the same clock, so no two think that it is theirs.
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
FULL: Final = "full"  # its descriptors are used up but for the reserve: it takes no connection until some are free
GONE: Final = "gone"
HEARTBEAT_INTERVAL: Final = 0.25  # seconds between two words of a worker
STALE_AFTER: Final = 1.0  # seconds without a word, or with something that was not taken
_REDISPATCH_SLACK: Final = 0.1  # seconds that are waited longer than a worker does, which looks first and then says so
_MAX_IN_FLIGHT: Final = 256  # connections on their way to one worker
ACCEPTING_STATES: Final = ("ready", "paused")  # in this order


class _Worker(Struct):
    state: str = GONE
    last_heartbeat: float = 0.0  # when it said something
    served: bool = False  # it has been ready


class WorkerTable:
    """The workers, by their numbers."""

    def __init__(self, count: int) -> None:
        self._workers = [_Worker() for _ in range(count)]
        self._dispatched: dict[int, tuple[int, float]] = {}  # ticket: to whom, and when
        self._last_chosen = count - 1  # whose turn it was

    # --- how they stand ----------------------------------------------------------------------------

    def mark_started(self, number: int, now: float) -> None:
        """A worker begins."""
        self._workers[number] = _Worker(STARTING, now)

    def record_heartbeat(self, number: int, now: float, state: str | None = None) -> None:
        """It has said something, perhaps how it stands."""
        worker = self._workers[number]
        worker.last_heartbeat = now
        if state is not None:
            worker.state = state
            worker.served = worker.served or state in ACCEPTING_STATES

    def mark_gone(self, number: int) -> list[int]:
        """It is gone; gives the tickets of what it has not taken."""
        self._workers[number].state = GONE
        return [ticket for ticket, (to, _) in self._dispatched.items() if to == number]

    def has_served(self, number: int) -> bool:
        """Whether it has ever been ready."""
        return self._workers[number].served

    def states(self, now: float) -> tuple[str, ...]:
        """How each stands."""
        return tuple(
            "silent" if worker.state != GONE and self._is_silent(worker, now) else worker.state
            for worker in self._workers
        )

    def _is_silent(self, worker: _Worker, now: float) -> bool:
        return now - worker.last_heartbeat >= STALE_AFTER

    def unresponsive(self, now: float, timeout: float | None) -> list[int]:
        """Those who have served, and have said nothing for so long that they have to be ended."""
        if timeout is None:
            return []
        return [
            number
            for number, worker in enumerate(self._workers)
            if worker.served and worker.state != GONE and now - worker.last_heartbeat >= timeout
        ]

    # --- who takes what ----------------------------------------------------------------------------

    def next_worker(self, now: float, skipped: Sequence[int] = ()) -> int | None:
        """Whose turn it is, after the last to have had one; None if nobody can take anything. Those that have been
        `passed` over are not asked again."""
        on_the_way = [to for to, _ in self._dispatched.values()]
        for state in ACCEPTING_STATES:
            for step in range(1, len(self._workers) + 1):
                number = (self._last_chosen + step) % len(self._workers)
                worker = self._workers[number]
                if worker.state != state or number in skipped or self._is_silent(worker, now):
                    continue
                if on_the_way.count(number) < _MAX_IN_FLIGHT:
                    return number
        return None

    def mark_dispatched(self, ticket: int, number: int, now: float) -> None:
        """Something is on its way to a worker."""
        self._dispatched[ticket] = (number, now)
        self._last_chosen = number

    def assigned_worker(self, ticket: int) -> int | None:
        """Who was handed something that it has not taken yet."""
        found = self._dispatched.get(ticket)
        return None if found is None else found[0]

    def release_ticket(self, ticket: int) -> None:
        """It was taken, or is back."""
        self._dispatched.pop(ticket, None)

    def overdue_tickets(self, now: float) -> list[int]:
        """Tickets of what has not been taken in time, and will not be."""
        return [
            ticket for ticket, (_, since) in self._dispatched.items() if now - since >= STALE_AFTER + _REDISPATCH_SLACK
        ]
