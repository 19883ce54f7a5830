"""One timer for all deadlines of a connection, set to the earliest."""

from collections.abc import Callable

from trunkline.clock import Clock, Timer
from trunkline.protocol.inflight import DeadlineQueue, TrackedRequest

__all__ = ["DeadlineTimer"]


class DeadlineTimer:
    """Call `on_due` when the earliest deadline of a queue is reached; the callback ends the due requests."""

    __slots__ = ("_clock", "_on_due", "_queue", "_timer", "due")

    def __init__(self, queue: DeadlineQueue, clock: Clock, on_due: Callable[[], None]) -> None:
        self._queue = queue
        self._clock = clock
        self._on_due = on_due
        self._timer: Timer | None = None
        self.due: float | None = None  # the time that the timer is set to

    def watch(self, request: TrackedRequest) -> None:
        """Add a request to the queue."""
        self._queue.schedule(request)
        due, deadline = self.due, request.deadline
        if due is None or (deadline is not None and deadline < due):
            self.reschedule()

    def reschedule(self) -> None:
        """Set the timer to the earliest deadline. A timer that fires too early does no harm: it is set again."""
        due = self._queue.next_deadline()
        if due is None or (self.due is not None and self.due <= due):
            return
        self.stop()
        self.due = due
        self._timer = self._clock.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = self.due = None
        self._on_due()
        self.reschedule()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.due = None
