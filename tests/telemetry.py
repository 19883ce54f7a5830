"""The SDK of OpenTelemetry with exporters in memory."""

from functools import cached_property
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from trunkline import OpenTelemetry

__all__ = ["CLIENT", "SERVER", "Telemetry", "ident", "parent_of", "trace_of", "traceparent"]

CLIENT, SERVER = SpanKind.CLIENT, SpanKind.SERVER


def ident(span: ReadableSpan) -> str:
    """The id of a span."""
    return format_span_id(span.context.span_id)


def trace_of(span: ReadableSpan) -> str:
    """The id of the trace of a span."""
    return format_trace_id(span.context.trace_id)


def parent_of(span: ReadableSpan) -> str | None:
    """The id of the parent of a span."""
    return None if span.parent is None else format_span_id(span.parent.span_id)


def traceparent(span: ReadableSpan) -> str:
    """A span as the parent of another process."""
    return f"00-{trace_of(span)}-{ident(span)}-{span.context.trace_flags:02x}"


class Telemetry:
    """Providers of spans and metrics, and what they have exported."""

    def __init__(self) -> None:
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer = self.tracer_provider.get_tracer("application")

    def observer(self, **options: Any) -> OpenTelemetry:
        """An observer that uses these providers."""
        return OpenTelemetry(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans that have ended."""
        return list(self._exporter.get_finished_spans())

    def all(self, name: str, kind: SpanKind | None = None) -> list[ReadableSpan]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name and (kind is None or span.kind is kind)]

    def one(self, name: str, kind: SpanKind | None = None) -> ReadableSpan:
        """The only span of a name."""
        found = self.all(name, kind)
        assert len(found) == 1, [(span.name, span.kind.name) for span in self.spans]
        return found[0]

    def find_parent(self, span: ReadableSpan) -> ReadableSpan | None:
        """The parent of a span, if it is among the exported ones."""
        return next((one for one in self.spans if ident(one) == parent_of(span)), None)

    def path(self, span: ReadableSpan) -> list[str]:
        """The names and kinds of a span and its ancestors, from the root."""
        above = self.find_parent(span)
        return [*([] if above is None else self.path(above)), f"{span.kind.name.lower()} {span.name}"]

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric."""
        return [point for one in self._metrics if one.name == metric for point in one.data.data_points]

    @cached_property
    def _metrics(self) -> list[Any]:
        """The metrics, collected once: collecting discards the exemplars."""
        data = self._reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics
        return [one for each in found for scope in each.scope_metrics for one in scope.metrics]
