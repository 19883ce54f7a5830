"""Tracked requests: incoming and outgoing requests in flight, and their deadlines.

A session has one heap of deadlines. Moving a deadline does not search the heap: when the old entry comes up, it is
pushed again. So starting, renewing and ending a request are cheap, and one timer, set to `next_deadline`, suffices. Our
own requests enter the heap when deadlines are next checked, if they are still in flight.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from msgspec import Raw, Struct

from trunkline.protocol.meta import ProgressToken
from trunkline.protocol.methods import Method
from trunkline.wire.messages import RequestId

if TYPE_CHECKING:
    from trunkline.protocol.envelope import Envelope
    from trunkline.protocol.modern import CacheHint
    from trunkline.tracing import Span

__all__ = [
    "DeadlineQueue",
    "Effects",
    "FinishedRequests",
    "IncomingRequest",
    "InputRound",
    "OutgoingRequest",
    "TrackedRequest",
]

_MIN_SWEEP_SIZE: Final = 64
_MAX_ABANDONED: Final = 256  # abandoned requests that may still be answered
_order: Final = count()  # tie-breaker of equal deadlines


class InputRound(Protocol):
    """State of a modern request whose handler asks the client: its questions, and the answers of earlier rounds."""

    @property
    def has_asked(self) -> bool:
        """Whether this run has asked questions that have no answer yet."""
        ...

    @property
    def earlier_rounds(self) -> tuple[Mapping[str, Raw], Mapping[str, Raw]]:
        """The answers of earlier rounds, and the results of effects that must not happen twice."""
        ...

    def effect_log(self) -> "Effects":
        """Return the log of the effects of this run and of earlier rounds."""
        ...


class Effects(Protocol):
    """Results of a call's effects that must not happen twice."""

    def run_once(self, key: str, function: Callable[[], Any]) -> Awaitable[Any]:
        """Return the result of a function, which runs only if the key has no result yet."""
        ...


class TrackedRequest(Struct):
    """A request in flight. Times are seconds on the clock of its session."""

    id: RequestId
    method: Method
    started: float
    origin: Any = None  # of a request of the peer: its transport context, and the route of its response
    params: Any = None  # of a request of the peer: Raw, DecodedJson or UNSET, until its handler waits
    timeout: float | None = None  # seconds since the last progress; None: no deadline
    max_duration: float | None = None  # seconds in total, whatever progress there is
    deadline: float | None = None
    suspensions: int = 0  # how many waits suspend the deadline, such as for a person
    done: bool = False
    scheduled_at: float | None = None  # its entry in the deadline queue
    target: str | None = None  # the name or URI of its target, if it has one
    span: "Span | None" = None  # if there is a tracer

    def set_timeout(self, now: float, timeout: float | None, max_duration: float | None) -> None:
        """Set the timeout and the maximum duration, from now on."""
        self.timeout = timeout
        self.max_duration = max_duration
        self.renew_deadline(now)

    def renew_deadline(self, now: float) -> None:
        """Restart the timeout, within the maximum duration."""
        timeout, longest = self.timeout, self.max_duration
        latest = None if longest is None else self.started + longest
        if timeout is None or self.suspensions:
            self.deadline = latest
        else:
            due = now + timeout
            self.deadline = due if latest is None or due < latest else latest

    def has_expired(self, now: float) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and self.deadline <= now

    def suspend_deadline(self, now: float) -> None:
        """Suspend the timeout, but not the maximum duration."""
        self.suspensions += 1
        self.renew_deadline(now)

    def resume_deadline(self, now: float) -> None:
        """Undo one `suspend_deadline`; the last one restarts the timeout."""
        self.suspensions -= 1
        self.renew_deadline(now)


class IncomingRequest(TrackedRequest, weakref=True):
    """A request of the peer whose handler is queued or running."""

    token: ProgressToken | None = None
    progress: float | None = None  # last reported
    cancelled: bool = False  # by the peer: no further message about it is allowed
    queued: bool = False  # its handler has not started
    held: bool = False  # its handler has ended, and its reply has waited for changes
    work: Any = None  # handle to cancel its handler
    envelope: "Envelope | None" = None  # of a request of the modern era
    unwrapped: bool = False  # its structured content is sent without the wrapper object of older revisions
    hint: "CacheHint | None" = None  # cache lifetime of its result
    input_round: InputRound | None = None  # earlier questions and answers, for a handler that runs again
    once: Effects | None = None  # recorded effects that must not be repeated
    task: Callable[[], Awaitable[None]] | None = None  # turns the call into a task, if that is possible later
    related_task: str | None = None  # the task that it has become; messages about it name that task
    admitted_entry: object | None = None  # the entry that the caller was authorized for
    timing: Any = None  # the times of its steps, if there is an observer of calls
    context: Context | None = None  # the context variables when it was received, if it waits and there is a tracer

    def record_progress(self, progress: float, now: float) -> bool:
        """Record progress to report; return False if it must not be sent: progress must grow, and ends with the
        request."""
        if self.done or (self.progress is not None and progress <= self.progress):
            return False
        self.progress = progress
        self.renew_deadline(now)
        return True


class OutgoingRequest(TrackedRequest, weakref=True):
    """A request of ours that waits for the response of the peer."""

    waiter: Any = None  # future of the response
    parent_call: IncomingRequest | None = None  # the call on whose behalf it is sent
    on_progress: Any = None
    progress: float | None = None  # last received
    as_task: bool = False  # requests a task, which has its own cancellation and continues to report progress
    on_late_response: Any = None  # future of a response that arrives after cancellation

    def record_progress(self, progress: float, now: float) -> bool:
        """Record progress from the peer; return False if it does not grow."""
        if self.progress is not None and progress <= self.progress:
            return False
        self.progress = progress
        self.renew_deadline(now)
        return True


class FinishedRequests:
    """Finished requests of ours that may still receive messages.

    An abandoned request may have been answered already, and a request that was answered with a task continues to report
    progress, for as long as the caller holds a reference to it.
    """

    __slots__ = ("_abandoned", "_progressing")

    def __init__(self) -> None:
        self._abandoned: dict[RequestId, OutgoingRequest] = {}
        self._progressing: WeakValueDictionary[RequestId, OutgoingRequest] = WeakValueDictionary()

    def add_abandoned(self, request: OutgoingRequest) -> None:
        """Remember an abandoned request whose late response is of interest."""
        self._abandoned[request.id] = request
        if len(self._abandoned) > _MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]

    def pop_abandoned(self, ident: RequestId) -> OutgoingRequest | None:
        """Return and forget the abandoned request with this id, if any."""
        return self._abandoned.pop(ident, None)

    def add_progressing(self, request: OutgoingRequest) -> None:
        """Keep the progress token of an answered request valid."""
        self._progressing[request.id] = request

    def find_progressing(self, token: ProgressToken) -> OutgoingRequest | None:
        """Return the request of a progress token, if it is still referenced."""
        return self._progressing.get(token)


class DeadlineQueue:
    """Deadlines of requests, the nearest first."""

    __slots__ = ("_heap", "_sweep_size")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TrackedRequest]] = []
        self._sweep_size = _MIN_SWEEP_SIZE  # number of entries at which finished requests are removed

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, request: TrackedRequest) -> None:
        """Add the deadline of a request, if it has one. Idempotent."""
        due, scheduled = request.deadline, request.scheduled_at
        if due is None or (scheduled is not None and scheduled <= due):
            return
        if len(self._heap) >= self._sweep_size:
            self._sweep()
        request.scheduled_at = due
        heappush(self._heap, (due, next(_order), request))

    def _sweep(self) -> None:
        """Remove finished requests: most finish long before their deadlines."""
        self._heap = [entry for entry in self._heap if not entry[2].done]
        heapify(self._heap)
        self._sweep_size = max(_MIN_SWEEP_SIZE, 2 * len(self._heap))

    def next_deadline(self) -> float | None:
        """Return the nearest deadline; None if there is none."""
        while self._heap and self._heap[0][2].done:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_expired(self, now: float) -> list[TrackedRequest]:
        """Remove and return the requests whose deadline has passed."""
        late: list[TrackedRequest] = []
        while self._heap and self._heap[0][0] <= now:
            when, _, request = heappop(self._heap)
            if request.done or when != request.scheduled_at:  # an outdated entry
                continue
            request.scheduled_at = None
            if request.deadline is not None and request.deadline <= now:
                late.append(request)
            else:
                self.schedule(request)
        return late
