"""Metrics of a server: the memory that its workers share, the observer that counts, and the gauges of this process.

A worker answers for all: it reads the counters of every slot, and the gauges of every process that is alive. Gauges are
read from the server once in two seconds, for the other workers, and before each answer of this one.
"""

import asyncio
import hmac
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from trunkline.http import Request, Response
from trunkline.metrics import families as f
from trunkline.metrics.exposition import CONTENT_TYPE, render
from trunkline.metrics.observer import MetricsObserver
from trunkline.metrics.samples import MetricsMemory, Sample
from trunkline.server.introspection.loop_lag import LoopLag
from trunkline.server.introspection.process_state import resident_bytes

if TYPE_CHECKING:
    from trunkline.server.introspection.gauges import Reading

__all__ = ["PATH", "ServerMetrics"]

PATH: Final = "/metrics"
_INTERVAL: Final = 2.0  # seconds between two readings of the gauges
_BEARER: Final = "bearer "
_HEADERS: Final = {"content-type": CONTENT_TYPE, "cache-control": "no-store"}
_CHALLENGE: Final = {"www-authenticate": 'Bearer realm="metrics"'}


class ServerMetrics:
    """The metrics of a server, in one process or in several workers."""

    def __init__(
        self,
        *,
        is_known_method: Callable[[str], bool],
        is_known_tool: Callable[[str], bool],
        token: str | None = None,
    ) -> None:
        """The functions return whether a name is one of the server. Callers of the route have to know the `token`, if
        there is one."""
        self._memory = MetricsMemory()
        self._writer = self._memory.writer(0)
        self._token = token
        self._lag = LoopLag()
        self._read: Callable[[], Iterable[Reading]] = tuple
        self._read_totals: Callable[[], Iterable[Reading]] = tuple
        self._totals: dict[str, float] = {}  # as they were last read
        self._set: set[tuple[str, tuple[str, ...]]] = set()  # gauges that have a value
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.observer = MetricsObserver(self._writer, is_known_method=is_known_method, is_known_tool=is_known_tool)

    # --- workers -----------------------------------------------------------------------------------

    def share(self, workers: int) -> Callable[[str], None]:
        """Allocate memory for workers, and a slot for their supervisor. Called there, before it starts them. Return a
        function that counts the restart of a child of a kind."""
        self._memory = MetricsMemory(workers + 1)
        supervisor = self._memory.writer(workers)
        supervisor.add(f.RESTARTS, ("worker",), 0.0)
        return lambda kind: supervisor.add(f.RESTARTS, (kind,))

    def use_slot(self, number: int) -> None:
        """Write to the slot of a worker. Called in the worker, before it serves."""
        self._writer = self._memory.writer(number)
        self.observer.use(self._writer)

    # --- serving -----------------------------------------------------------------------------------

    def start(self, read: "Callable[[], Iterable[Reading]]", read_totals: "Callable[[], Iterable[Reading]]") -> None:
        """Read gauges and totals regularly, on the running loop. No effect if that is so already."""
        if self._timer is not None:
            return
        self._read, self._read_totals = read, read_totals
        self._started = time.monotonic()
        self.observer.take_over(self._started)
        self._lag.start()
        self._update()

    def stop(self) -> None:
        """Stop reading."""
        if self._timer is not None:
            self._collect()
            self._timer.cancel()
            self._timer = None
            self._lag.stop()
            self._read = self._read_totals = tuple

    async def respond(self, request: Request) -> Response:
        """Answer a request for the metrics."""
        if self._token is not None and not _has_token(request, self._token):
            return Response.text("the token of the metrics is required\n", status=401, headers=_CHALLENGE)
        return Response(self.text(), headers=_HEADERS)

    def text(self) -> str:
        """Return the metrics of all workers. Called on the loop of the server, if it serves."""
        if self._timer is not None:
            self._collect()
        return render(self._samples(), {slot for slot in range(self._memory.slots) if self._is_alive(slot)})

    def _samples(self) -> Iterator[Sample]:
        now = time.monotonic()
        for sample in self._memory.read():
            if sample.family is f.LOOP_LAG_SECONDS:  # a process that is stuck cannot say so
                late = now - self._memory.state(sample.slot).seen_at - _INTERVAL
                yield sample._replace(values=(max(sample.values[0], late),))
            else:
                yield sample

    def _is_alive(self, slot: int) -> bool:
        pid = self._memory.state(slot).pid
        if pid in {0, os.getpid()}:
            return pid != 0
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    # --- gauges ------------------------------------------------------------------------------------

    def _update(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._update)
        self._collect()

    def _collect(self) -> None:
        writer, now = self._writer, time.monotonic()
        writer.keep_alive(now)
        writer.set(f.UPTIME_SECONDS, (), now - self._started)
        writer.set(f.MEMORY_BYTES, (), resident_bytes())
        writer.set(f.LOOP_LAG_SECONDS, (), self._lag.worst)
        self._follow(f.CPU_SECONDS, time.process_time())
        for family, _, value in self._read_totals():
            self._follow(family, value)
        before, self._set = self._set, set()
        for family, labels, value in self._read():
            writer.set(family, labels, value)
            self._set.add((family.name, labels))
        for name, labels in before - self._set:  # such as the last connection of a transport
            writer.set(f.FAMILIES[name], labels, 0.0)

    def _follow(self, family: f.Family, value: float) -> None:
        """Add the growth of a total to its counter, which outlives this process."""
        self._writer.add(family, (), value - self._totals.get(family.name, 0.0))
        self._totals[family.name] = value


def _has_token(request: Request, token: str) -> bool:
    header = request.headers.get("authorization", "")
    given = header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""
    return hmac.compare_digest(given.encode(), token.encode())
