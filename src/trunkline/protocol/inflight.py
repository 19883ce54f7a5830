"""Requests under way: those that we work on and those that we wait for, and when their time is up.

Deadlines are kept in one heap per conversation. A deadline that moves is not looked for in the heap: when its
old entry comes up, it is put back. So starting, renewing and ending a request cost next to nothing, and whoever
owns the clock needs one timer only, set to `next_due`.
"""

import heapq
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from msgspec import Struct

from trunkline.protocol.envelope import Envelope
from trunkline.protocol.meta import ProgressToken
from trunkline.protocol.methods import Method
from trunkline.wire.messages import RequestId

__all__ = ["Aftermath", "Awaited", "Running", "Timetable", "Tracked"]

_ROOM: Final = 64
_MOST_GIVEN_UP: Final = 256  # requests that may be answered all the same
_order: Final = count()  # of what has the same deadline


class Tracked(Struct):
    """A request under way. Times are seconds on the clock of its conversation."""

    id: RequestId
    method: Method
    started: float
    allowed: float | None = None  # seconds from the last sign of life; None: no deadline
    longest: float | None = None  # seconds in all, whatever signs of life there are
    deadline: float | None = None
    held: int = 0  # how many things suspend the deadline; a person being asked, for one
    done: bool = False
    noted: float | None = None  # when the timetable looks at it next
    target: str | None = None  # the name or URI of what it is about, where it is about one thing

    def limit(self, now: float, allowed: float | None, longest: float | None) -> None:
        """Gives the request so much time from now on."""
        self.allowed = allowed
        self.longest = longest
        self.renew(now)

    def renew(self, now: float) -> None:
        """A sign of life: the time starts again, but never goes past the longest."""
        latest = None if self.longest is None else self.started + self.longest
        if self.allowed is None or self.held:
            self.deadline = latest
        else:
            self.deadline = now + self.allowed if latest is None else min(now + self.allowed, latest)

    def hold(self, now: float) -> None:
        """Suspends the deadline, not the longest time."""
        self.held += 1
        self.renew(now)

    def release(self, now: float) -> None:
        """Ends one `hold`; with the last of them the time starts again."""
        self.held -= 1
        self.renew(now)


class Running(Tracked):
    """A request of the peer's that we work on."""

    token: ProgressToken | None = None
    progress: float | None = None  # reported last
    cancelled: bool = False  # by the peer: nothing more may be sent about it
    queued: bool = False  # waits for its turn: its handler has not been started
    work: Any = None  # what the driver needs to stop it
    origin: Any = None  # what came with the request, and where its answer goes
    envelope: Envelope | None = None  # of a request that stands for itself
    natural: bool = False  # its result goes without the object that older revisions need around it
    hint: Any = None  # how long its result may be kept
    round: Any = None  # what was asked and answered before, for a handler that is run again
    once: Any = None  # what it has done that must not be done twice
    task: Any = None  # what makes a task of it, where it can become one later
    related: str | None = None  # the task that it has become: what is told of it names that
    admitted: Any = None  # the entry that it is about, once its sender was found to be one of those who may have it

    def advance(self, progress: float, now: float) -> bool:
        """Notes a report of progress; False if it may not be sent: it must grow, and end with the request."""
        if self.done or (self.progress is not None and progress <= self.progress):
            return False
        self.progress = progress
        self.renew(now)
        return True


class Awaited(Tracked, weakref=True):
    """A request of ours that the peer works on."""

    waiter: Any = None  # who is told of the answer
    about: Running | None = None  # on whose behalf it is asked
    on_progress: Any = None
    progress: float | None = None  # heard last
    as_task: bool = False  # it asks for a task: that is cancelled by its own name, and its progress goes on
    late: Any = None  # who is told of an answer that comes when nobody waits any more

    def heard(self, progress: float, now: float) -> bool:
        """Notes progress that the peer reports; False if it does not grow."""
        if self.progress is not None and progress <= self.progress:
            return False
        self.progress = progress
        self.renew(now)
        return True


class Aftermath:
    """Requests of ours that are over, and of which something may still be heard: one that was given up may have been
    answered just then, and one that was answered with a task goes on to tell of its progress. That is heard for as long
    as somebody holds the request."""

    __slots__ = ("_given_up", "_telling")

    def __init__(self) -> None:
        self._given_up: dict[RequestId, Awaited] = {}
        self._telling: WeakValueDictionary[RequestId, Awaited] = WeakValueDictionary()

    def give_up(self, request: Awaited) -> None:
        """Nobody waits for it any more, and somebody wants to know if it is answered."""
        self._given_up[request.id] = request
        if len(self._given_up) > _MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def answered(self, ident: RequestId) -> Awaited | None:
        """The request that is answered after all, if it was one of them."""
        return self._given_up.pop(ident, None)

    def go_on(self, request: Awaited) -> None:
        """It was answered, and its progress token holds on."""
        self._telling[request.id] = request

    def telling(self, token: ProgressToken) -> Awaited | None:
        """The request that a token belongs to, if it still holds."""
        return self._telling.get(token)


class Timetable:
    """Deadlines, the nearest first."""

    __slots__ = ("_crowded", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Tracked]] = []
        self._crowded = _ROOM  # entries at which those that are done are swept out

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, request: Tracked) -> None:
        """Keeps an eye on the deadline of a request, if it has one. Twice is once."""
        due = request.deadline
        if due is None or (request.noted is not None and request.noted <= due):
            return
        if len(self._heap) >= self._crowded:
            self._sweep()
        request.noted = due
        heapq.heappush(self._heap, (due, next(_order), request))

    def _sweep(self) -> None:
        """Most requests are done long before their time is up; nothing of them is kept until then."""
        self._heap = [entry for entry in self._heap if not entry[2].done]
        heapq.heapify(self._heap)
        self._crowded = max(_ROOM, 2 * len(self._heap))

    def next_due(self) -> float | None:
        """When to look again; None while there is nothing to wait for."""
        while self._heap and self._heap[0][2].done:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Tracked]:
        """The requests whose time is up."""
        late: list[Tracked] = []
        while self._heap and self._heap[0][0] <= now:
            when, _, request = heapq.heappop(self._heap)
            if request.done or when != request.noted:  # noted for an earlier time since, and seen to by now
                continue
            request.noted = None
            if request.deadline is not None and request.deadline <= now:
                late.append(request)
            else:
                self.watch(request)
        return late
