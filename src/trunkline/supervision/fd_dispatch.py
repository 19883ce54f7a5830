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

from trunkline.backlog import DescriptorsShort, ListenerEnded, accept_waiting
from trunkline.fdlimit import Notice, Reserve
from trunkline.supervision.ipc import CONNECTION, Line, with_ticket
from trunkline.supervision.worker_table import Rota

__all__ = ["Handing"]


class Handing:
    """Takes connections in, and hands each to the next in turn."""

    def __init__(
        self,
        places: Sequence[socket.socket],
        rota: Rota,
        lines: Mapping[int, Line],
        selector: selectors.BaseSelector,
        *,
        reserve: Reserve,
        say: Callable[[str], None],
    ) -> None:
        """`lines` lead to the workers that are there, by their numbers. `reserve` is left free, for new workers."""
        self._places = list(places)
        self._rota = rota
        self._lines = lines
        self._selector = selector
        self._reserve = reserve
        self._say = say
        self._connections: dict[int, socket.socket] = {}  # on their way, by ticket
        self._tickets = count(1)
        self._taking = False
        self._short = False  # of descriptors
        self._notice = Notice()
        self._closed = False

    def look(self, now: float) -> None:
        """Hands out again what is with nobody, and takes connections in for as long as somebody can have them."""
        for ticket in self._rota.overdue(now):
            self._rota.settled(ticket)
        for ticket in [ticket for ticket in self._connections if self._rota.holder(ticket) is None]:
            self._hand(ticket)
        self._short = self._short and not self._reserve.untouched()
        self._watch(wanted=not self._short and self._rota.turn(now) is not None)

    def _watch(self, *, wanted: bool) -> None:
        if wanted is self._taking or self._closed:
            return
        self._taking = wanted
        for place in self._places:
            if wanted:
                self._selector.register(place, selectors.EVENT_READ, partial(self._take, place))
            else:
                self._selector.unregister(place)

    def _take(self, place: socket.socket) -> None:
        if not self._takes:
            return
        try:
            for connection in accept_waiting(place, self._reserve):
                ticket = next(self._tickets)
                self._connections[ticket] = connection
                self._hand(ticket)
                if not self._takes:
                    return
        except DescriptorsShort:
            self._pause()
        except ListenerEnded as ended:
            self._say(f"supervisor: {ended}")
            self._selector.unregister(place)
            self._places.remove(place)
            place.close()

    @property
    def _takes(self) -> bool:
        """Whether a connection that is accepted now has a worker to go to."""
        return not self._closed and not self._short and self._rota.turn(time.monotonic()) is not None

    def _pause(self) -> None:
        """Accept nothing until descriptors are free; connections wait in the backlog."""
        self._short = True
        if self._notice.due(time.monotonic()):
            self._say(f"supervisor: {self._reserve.shortage()}")

    def _hand(self, ticket: int) -> None:
        """Hands a connection to the next who takes it; if nobody does, it waits for the next look."""
        now = time.monotonic()
        passed: list[int] = []
        descriptor = [self._connections[ticket].fileno()]
        while (number := self._rota.turn(now, passed)) is not None:
            line = self._lines.get(number)
            if line is not None and line.hand(CONNECTION, with_ticket(ticket, now), descriptor):
                self._rota.handed(ticket, number, now)
                return
            passed.append(number)

    def answered(self, number: int, ticket: int, *, kept: bool) -> None:
        """A worker has taken something over, or has not. Nobody is asked who was not given it, or is no more."""
        if self._rota.holder(ticket) != number:
            return
        self._rota.settled(ticket)
        if kept:
            self._connections.pop(ticket).close()
        else:
            self._hand(ticket)

    def close(self) -> None:
        """Takes nothing in any more."""
        self._watch(wanted=False)
        self._closed = True
        for place in self._places:
            place.close()

    def forget(self) -> None:
        """Lets go of everything, as a new process does which has nothing to do with it."""
        for held in (*self._places, *self._connections.values()):
            held.close()
