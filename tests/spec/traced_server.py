"""A traced server, which the tests run in this process and in one that they kill.

`python -m tests.spec.traced_server STORE [ENDPOINT]` writes JSON lines: its address, "begun" when a task has begun, and
its spans. With the endpoint of an OTLP receiver, it sends the spans there instead.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

from trunkline import OpenTelemetry, Server, Settings, SqliteStore, TaskPolicy
from trunkline.facts import Observer

__all__ = ["Seen", "make_server", "see"]


class Seen(NamedTuple):
    """A span, wherever it was exported to."""

    name: str
    kind: str
    trace: str
    ident: str
    parent: str | None


def see(span: ReadableSpan) -> Seen:
    """A span of the SDK."""
    parent = None if span.parent is None else format_span_id(span.parent.span_id)
    own = span.context
    return Seen(span.name, span.kind.name, format_trace_id(own.trace_id), format_span_id(own.span_id), parent)


def make_server(
    path: str, provider: TracerProvider, on_begun: Callable[[], object] = bool, more: Sequence[Observer] = ()
) -> Server:
    """A server with a tool that runs on a thread, and with one that runs as a task, on a thread as well."""
    server = Server(
        "traced",
        store=SqliteStore(path),
        settings=Settings(process_lease=1.0),
        observers=[OpenTelemetry(tracer_provider=provider, metrics=False), *more],
    )
    tracer = provider.get_tracer("application")

    @server.tool
    def add(a: int, b: int) -> int:
        with tracer.start_as_current_span("adding on a thread"):
            return a + b

    @server.tool(task=TaskPolicy(support="required", recovery="restart"))
    def work() -> str:
        with tracer.start_as_current_span("working on a thread"):
            on_begun()
            return "done"

    return server


def say(line: dict[str, Any]) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Lines(SpanExporter):
    """Writes each span as a line."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            say({"span": see(span)})
        return SpanExportResult.SUCCESS


async def serve(path: str, endpoint: str | None) -> None:
    """Serve until the process is killed. The task never ends here."""
    provider = TracerProvider()
    exporter = Lines() if endpoint is None else OTLPSpanExporter(endpoint)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def hold() -> None:
        say({"begun": True})
        threading.Event().wait()

    listener = await make_server(path, provider, hold).listen("http://127.0.0.1:0/mcp")
    say({"address": listener.address})
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
