"""The cost of the numbers of one call of a tool: ours, and those of `prometheus_client`, in nanoseconds.

    python -m bench.metrics
    PROMETHEUS_MULTIPROC_DIR=$(mktemp -d) python -m bench.metrics  # the library's mode for several processes

Both count the same: two counters, three histograms and a gauge. Facts are made beforehand.
"""

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trunkline.facts import CallEnded, CallStarted, Observers
from trunkline.metrics import families as f
from trunkline.metrics.exposition import render
from trunkline.metrics.observer import MetricsObserver
from trunkline.metrics.samples import MetricsMemory

ROUNDS = 5
CALLS = 20_000  # of one round
SECONDS = 0.0012
LABELS = ("tools/call", "http", "ok")


def best(action: Callable[[], Any]) -> float:
    """Return the nanoseconds of one action, in the best of several rounds."""
    found: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            action()
        found.append((time.perf_counter_ns() - start) / CALLS)
    return min(found)


def ours() -> dict[str, Callable[[], Any]]:
    """Return the start and the end of a call, as observers receive them."""
    writer = MetricsMemory().writer(0)
    observer = MetricsObserver(writer, is_known_method=lambda _: True, is_known_tool=lambda _: True)
    observers = Observers([observer])
    started = CallStarted(connection=1, at=0.0, request=1, method="tools/call", target="add", transport="http")
    ended = CallEnded(
        connection=1,
        at=0.0,
        request=1,
        method="tools/call",
        target="add",
        outcome="ok",
        code=None,
        seconds=SECONDS,
        transport="http",
        started=True,
    )
    return {
        "ours, the end of a call": lambda: observers.on(ended),
        "ours, its start": lambda: observers.on(started),
    }


def theirs() -> dict[str, Callable[[], Any]]:
    """Return the end of a call with `prometheus_client`."""
    registry, buckets = CollectorRegistry(), f.CALL_SECONDS.buckets
    calls = Counter("calls", "-", f.CALLS.labels, registry=registry)
    durations = Histogram("durations", "-", f.CALL_SECONDS.labels, registry=registry, buckets=buckets)
    waits = Histogram("waits", "-", f.CALL_WAIT_SECONDS.labels, registry=registry, buckets=buckets)
    tools = Counter("tools", "-", f.TOOL_CALLS.labels, registry=registry)
    tool_durations = Histogram("tool_durations", "-", f.TOOL_CALL_SECONDS.labels, registry=registry, buckets=buckets)
    running = Gauge("running", "-", f.CALLS_IN_PROGRESS.labels, registry=registry)

    def by_labels() -> None:
        calls.labels(*LABELS).inc()
        durations.labels(*LABELS).observe(SECONDS)
        waits.labels("http").observe(0.0)
        tools.labels("add", "ok").inc()
        tool_durations.labels("add").observe(SECONDS)
        running.labels("tools/call", "http").dec()

    count, duration, wait = calls.labels(*LABELS), durations.labels(*LABELS), waits.labels("http")
    tool, tool_duration = tools.labels("add", "ok"), tool_durations.labels("add")
    gauge = running.labels("tools/call", "http")

    def by_children() -> None:
        count.inc()
        duration.observe(SECONDS)
        wait.observe(0.0)
        tool.inc()
        tool_duration.observe(SECONDS)
        gauge.dec()

    return {
        "prometheus_client, the end of a call, children kept": by_children,
        "prometheus_client, the same with labels()": by_labels,
    }


def main() -> None:
    """Measure and print."""
    for name, action in {**ours(), **theirs()}.items():
        print(f"  {name:<56}{best(action):>8.0f} ns")
    memory = MetricsMemory(8)
    for slot in range(8):
        writer = memory.writer(slot)
        for number in range(100):
            writer.add(f.TOOL_CALLS, (f"tool {number}", "ok"))
            writer.observe(f.TOOL_CALL_SECONDS, (f"tool {number}",), SECONDS)
    start = time.perf_counter_ns()
    text = render(memory.read(), range(8))
    took = (time.perf_counter_ns() - start) / 1e6
    print(f"  a page of 8 workers with 100 tools: {len(text.splitlines())} lines in {took:.1f} ms")


if __name__ == "__main__":
    main()
