"""Durations of requests and sessions, with the API of OpenTelemetry."""

from typing import Final

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider, get_meter

from trunkline.facts import CallEnded, Closed, RequestEnded
from trunkline.observers.otel.attributes import MetricName, metric_attributes, session_attributes
from trunkline.version import __version__

__all__ = ["Durations"]

_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)  # advised by the conventions


class Durations:
    """The histograms of the semantic conventions for MCP."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = get_meter("trunkline", __version__, provider)

        def histogram(name: str, description: str) -> Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_BUCKETS)

        self._calls = histogram("mcp.server.operation.duration", "Duration of requests, as their receiver sees it")
        self._requests = histogram("mcp.client.operation.duration", "Duration of requests, as their sender sees it")
        self._sessions = {
            "server": histogram("mcp.server.session.duration", "Duration of sessions, as the server sees them"),
            "client": histogram("mcp.client.session.duration", "Duration of sessions, as the client sees them"),
        }
        self._known: set[MetricName] = set()  # see `metric_attributes`

    def record_call(self, fact: CallEnded, context: Context | None) -> None:
        """Record a request of the peer. The span in `context` is its exemplar."""
        self._calls.record(fact.seconds, metric_attributes(fact, self._known), context)

    def record_request(self, fact: RequestEnded, context: Context | None) -> None:
        """Record a request to the peer. The span in `context` is its exemplar."""
        self._requests.record(fact.seconds, metric_attributes(fact, self._known), context)

    def record_session(self, fact: Closed) -> None:
        """Record a session that has ended."""
        if fact.seconds is not None and fact.side in self._sessions:
            self._sessions[fact.side].record(fact.seconds, session_attributes(fact))
