"""Dispatch accepted connections from the supervisor to its workers, by passing file descriptors.

The supervisor keeps its copy of each connection until a worker has acknowledged it; until then it can dispatch the
connection to another worker. While no worker is eligible, connections stay in the backlog.
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
    """Accepts connections and dispatches each to the worker with the fewest."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        table: WorkerTable,
        channels: Mapping[int, IpcChannel],
        selector: selectors.BaseSelector,
        *,
        reserve: DescriptorReserve,
        report: Callable[[str], None],
        on_lost: Callable[[int, str], None] = lambda _number, _why: None,
    ) -> None:
        """`channels` lead to the running workers, by number. `reserve` stays free, for new workers. `on_lost` is called
        with the number of a listener that no longer listens, and the reason."""
        self._listeners = dict(enumerate(listeners))
        self._on_lost = on_lost
        self._table = table
        self._channels = channels
        self._selector = selector
        self._reserve = reserve
        self._report = report
        self._connections: dict[int, socket.socket] = {}  # unacknowledged connections by ticket
        self._tickets = count(1)
        self._watching = False
        self._descriptors_short = False
        self._log_throttle = LogThrottle()
        self._closed = False

    def update(self, now: float) -> None:
        """Dispatch unassigned connections again, and accept connections while a worker is eligible."""
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
        for number, listener in self._listeners.items():
            if enabled:
                self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, number))
            else:
                self._selector.unregister(listener)

    def add_listener(self, number: int, listener: socket.socket) -> None:
        """Accept connections from a listener that was opened again."""
        self._listeners[number] = listener
        if self._watching:
            self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, number))

    def _accept(self, number: int) -> None:
        if not self._can_dispatch or number not in self._listeners:
            return
        listener = self._listeners[number]
        try:
            for connection in accept_pending(listener, self._reserve):
                ticket = next(self._tickets)
                self._connections[ticket] = connection
                self._dispatch(ticket)
                if not self._can_dispatch:
                    return
        except DescriptorsExhausted:
            self._pause_accepting()
        except ListenerClosed as error:
            self._report(f"supervisor: {error}")
            self._selector.unregister(listener)
            del self._listeners[number]
            listener.close()
            self._on_lost(number, str(error))

    @property
    def _can_dispatch(self) -> bool:
        """Whether a worker is eligible for another connection."""
        return (
            not self._closed and not self._descriptors_short and self._table.next_worker(time.monotonic()) is not None
        )

    def _pause_accepting(self) -> None:
        """Accept nothing until descriptors are free; connections wait in the backlog."""
        self._descriptors_short = True
        if self._log_throttle.allow(time.monotonic()):
            self._report(f"supervisor: {self._reserve.shortage_message()}")

    def _dispatch(self, ticket: int) -> None:
        """Dispatch a connection to the next worker; without one it waits for the next `update`."""
        now = time.monotonic()
        passed: list[int] = []
        descriptor = [self._connections[ticket].fileno()]
        while (number := self._table.next_worker(now, passed)) is not None:
            channel = self._channels.get(number)
            if channel is not None and channel.send_descriptors(CONNECTION, encode_ticket(ticket, now), descriptor):
                self._table.mark_dispatched(ticket, number, now)
                return
            passed.append(number)

    def complete(self, number: int, ticket: int, connections: int) -> None:
        """Close our copy of a connection that a worker has accepted, which now has that many connections. Ignore a
        worker to which the connection is not assigned any more."""
        if self._table.assigned_worker(ticket) == number:
            self._table.mark_accepted(ticket, connections)
            self._connections.pop(ticket).close()

    def redispatch(self, number: int, ticket: int) -> None:
        """Dispatch a connection that a worker has declined to another one. Ignore a worker to which the connection is
        not assigned any more."""
        if self._table.assigned_worker(ticket) == number:
            self._table.release_ticket(ticket)
            self._dispatch(ticket)

    def close(self) -> None:
        """Accept no more connections."""
        self._watch(enabled=False)
        self._closed = True
        for listener in self._listeners.values():
            listener.close()

    def close_all(self) -> None:
        """Close all sockets, as a forked worker does."""
        for open_socket in (*self._listeners.values(), *self._connections.values()):
            open_socket.close()
