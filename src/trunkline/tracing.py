"""The seam between requests and a tracing library.

An observer with an attribute `tracer` is asked for a span when a request or the run of a task starts, on the thread of
the event loop: while a handler runs, its span has to be the current one. The observer receives the span again in the
fact that reports the end (`CallEnded.span`), on its own thread, and ends it there. So no call waits for an exporter.
"""

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from trunkline.fact_queue import OncePerMinute

__all__ = ["GuardedTracer", "Span", "TraceContext", "Tracer"]

T = TypeVar("T")
TraceContext = Mapping[str, str]
"""W3C's `traceparent`, `tracestate` and `baggage`, as far as there are any."""

_log: Final = logging.getLogger("trunkline")


class Span(Protocol):
    """A span that has started. Its methods are called on the thread of the event loop; any thread may read the id."""

    @property
    def trace_id(self) -> str:
        """The id of its trace, with 32 hexadecimal digits; empty if there is none."""
        ...

    def make_current(self) -> None:
        """Make the span the current one in the context variables of the caller, which ends with them."""
        ...

    def trace_context(self) -> dict[str, str]:
        """Return the context with which another process continues the trace."""
        ...


class Tracer(Protocol):
    """Starts spans. Its methods are called on the thread of the event loop, and must not block."""

    def start_call(
        self, method: str, target: str | None, *, meta: TraceContext, headers: Mapping[str, str] | None, received: int
    ) -> Span:
        """Start the span of a request of the peer, which was received at a time in nanoseconds since 1970. `meta` is
        the trace context in its `_meta`; `headers` are those of the HTTP request."""
        ...

    def start_request(self, method: str, target: str | None) -> Span:
        """Start the span of a request to the peer, as a child of the current span."""
        ...

    def start_task_run(self, tool: str, trace: TraceContext) -> Span:
        """Start the span of one run of a task; `trace` is the trace context of the request that created the task."""
        ...

    def carry_current(self) -> Callable[[], object]:
        """Return a function that can be pickled, and that makes the span that is current now the current one in the
        context variables of its caller, in another process."""
        ...


class GuardedTracer:
    """A tracer whose exceptions are counted, logged once per minute, and otherwise ignored: the request goes on without
    a span."""

    def __init__(self, tracer: Tracer) -> None:
        self.failures = 0
        self._tracer = tracer
        self._may_log = OncePerMinute()

    def start_call(
        self, method: str, target: str | None, *, meta: TraceContext, headers: Mapping[str, str] | None, received: int
    ) -> Span | None:
        """Start the span of a request of the peer, and make it current."""
        try:  # as in `_guard`; calls are frequent
            span = self._tracer.start_call(method, target, meta=meta, headers=headers, received=received)
            span.make_current()
        except Exception as error:  # noqa: BLE001 - a tracer's fault is its own
            self._report(error)
            return None
        return span

    def start_request(self, method: str, target: str | None) -> tuple[Span, dict[str, str]] | None:
        """Start the span of a request to the peer; return it with the trace context to send."""

        def start() -> tuple[Span, dict[str, str]]:
            span = self._tracer.start_request(method, target)
            return span, span.trace_context()

        return self._guard(start)

    def start_task_run(self, tool: str, trace: TraceContext) -> Span | None:
        """Start the span of one run of a task, and make it current."""
        return self._guard(lambda: _current(self._tracer.start_task_run(tool, trace)))

    def carry_current(self) -> bytes | None:
        """Return a pickled function that makes the current span current in another process."""
        return self._guard(lambda: pickle.dumps(self._tracer.carry_current()))

    def trace_context(self, span: Span) -> dict[str, str]:
        """Return the context with which another process continues the trace of a span."""
        return self._guard(span.trace_context) or {}

    def _guard(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - a tracer's fault is its own
            self._report(error)
            return None

    def _report(self, error: Exception) -> None:
        self.failures += 1
        if self._may_log():
            name = type(self._tracer).__name__
            _log.warning("%s failed, %d times so far; calls continue", name, self.failures, exc_info=error)


def _current(span: Span) -> Span:
    span.make_current()
    return span
