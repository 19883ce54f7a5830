"""A receiver of OTLP over HTTP, which decodes what it receives and writes it as JSON lines: its endpoint, then spans."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.spec.traced_server import Seen, say


def read_spans(body: bytes) -> list[Seen]:
    """The spans of a request."""
    received = ExportTraceServiceRequest.FromString(body)
    return [
        Seen(
            span.name,
            Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex() or None,
        )
        for resource in received.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


class Handler(BaseHTTPRequestHandler):
    """Accepts spans."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["content-type"] == "application/x-protobuf", self.headers
        for span in read_spans(body):
            say({"span": span})
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(json.dumps({"address": f"http://127.0.0.1:{server.server_port}/v1/traces"}) + "\n")
    sys.stdout.flush()
    server.serve_forever()
