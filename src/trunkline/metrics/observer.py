"""Observer that counts facts as metrics.

It is called in the middle of calls: facts that wait in a queue would be lost with a worker that is killed, and dropped
under a flood, so that counts would be wrong when they matter most. What all calls of one kind have in common is looked
up once; a call then changes a few numbers.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

from trunkline.facts import (
    BreakerChanged,
    CallEnded,
    CallStarted,
    ChildChanged,
    Connected,
    ConnectionFailed,
    CrewStep,
    Dropped,
    Fact,
    HandlerFailed,
    HttpRefused,
    MessageUnreadable,
    RateExceeded,
    StoreCallEnded,
    StoreProbed,
    StreamClosed,
    StreamOpened,
    TaskEnded,
)
from trunkline.metrics import families as f
from trunkline.metrics.samples import SlotWriter

__all__ = ["OTHER", "UNKNOWN", "MetricsObserver"]

UNKNOWN: Final = "unknown"
"""Label of a name that is not registered: clients may send any number of them."""

OTHER: Final = "other"
"""Label of the names above the limit of a label."""

_MAX_NAMES: Final = 200  # different values of one label that the program chooses, such as names of tools
_TOOL_CALL: Final = "tools/call"
_RESTARTING: Final = "backoff"  # state of a child that has failed and is started again


class MetricsObserver:
    """Counts facts in a slot of the metrics memory."""

    immediate = True

    def __init__(
        self, writer: SlotWriter, *, is_known_method: Callable[[str], bool], is_known_tool: Callable[[str], bool]
    ) -> None:
        """The functions return whether a name that a client has sent is one of this server."""
        self._is_known_method = is_known_method
        self._is_known_tool = is_known_tool
        self._lock = threading.Lock()  # for facts about other things than calls, which any thread may report
        self._handlers: Mapping[type[Fact], Callable[[Any], None]] = {
            CallEnded: self._on_call_ended,
            CallStarted: self._on_call_started,
        }
        self._counters: Mapping[type[Fact], Callable[[Any], None]] = {
            Connected: lambda fact: self._count(f.CONNECTIONS_OPENED, fact.transport),
            ConnectionFailed: lambda _: self._count(f.CONNECTION_FAILURES),
            HandlerFailed: lambda _: self._count(f.HANDLER_FAILURES),
            HttpRefused: lambda fact: self._count(f.HTTP_REFUSED, str(fact.status), fact.kind),
            RateExceeded: lambda fact: self._count(f.RATE_EXCEEDED, fact.scope),
            MessageUnreadable: lambda _: self._count(f.UNREADABLE_MESSAGES),
            Dropped: lambda fact: self._count(f.DROPPED, fact.kind),
            TaskEnded: lambda fact: self._count(f.TASKS_ENDED, fact.state),
            BreakerChanged: lambda fact: self._count(f.BREAKER_CHANGES, fact.name, fact.after),
            CrewStep: lambda fact: self._count(f.CLUSTER_CHANGES, fact.step),
            ChildChanged: self._on_child_changed,
            StreamOpened: self._on_stream_opened,
            StreamClosed: lambda _: self._writer.add(f.STREAMS, (), -1.0),
            StoreProbed: lambda fact: self._writer.set(f.STORE_UP, (), 0.0 if fact.error else 1.0),
            StoreCallEnded: lambda fact: self._writer.observe(
                f.STORE_CALL_SECONDS, (fact.operation, fact.outcome), fact.seconds
            ),
        }
        self.wants = (*self._handlers, *self._counters)
        self.use(writer)

    def use(self, writer: SlotWriter) -> None:
        """Count in another slot from now on."""
        self._writer = writer
        self._cells = writer.cells
        self._calls: dict[tuple[str, str, str], tuple[int, int, int, int]] = {}
        self._started: dict[tuple[str, str], int] = {}
        self._tools: dict[tuple[str, str], tuple[int, int]] = {}
        self._names: dict[tuple[str, int], set[str]] = {}

    def take_over(self, now: float) -> None:
        """Continue the slot of an earlier worker, if there was one: the calls that it left have an unknown outcome."""
        left = self._writer.series(f.CALLS_IN_PROGRESS)
        if self._writer.take_over(now):
            for (method, transport), count in left:
                if count > 0:
                    self._writer.add(f.CALLS, (method, transport, "lost"), count)
        for family in f.FAMILIES.values():
            if family.kind == "counter" and not family.labels:
                self._writer.find(family)  # starts at 0: Prometheus misses the first increase of a new series

    def on(self, fact: Fact) -> None:
        """Count a fact."""
        kind = type(fact)
        handle = self._handlers.get(kind)
        if handle is not None:
            handle(fact)
            return
        with self._lock:
            self._counters[kind](fact)

    # --- calls -------------------------------------------------------------------------------------

    def _on_call_started(self, fact: CallStarted) -> None:
        key = fact.method, fact.transport
        at = self._started.get(key)
        if at is None:
            at = self._started[key] = self._writer.find(f.CALLS_IN_PROGRESS, (self._method(key[0]), key[1]))
        self._cells[at] += 1.0

    def _on_call_ended(self, fact: CallEnded) -> None:
        key = fact.method, fact.transport, fact.outcome
        found = self._calls.get(key)
        if found is None:
            found = self._find_call(*key)
        running, count, durations, waits = found
        cells, seconds = self._cells, fact.seconds
        if fact.started:
            cells[running] -= 1.0
            cells[waits + bisect_left(_BOUNDS, fact.wait_seconds)] += 1.0
            cells[waits + _SUM] += fact.wait_seconds
        bucket = bisect_left(_BOUNDS, seconds)
        cells[count] += 1.0
        cells[durations + bucket] += 1.0
        cells[durations + _SUM] += seconds
        if fact.method == _TOOL_CALL and fact.target is not None:
            count, durations = self._tools.get((fact.target, fact.outcome)) or self._find_tool(
                fact.target, fact.outcome
            )
            cells[count] += 1.0
            cells[durations + bucket] += 1.0
            cells[durations + _SUM] += seconds

    def _find_call(self, method: str, transport: str, outcome: str) -> tuple[int, int, int, int]:
        shown, find = self._method(method), self._writer.find
        labels = (shown, transport, outcome)
        found = (
            find(f.CALLS_IN_PROGRESS, (shown, transport)),
            find(f.CALLS, labels),
            find(f.CALL_SECONDS, labels),
            find(f.CALL_WAIT_SECONDS, (transport,)),
        )
        if shown == method:  # a client may send any number of unknown ones
            self._calls[method, transport, outcome] = found
        return found

    def _find_tool(self, tool: str, outcome: str) -> tuple[int, int]:
        shown = self._limit(f.TOOL_CALLS.name, 0, tool) if self._is_known_tool(tool) else UNKNOWN
        found = self._writer.find(f.TOOL_CALLS, (shown, outcome)), self._writer.find(f.TOOL_CALL_SECONDS, (shown,))
        if shown == tool:
            self._tools[tool, outcome] = found
        return found

    def _method(self, method: str) -> str:
        return method if self._is_known_method(method) else UNKNOWN

    # --- other facts -------------------------------------------------------------------------------

    def _count(self, family: f.Family, *labels: str) -> None:
        limited = tuple([self._limit(family.name, place, value) for place, value in enumerate(labels)])
        self._writer.add(family, limited)

    def _limit(self, family: str, place: int, value: str) -> str:
        """Return a label's value, or `other` if the label has too many values already."""
        names = self._names.setdefault((family, place), set())
        if value not in names:
            if len(names) >= _MAX_NAMES:
                return OTHER
            names.add(value)
        return value

    def _on_child_changed(self, fact: ChildChanged) -> None:
        if fact.state == _RESTARTING:
            self._count(f.RESTARTS, fact.kind)

    def _on_stream_opened(self, _: StreamOpened) -> None:
        self._writer.add(f.STREAMS)
        self._writer.add(f.STREAMS_OPENED)


_BOUNDS: Final = f.CALL_SECONDS.buckets  # of all histograms of calls
_SUM: Final = len(_BOUNDS) + 1  # the place of the sum in a histogram
