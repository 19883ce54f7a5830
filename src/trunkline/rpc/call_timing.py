"""Times of the steps of one call, for observers."""

from collections.abc import Callable
from time import time_ns
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw

from trunkline.facts import CallStep
from trunkline.protocol.trace_context import TRACEPARENT, read_trace

if TYPE_CHECKING:
    from trunkline.protocol.inflight import IncomingRequest
    from trunkline.tracing import GuardedTracer

__all__ = ["CallTiming", "StepReporter", "find_traceparent"]


class StepReporter:
    """Reports the steps of the calls of one connection, for observers that want them."""

    def __init__(self, connection: int, report: Callable[[CallStep], None]) -> None:
        self._connection = connection
        self._report = report

    def __call__(self, call: "IncomingRequest", step: str, seconds: float) -> None:
        """Report that a call has taken a step, so many seconds after its request was received."""
        self._report(
            CallStep(
                connection=self._connection,
                at=call.started + seconds,
                step=step,
                request=call.id,
                method=call.method.name,
                target=call.target,
                seconds=seconds,
            )
        )


class CallTiming:
    """Times of one call. A connection creates it if an observer wants facts about calls. It does not refer to its call:
    reference counting frees both.

    `now` measures durations: the clock of an event loop may count in milliseconds. Its values are not those of the
    connection's clock.
    """

    __slots__ = (
        "_now",
        "_report_step",
        "_tracer",
        "ended",
        "params",
        "request_size",
        "started",
        "traceparent",
        "waited",
    )

    def __init__(
        self,
        params: Any,
        now: Callable[[], float],
        report_step: StepReporter | None,
        tracer: "GuardedTracer | None" = None,
    ) -> None:
        self.waited = 0.0
        self.started: float | None = None
        self.ended: float | None = None
        self.traceparent: str | None = None
        self.params: Any = None  # decoded ones, if an observer wanted their target before the call was dispatched
        self.request_size = len(params) if type(params) is Raw else None
        self._now = now
        self._report_step = report_step
        self._tracer = tracer

    def on_started(self, call: "IncomingRequest", waited: float) -> None:
        """Note that the handler starts, so many seconds after its request was received."""
        self.waited = waited
        self.started = self._now()
        if self._report_step is not None:
            self._report_step(call, "started", waited)

    def on_decoded(self, call: "IncomingRequest", params: Any) -> None:
        """Note that the handler is known and the params are valid. If there is a tracer, the span of the call is
        current from now on."""
        self.params = None
        if self._tracer is None:
            self.traceparent = find_traceparent(params)
        else:
            trace = read_trace(params)
            self.traceparent = trace.get(TRACEPARENT)
            received = time_ns() - int(self._elapsed() * 1e9)
            call.span = self._tracer.start_call(
                call.method.name,
                call.target,
                meta=trace,
                headers=None if call.origin is None else call.origin.headers,
                received=received,
            )
        if self._report_step is not None:
            self._report_step(call, "decoded", self._elapsed())

    def on_ended(self, call: "IncomingRequest") -> None:
        """Note that the handler has a result or an error."""
        if self.ended is None:
            self.ended = self._now()
            if self._report_step is not None:
                self._report_step(call, "ended", self._elapsed())

    def report_step(self, call: "IncomingRequest", step: str, seconds: float | None = None) -> None:
        """Report a step that takes place now, if an observer wants that. `seconds` have passed since the request was
        received; they need not be given once the handler has started."""
        if self._report_step is not None:
            self._report_step(call, step, self._elapsed() if seconds is None else seconds)

    def _elapsed(self) -> float:
        """Return the seconds since the request was received."""
        return self.waited if self.started is None else self.waited + self._now() - self.started


def find_traceparent(params: Any) -> str | None:
    """Return the trace context in the metadata of params, as its sender stated it."""
    meta = getattr(params, "meta", None)
    value = cast("dict[str, Any]", meta).get("traceparent") if type(meta) is dict else None
    return value if isinstance(value, str) else None
