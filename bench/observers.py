"""The cost of observing calls: CPU time per call with different observers, and of `logging` by itself.

One process, batches of all variants in turn; the best and the median batch are printed. Queued facts are delivered
within their batch, so the figures include the threads of the observers.
"""

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


async def calling(*observers: Any, settings: Settings | None = None) -> Callable[[], Awaitable[None]]:
    """Return a batch of calls of a tool, on a line in memory."""
    server = Server("bench", observers=observers, settings=settings)

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
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


class NoExporter(SpanExporter):
    """Exporter that does nothing with its spans."""

    def export(self, spans: Any) -> SpanExportResult:
        """Ignore spans."""
        return SpanExportResult.SUCCESS


def telemetry(sampler: Sampler = ALWAYS_ON, **options: bool) -> OpenTelemetry:
    """Return an observer with providers of the SDK."""
    traces, metrics = TracerProvider(sampler=sampler), MeterProvider([InMemoryMetricReader()])
    traces.add_span_processor(BatchSpanProcessor(NoExporter()))
    return OpenTelemetry(tracer_provider=traces, meter_provider=metrics, **options)


async def log_lines() -> None:
    """Log as many lines as a batch has calls, with `logging` alone."""
    log = logging.getLogger(ACCESS_LOGGER)
    for _ in range(CALLS):
        log.info(LINE)


async def measure(rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the CPU time per call of each variant in µs, the best first."""
    variants = {
        "no observer": await calling(),
        "an observer of CallEnded": await calling(Ignored(CallEnded)),
        "an observer of CallEnded and CallStep": await calling(Ignored(CallEnded, CallStep)),
        "metrics": await calling(settings=Settings(metrics=True)),
        "the access log, text": await calling(AccessLog()),
        "the access log, JSON": await calling(AccessLog(format="json")),
        "OpenTelemetry, metrics only": await calling(telemetry(traces=False)),
        "OpenTelemetry, no trace is sampled": await calling(telemetry(ALWAYS_OFF, metrics=False)),
        "OpenTelemetry, spans": await calling(telemetry(metrics=False)),
        "OpenTelemetry, spans and metrics": await calling(telemetry()),
        "`logging` alone, the same line": log_lines,
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
    log = logging.getLogger(ACCESS_LOGGER)
    with open(os.devnull, "w", encoding="utf-8") as sink:
        handler = logging.StreamHandler(sink)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        found = asyncio.run(measure())
        log.removeHandler(handler)
    print("\nCPU per call in µs, in process: with                best   median")
    for name, times in found.items():
        print(f"  {name:<44}{times[0]:>8.2f}{statistics.median(times):>9.2f}")


if __name__ == "__main__":
    main()
