"""Connections between the place where they are taken in and the worker that takes them over.

The supervisor's own copy of each is kept until a worker has said that it is its own. Until then it can be handed to
another one; if nobody can take any, they are left with the system.
"""

import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

from trunkline.backlog import DescriptorsExhausted, ListenerClosed, accept_pending
from trunkline.fdlimit import DescriptorReserve, LogThrottle
from trunkline.supervision.ipc import CONNECTION, IpcChannel, encode_ticket
from trunkline.supervision.worker_table import WorkerTable

__all__ = ["ConnectionDispatcher"]


class ConnectionDispatcher:
    """Takes connections in, and hands each to the next in turn."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        table: WorkerTable,
        channels: Mapping[int, IpcChannel],
        selector: selectors.BaseSelector,
        *,
        reserve: DescriptorReserve,
        report: Callable[[str], None],
    ) -> None:
        """`lines` lead to the workers that are there, by their numbers. `reserve` is left free, for new workers."""
        self._listeners = list(listeners)
        self._table = table
        self._channels = channels
        self._selector = selector
        self._reserve = reserve
        self._report = report
        self._connections: dict[int, socket.socket] = {}  # on their way, by ticket
        self._tickets = count(1)
        self._watching = False
        self._descriptors_short = False  # of descriptors
        self._log_throttle = LogThrottle()
        self._closed = False

    def update(self, now: float) -> None:
        """Hands out again what is with nobody, and takes connections in for as long as somebody can have them."""
        for ticket in self._table.overdue_tickets(now):
            self._table.release_ticket(ticket)
        for ticket in [ticket for ticket in self._connections if self._table.assigned_worker(ticket) is None]:
            self._dispatch(ticket)
        self._descriptors_short = self._descriptors_short and not self._reserve.has_room()
        self._watch(enabled=not self._descriptors_short and self._table.next_worker(now) is not None)

    def _watch(self, *, enabled: bool) -> None:
        if enabled is self._watching or self._closed:
            return
        self._watching = enabled
        for place in self._listeners:
            if enabled:
                self._selector.register(place, selectors.EVENT_READ, partial(self._accept, place))
            else:
                self._selector.unregister(place)

    def _accept(self, place: socket.socket) -> None:
        if not self._can_dispatch:
            return
        try:
            for connection in accept_pending(place, self._reserve):
                ticket = next(self._tickets)
                self._connections[ticket] = connection
                self._dispatch(ticket)
                if not self._can_dispatch:
                    return
        except DescriptorsExhausted:
            self._pause_accepting()
        except ListenerClosed as ended:
            self._report(f"supervisor: {ended}")
            self._selector.unregister(place)
            self._listeners.remove(place)
            place.close()

    @property
    def _can_dispatch(self) -> bool:
        """Whether a connection that is accepted now has a worker to go to."""
        return (
            not self._closed and not self._descriptors_short and self._table.next_worker(time.monotonic()) is not None
        )

    def _pause_accepting(self) -> None:
        """Accept nothing until descriptors are free; connections wait in the backlog."""
        self._descriptors_short = True
        if self._log_throttle.allow(time.monotonic()):
            self._report(f"supervisor: {self._reserve.shortage_message()}")

    def _dispatch(self, ticket: int) -> None:
        """Hands a connection to the next who takes it; if nobody does, it waits for the next look."""
        now = time.monotonic()
        passed: list[int] = []
        descriptor = [self._connections[ticket].fileno()]
        while (number := self._table.next_worker(now, passed)) is not None:
            line = self._channels.get(number)
            if line is not None and line.send_descriptors(CONNECTION, encode_ticket(ticket, now), descriptor):
                self._table.mark_dispatched(ticket, number, now)
                return
            passed.append(number)

    def acknowledge(self, number: int, ticket: int, *, accepted: bool) -> None:
        """A worker has taken something over, or has not. Nobody is asked who was not given it, or is no more."""
        if self._table.assigned_worker(ticket) != number:
            return
        self._table.release_ticket(ticket)
        if accepted:
            self._connections.pop(ticket).close()
        else:
            self._dispatch(ticket)

    def close(self) -> None:
        """Takes nothing in any more."""
        self._watch(enabled=False)
        self._closed = True
        for place in self._listeners:
            place.close()

    def close_all(self) -> None:
        """Lets go of everything, as a new process does which has nothing to do with it."""
        for held in (*self._listeners, *self._connections.values()):
            held.close()
