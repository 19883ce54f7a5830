"""One timer for all deadlines of a connection, set to the nearest."""

from collections.abc import Callable

from trunkline.clock import Clock, Timer
from trunkline.protocol.inflight import DeadlineQueue, TrackedRequest

__all__ = ["DeadlineTimer"]


class DeadlineTimer:
    """Goes off when the nearest deadline of a timetable has come; whoever is called ends what is due."""

    __slots__ = ("_clock", "_due", "_on_due", "_timer", "_timetable")

    def __init__(self, timetable: DeadlineQueue, clock: Clock, on_due: Callable[[], None]) -> None:
        self._timetable = timetable
        self._clock = clock
        self._on_due = on_due
        self._timer: Timer | None = None
        self._due: float | None = None  # when the timer is set to

    def watch(self, request: TrackedRequest) -> None:
        """Keeps an eye on one more request."""
        self._timetable.schedule(request)
        self.reschedule()

    def reschedule(self) -> None:
        """Sets the timer to the nearest deadline. A timer that is too early does no harm: it is set again."""
        due = self._timetable.next_deadline()
        if due is None or (self._due is not None and self._due <= due):
            return
        self.stop()
        self._due = due
        self._timer = self._clock.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = self._due = None
        self._on_due()
        self.reschedule()

    def stop(self) -> None:
        """Takes the timer back."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None
