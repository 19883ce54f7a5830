"""The cost of observing calls: CPU time per call with different observers, and of `logging` and the SDK of
OpenTelemetry by themselves.

    python -m bench.observers [--rounds 40]

One process, batches of all variants in turn; the best and the median batch are printed. Queued facts are delivered
within their batch, so the figures include the threads of the observers. The last rows are the budget: what the access
log, the metrics and traces cost together, above what the libraries need for the same lines and spans. The libraries are
measured in a handler that uses them by itself, on a server without observers, and in loops that do nothing else: these
are faster, since all of their code stays in the caches of the processor.
"""

import argparse
import asyncio
import logging
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from msgspec import Raw
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind

from trunkline import OpenTelemetry, Server, Settings
from trunkline.facts import CallEnded, CallStep, Fact
from trunkline.observers.access_log import ACCESS_LOGGER, AccessLog
from trunkline.testing import RawPeer
from trunkline.transports.channel import MessageOrigin
from trunkline.wire.messages import Request

ROUNDS = 40
CALLS = 1000  # of one batch
BURST = 50  # calls of one turn of the loop
PARAMS = Raw(b'{"name":"add","arguments":{"a":5,"b":3}}')
NOTHING, TOTAL = "no observer", "access log, metrics and spans"
BY_HAND = "no observer; the handler makes the span and line"
LOGGING, SPANS = "`logging` alone, the same line", "the SDK of OpenTelemetry alone, the same span"
BUDGET = 15.0  # µs per call
AT_START = {
    "mcp.method.name": "tools/call",
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "add",
}
AT_END = {"network.transport": "inproc", "mcp.protocol.version": "2025-11-25"}
LINE = (
    "method=tools/call name=add outcome=ok ms=0.052 wait_ms=0.001 in=43 out=131 transport=memory revision=2025-11-25 "
    "connection=7"
)


class Ignored:
    """Observer that does nothing with its facts."""

    def __init__(self, *wants: type[Fact]) -> None:
        self.wants = wants or (Fact,)

    def on(self, fact: Fact) -> None:
        """Ignore a fact."""


async def calling(
    *observers: Any, settings: Settings | None = None, also: Callable[[], object] | None = None
) -> Callable[[], Awaitable[None]]:
    """Return a batch of calls of a tool, on a line in memory. The tool calls `also` first."""
    server = Server("bench", observers=observers, settings=settings)

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        if also is not None:
            also()
        return a + b

    peer, ids, origin, answered = RawPeer(server), count(100), MessageOrigin(), [0]
    connection = peer.open()
    await peer.initialize()

    def put(_: bytes) -> None:
        answered[0] += 1

    peer.put = put  # instead of keeping and reading each frame

    async def batch() -> None:
        answered[0] = 0
        for _ in range(CALLS // BURST):
            for _ in range(BURST):
                connection.received([Request(next(ids), "tools/call", PARAMS)], origin)
            await asyncio.sleep(0)
        while answered[0] < CALLS:
            await asyncio.sleep(0)
        await server.observers.drain(None)
        assert server.observers.dropped == server.observers.failures == 0

    return batch


def tracing(sampler: Sampler = ALWAYS_ON) -> TracerProvider:
    """Return a provider of the SDK whose spans go nowhere."""
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(NoExporter()))
    return provider


class NoExporter(SpanExporter):
    """Exporter that does nothing with its spans."""

    def export(self, spans: Any) -> SpanExportResult:
        """Ignore spans."""
        return SpanExportResult.SUCCESS


def telemetry(sampler: Sampler = ALWAYS_ON, **options: bool) -> OpenTelemetry:
    """Return an observer with providers of the SDK."""
    return OpenTelemetry(
        tracer_provider=tracing(sampler), meter_provider=MeterProvider([InMemoryMetricReader()]), **options
    )


def repeating(action: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    """Return a batch of as many actions as a batch has calls."""

    async def batch() -> None:
        for _ in range(CALLS):
            action()

    return batch


def log_line() -> None:
    """Log the line of a call, with `logging` alone."""
    logging.getLogger(ACCESS_LOGGER).info(LINE)


def span_maker() -> Callable[[], None]:
    """Return a function that makes the span of a call current and ends it, with the SDK alone."""
    tracer, ids = tracing().get_tracer("bench"), count()

    def make_span() -> None:
        with tracer.start_as_current_span("tools/call add", kind=SpanKind.SERVER, attributes={**AT_START}) as span:
            span.set_attributes({**AT_END, "jsonrpc.request.id": str(next(ids))})

    return make_span


async def measure(rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the CPU time per call of each variant in µs, the best first."""
    make_span = span_maker()
    variants = {
        NOTHING: await calling(),
        "an observer of CallEnded": await calling(Ignored(CallEnded)),
        "an observer of CallEnded and CallStep": await calling(Ignored(CallEnded, CallStep)),
        "metrics": await calling(settings=Settings(metrics=True)),
        "the access log, text": await calling(AccessLog()),
        "the access log, JSON": await calling(AccessLog(format="json")),
        "OpenTelemetry, metrics only": await calling(telemetry(traces=False)),
        "OpenTelemetry, no trace is sampled": await calling(telemetry(ALWAYS_OFF, metrics=False)),
        "OpenTelemetry, spans": await calling(telemetry(metrics=False)),
        "OpenTelemetry, spans and metrics": await calling(telemetry()),
        TOTAL: await calling(AccessLog(), telemetry(metrics=False), settings=Settings(metrics=True)),
        BY_HAND: await calling(also=lambda: (make_span(), log_line())),
        LOGGING: repeating(log_line),
        SPANS: repeating(span_maker()),
    }
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, batch in variants.items():
            start = time.process_time_ns()
            await batch()
            found[name].append((time.process_time_ns() - start) / CALLS / 1000)
    return {name: sorted(times) for name, times in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    log = logging.getLogger(ACCESS_LOGGER)
    with open(os.devnull, "w", encoding="utf-8") as sink:
        handler = logging.StreamHandler(sink)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        found = asyncio.run(measure(rounds))
        log.removeHandler(handler)
    print("\nCPU per call in µs, in process: with                    best   median")
    for name, times in found.items():
        print(f"  {name:<48}{times[0]:>8.2f}{statistics.median(times):>9.2f}")
    best = {name: times[0] for name, times in found.items()}
    median = {name: statistics.median(times) for name, times in found.items()}
    print(f"{TOTAL}; budget: {BUDGET:g} above the libraries")
    for name, base in {
        "above a handler that uses the libraries": (BY_HAND,),
        "above the libraries in loops of their own": (NOTHING, LOGGING, SPANS),
    }.items():
        above = [own[TOTAL] - sum(own[each] for each in base) for own in (best, median)]
        print(f"  {name:<48}{above[0]:>8.2f}{above[1]:>9.2f}")


if __name__ == "__main__":
    main()
