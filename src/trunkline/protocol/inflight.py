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

__all__ = ["DeadlineQueue", "FinishedRequests", "IncomingRequest", "OutgoingRequest", "TrackedRequest"]

_MIN_SWEEP_SIZE: Final = 64
_MAX_ABANDONED: Final = 256  # requests that may be answered all the same
_order: Final = count()  # of what has the same deadline


class TrackedRequest(Struct):
    """A request under way. Times are seconds on the clock of its conversation."""

    id: RequestId
    method: Method
    started: float
    timeout: float | None = None  # seconds from the last sign of life; None: no deadline
    max_duration: float | None = None  # seconds in all, whatever signs of life there are
    deadline: float | None = None
    suspensions: int = 0  # how many things suspend the deadline; a person being asked, for one
    done: bool = False
    scheduled_at: float | None = None  # when the timetable looks at it next
    target: str | None = None  # the name or URI of what it is about, where it is about one thing

    def set_timeout(self, now: float, timeout: float | None, max_duration: float | None) -> None:
        """Gives the request so much time from now on."""
        self.timeout = timeout
        self.max_duration = max_duration
        self.renew_deadline(now)

    def renew_deadline(self, now: float) -> None:
        """A sign of life: the time starts again, but never goes past the longest."""
        latest = None if self.max_duration is None else self.started + self.max_duration
        if self.timeout is None or self.suspensions:
            self.deadline = latest
        else:
            self.deadline = now + self.timeout if latest is None else min(now + self.timeout, latest)

    def suspend_deadline(self, now: float) -> None:
        """Suspends the deadline, not the longest time."""
        self.suspensions += 1
        self.renew_deadline(now)

    def resume_deadline(self, now: float) -> None:
        """Ends one `hold`; with the last of them the time starts again."""
        self.suspensions -= 1
        self.renew_deadline(now)


class IncomingRequest(TrackedRequest):
    """A request of the peer's that we work on."""

    token: ProgressToken | None = None
    progress: float | None = None  # reported last
    cancelled: bool = False  # by the peer: nothing more may be sent about it
    queued: bool = False  # waits for its turn: its handler has not been started
    work: Any = None  # what the driver needs to stop it
    origin: Any = None  # what came with the request, and where its answer goes
    envelope: Envelope | None = None  # of a request that stands for itself
    unwrapped: bool = False  # its result goes without the object that older revisions need around it
    hint: Any = None  # how long its result may be kept
    input_round: Any = None  # what was asked and answered before, for a handler that is run again
    once: Any = None  # what it has done that must not be done twice
    task: Any = None  # what makes a task of it, where it can become one later
    related_task: str | None = None  # the task that it has become: what is told of it names that
    admitted_entry: Any = (
        None  # the entry that it is about, once its sender was found to be one of those who may have it
    )

    def record_progress(self, progress: float, now: float) -> bool:
        """Notes a report of progress; False if it may not be sent: it must grow, and end with the request."""
        if self.done or (self.progress is not None and progress <= self.progress):
            return False
        self.progress = progress
        self.renew_deadline(now)
        return True


class OutgoingRequest(TrackedRequest, weakref=True):
    """A request of ours that the peer works on."""

    waiter: Any = None  # who is told of the answer
    parent_call: IncomingRequest | None = None  # on whose behalf it is asked
    on_progress: Any = None
    progress: float | None = None  # heard last
    as_task: bool = False  # it asks for a task: that is cancelled by its own name, and its progress goes on
    on_late_response: Any = None  # who is told of an answer that comes when nobody waits any more

    def record_progress(self, progress: float, now: float) -> bool:
        """Notes progress that the peer reports; False if it does not grow."""
        if self.progress is not None and progress <= self.progress:
            return False
        self.progress = progress
        self.renew_deadline(now)
        return True


class FinishedRequests:
    """Requests of ours that are over, and of which something may still be heard: one that was given up may have been
    answered just then, and one that was answered with a task goes on to tell of its progress. That is heard for as long
    as somebody holds the request."""

    __slots__ = ("_abandoned", "_progressing")

    def __init__(self) -> None:
        self._abandoned: dict[RequestId, OutgoingRequest] = {}
        self._progressing: WeakValueDictionary[RequestId, OutgoingRequest] = WeakValueDictionary()

    def add_abandoned(self, request: OutgoingRequest) -> None:
        """Nobody waits for it any more, and somebody wants to know if it is answered."""
        self._abandoned[request.id] = request
        if len(self._abandoned) > _MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]

    def pop_abandoned(self, ident: RequestId) -> OutgoingRequest | None:
        """The request that is answered after all, if it was one of them."""
        return self._abandoned.pop(ident, None)

    def add_progressing(self, request: OutgoingRequest) -> None:
        """It was answered, and its progress token holds on."""
        self._progressing[request.id] = request

    def find_progressing(self, token: ProgressToken) -> OutgoingRequest | None:
        """The request that a token belongs to, if it still holds."""
        return self._progressing.get(token)


class DeadlineQueue:
    """Deadlines, the nearest first."""

    __slots__ = ("_heap", "_sweep_size")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TrackedRequest]] = []
        self._sweep_size = _MIN_SWEEP_SIZE  # entries at which those that are done are swept out

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, request: TrackedRequest) -> None:
        """Keeps an eye on the deadline of a request, if it has one. Twice is once."""
        due = request.deadline
        if due is None or (request.scheduled_at is not None and request.scheduled_at <= due):
            return
        if len(self._heap) >= self._sweep_size:
            self._sweep()
        request.scheduled_at = due
        heapq.heappush(self._heap, (due, next(_order), request))

    def _sweep(self) -> None:
        """Most requests are done long before their time is up; nothing of them is kept until then."""
        self._heap = [entry for entry in self._heap if not entry[2].done]
        heapq.heapify(self._heap)
        self._sweep_size = max(_MIN_SWEEP_SIZE, 2 * len(self._heap))

    def next_deadline(self) -> float | None:
        """When to look again; None while there is nothing to wait for."""
        while self._heap and self._heap[0][2].done:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_expired(self, now: float) -> list[TrackedRequest]:
        """The requests whose time is up."""
        late: list[TrackedRequest] = []
        while self._heap and self._heap[0][0] <= now:
            when, _, request = heapq.heappop(self._heap)
            if request.done or when != request.scheduled_at:  # noted for an earlier time since, and seen to by now
                continue
            request.scheduled_at = None
            if request.deadline is not None and request.deadline <= now:
                late.append(request)
            else:
                self.schedule(request)
        return late
