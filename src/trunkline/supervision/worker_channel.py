"""A worker's side of the line to its supervisor, on the worker's loop: connections come in, and how it stands goes out.

A worker whose supervisor is gone ends in good order: nobody would bring it anything any more.

A worker whose descriptors are used up, but for a reserve, says that it is full and declines connections, and is ready
again when some are free. The supervisor still has what was declined, and gives it to another worker.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from trunkline.fdlimit import Notice, Reserve
from trunkline.supervision.ipc import CONNECTION, END, KEPT, NOT_KEPT, STATE, TABLE, Line, ticket_of, with_ticket
from trunkline.supervision.worker_table import BEAT, FULL, LATE, STARTING, TAKING

__all__ = ["Post"]

_log: Final = logging.getLogger("trunkline")


class Post:
    """Where a worker stands."""

    def __init__(self, number: int, end: socket.socket, state: Callable[[], str], reserve: Reserve) -> None:
        """`state` says how the worker stands, once it takes connections, for which `reserve` must be left free."""
        self.number = number
        self._reserve = reserve
        self._full = False
        self._notice = Notice()
        self._line = Line(end)
        self._table: list[str] = []
        self._state_then = state
        self._begun = False
        self._take: Callable[[socket.socket], None] | None = None
        self._end: Callable[[], Any] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None

    @property
    def orphaned(self) -> bool:
        """Whether the supervisor is gone."""
        return self._line.ended

    def open(self, end: Callable[[], Any]) -> None:
        """Listens to the supervisor from now on, on the running loop. `end` is called when the worker is to end."""
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._loop.add_reader(self._line.socket, self._heard)
        self._beat()

    def close(self) -> None:
        """Hears nothing any more. The line itself stays open for as long as the process lives."""
        if self._loop is not None:
            self._loop.remove_reader(self._line.socket)
        if self._next is not None:
            self._next.cancel()

    def states(self) -> tuple[str, ...]:
        """How all workers stand, by their numbers: what is newest is known of this one."""
        table = self._table
        return (*table[: self.number], self._state(), *table[self.number + 1 :])

    def begin(self, take: Callable[[socket.socket], None]) -> None:
        """Connections are taken from now on."""
        self._take, self._begun = take, True
        self._tell()

    def stop(self) -> None:
        """Connections are taken no more."""
        self._take = None
        self._tell()

    def _state(self) -> str:
        if not self._begun:
            return STARTING
        state = self._state_then()
        return FULL if self._full and state in TAKING else state

    # --- the line ----------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._loop is not None:
            self._next = self._loop.call_later(BEAT, self._beat)
            self._tell()

    def _tell(self) -> None:
        self._full = self._full and not self._reserve.untouched()
        self._line.flush()
        if self._line.free:  # or it says enough already
            self._line.say(STATE, self._state().encode())

    def _heard(self) -> None:
        for kind, body in self._line.heard():
            if kind == CONNECTION:
                self._arrived(*ticket_of(body), self._line.descriptor())
            elif kind == TABLE:
                self._table = body.decode().split()
            elif kind == END:
                self._end()
        if self._line.ended:
            self.close()
            self._end()

    def _arrived(self, ticket: int, at: float, descriptor: int | None) -> None:
        """Takes a connection, unless it has been on its way for so long that somebody else is given it, or there is no
        descriptor for it: it was lost on the way, or belongs to the reserve."""
        if descriptor is None:
            self._fill()
            self._decline(ticket)
            return
        connection = socket.socket(fileno=descriptor)
        if self._reserve.holds(descriptor):
            self._fill()
        take = self._take
        if take is None or self._full or time.monotonic() - at >= LATE:
            connection.close()
            self._decline(ticket)
        else:
            self._line.say(KEPT, with_ticket(ticket))
            take(connection)

    def _fill(self) -> None:
        """Take no more connections until descriptors are free."""
        self._full = True
        if self._notice.due(time.monotonic()):
            _log.warning("worker %d: %s", self.number, self._reserve.shortage())

    def _decline(self, ticket: int) -> None:
        """Says how the worker stands, and that the supervisor should give a connection to another one."""
        self._tell()
        self._line.say(NOT_KEPT, with_ticket(ticket))
