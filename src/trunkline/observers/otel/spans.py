"""Spans of requests and of task runs, with the API of OpenTelemetry.

The span of a request of a peer continues the trace that the request states in `_meta`, otherwise that of its HTTP
headers. If an instrumentation of the HTTP server has a span for the same HTTP request, that span is the parent, unless
`_meta` states a context; then it is linked if it is in another trace.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic, time_ns
from typing import Final

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, get_current
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trunkline.facts import CallEnded, HandlerFailed, RequestEnded, TaskRunEnded
from trunkline.observers.otel.attributes import (
    Attributes,
    describe_end,
    describe_run,
    describe_start,
    describe_tool,
    error_type,
    run_name,
    span_name,
)
from trunkline.tracing import TraceContext
from trunkline.version import __version__

__all__ = ["OtelSpan", "OtelTracer", "Step", "continue_trace"]

_TRACEPARENT: Final = "traceparent"
_KEYS: Final = (_TRACEPARENT, "tracestate", "baggage")  # the specification of MCP reserves these
_CACHED: Final = 1024  # methods and their targets
_MAX_CACHED_LENGTH: Final = 128  # characters of a target
_NANOSECONDS: Final = 1_000_000_000
_MAX_AGE: Final = 60.0  # seconds that a fact may have waited for the observer
_PROPAGATOR: Final = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])

Step = tuple[str, float]
"""A step of a request, and the seconds since it was received."""


class OtelSpan:
    """A span of OpenTelemetry, the context in which it is current, and its start in nanoseconds since 1970."""

    __slots__ = ("_context", "owner", "span", "started")

    def __init__(self, owner: "OtelTracer", span: trace.Span, context: Context | None, started: int) -> None:
        self.owner = owner
        self.span = span
        self.started = started
        self._context = trace.set_span_in_context(span, context)

    @property
    def context(self) -> Context:
        """The context in which the span is the current one."""
        return self._context

    @property
    def trace_id(self) -> str:
        """The id of its trace; empty without an SDK."""
        ident = self.span.get_span_context().trace_id
        return f"{ident:032x}" if ident else ""

    def make_current(self) -> None:
        """Make the span the current one in the context variables of the caller."""
        attach(self._context)

    def trace_context(self) -> dict[str, str]:
        """Return the context with which another process continues the trace."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._context)
        return carrier

    def end(self, attributes: Attributes, seconds: float, error: str | None) -> None:
        """End the span, so many seconds after it began. `error` is the description of an error, or None."""
        if self.span.is_recording():
            self.span.set_attributes(attributes)
            if error is not None:
                self.span.set_status(StatusCode.ERROR, error or None)
        self.span.end(self.started + round(seconds * _NANOSECONDS))


class OtelTracer:
    """Starts spans on the event loop, and ends them on the thread of the observer."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = trace.get_tracer("trunkline", __version__, provider)

    # --- starting --------------------------------------------------------------------------------

    def start_call(
        self, method: str, target: str | None, *, meta: TraceContext, headers: Mapping[str, str] | None, received: int
    ) -> OtelSpan:
        """Start the span of a request of the peer."""
        parent, links = _find_parent(meta, headers)
        return self._start_server_span(method, target, parent, received, links)

    def start_request(self, method: str, target: str | None) -> OtelSpan:
        """Start the span of a request to the peer, as a child of the current span."""
        started, (name, attributes) = time_ns(), _describe_span(method, target)
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes, start_time=started)
        return OtelSpan(self, span, None, started)

    def start_task_run(self, tool: str, trace: TraceContext) -> OtelSpan:
        """Start the span of one run of a task."""
        parent, started = _PROPAGATOR.extract(trace, Context()), time_ns()
        span = self._tracer.start_span(
            run_name(tool), parent, SpanKind.INTERNAL, describe_tool(tool), start_time=started
        )
        return OtelSpan(self, span, parent, started)

    def carry_current(self) -> Callable[[], object]:
        """Return a function that makes the current context that of another process."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return partial(continue_trace, carrier)

    def _start_server_span(
        self, method: str, target: str | None, parent: Context, started: int, links: Sequence[Link] = ()
    ) -> OtelSpan:
        name, attributes = _describe_span(method, target)
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, links, started)
        return OtelSpan(self, span, parent, started)

    # --- ending ----------------------------------------------------------------------------------

    def end_call(self, fact: CallEnded, steps: Sequence[Step]) -> OtelSpan | None:
        """End the span of a request of the peer. One that was refused before it started gets its span now."""
        span = self._own(fact.span)
        if fact.span is None:
            stated = {} if fact.traceparent is None else {_TRACEPARENT: fact.traceparent}
            parent = _PROPAGATOR.extract(stated, Context())
            started = _wall_time(fact.at) - round(fact.seconds * _NANOSECONDS)
            span = self._start_server_span(fact.method, fact.target, parent, started)
        if span is not None:
            for step, seconds in steps:
                span.span.add_event(step, timestamp=span.started + round(seconds * _NANOSECONDS))
            span.end(describe_end(fact), fact.seconds, _describe_failure(fact))
        return span

    def end_request(self, fact: RequestEnded) -> OtelSpan | None:
        """End the span of a request to the peer."""
        span = self._own(fact.span)
        if span is not None:
            span.end(describe_end(fact), fact.seconds, _describe_failure(fact))
        return span

    def end_task_run(self, fact: TaskRunEnded) -> None:
        """End the span of one run of a task."""
        span = self._own(fact.span)
        if span is not None:
            span.end(describe_run(fact), fact.seconds, _describe_failure(fact))

    def record_exception(self, fact: HandlerFailed) -> None:
        """Add the exception of a handler to the span of its request."""
        span = self._own(fact.span)
        if span is not None and span.span.is_recording():
            span.span.record_exception(fact.error, {"trunkline.incident": fact.reference}, _wall_time(fact.at))

    def _own(self, span: object) -> OtelSpan | None:
        """Return a span if this tracer has started it."""
        return span if isinstance(span, OtelSpan) and span.owner is self else None


def _describe_span(method: str, target: str | None) -> tuple[str, Attributes]:
    """Return the name and the first attributes of the span of a request."""
    if target is None or len(target) <= _MAX_CACHED_LENGTH:
        name, attributes = _describe_short(method, target)
        return name, attributes.copy()  # a sampler may change them
    return span_name(method, target), describe_start(method, target)


@lru_cache(_CACHED)
def _describe_short(method: str, target: str | None) -> tuple[str, Attributes]:
    return span_name(method, target), describe_start(method, target)


def continue_trace(carrier: TraceContext) -> None:
    """Make a trace context that another process has sent the current one, in the context variables of the caller."""
    attach(_PROPAGATOR.extract(carrier, Context()))


def _wall_time(at: float) -> int:
    """Return the time of a fact in nanoseconds since 1970. The clock of a connection is the monotonic one; a fact with
    the time of another clock, as in tests, is taken to be new."""
    now = time_ns()
    age = monotonic() - at
    return now - round(age * _NANOSECONDS) if 0 <= age < _MAX_AGE else now


def _describe_failure(fact: CallEnded | RequestEnded | TaskRunEnded) -> str | None:
    """Return the description of an error, which may be empty; None for success."""
    return None if fact.outcome == "ok" or error_type(fact) is None else fact.message or ""


def _find_parent(meta: TraceContext, headers: Mapping[str, str] | None) -> tuple[Context, Sequence[Link]]:
    """Return the context that the span of a request continues, and the links to other traces."""
    surroundings, stated, ambient = get_current(), meta, None
    current = trace.get_current_span(surroundings)
    if current is not trace.INVALID_SPAN:
        if current.is_recording():
            ambient = current.get_span_context()
        else:  # a span that has ended is left over from the time when the connection was opened
            surroundings = trace.set_span_in_context(trace.INVALID_SPAN, surroundings)
    if not stated and headers is not None:
        stated = {name: headers[name] for name in _KEYS if name in headers}
    if not stated:
        return surroundings, ()
    context = _PROPAGATOR.extract(stated, surroundings)
    remote = trace.get_current_span(context).get_span_context()
    if ambient is None or not remote.is_valid or remote.span_id == ambient.span_id:
        return context, ()
    if remote.trace_id != ambient.trace_id:
        return context, (Link(ambient),)
    return (context if meta else surroundings), ()
