"""Sends requests to a server of several processes on one port, whose connections are dispatched round-robin."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

from bench.driver import BenchError, Question, Sample, cpu_ns
from bench.http_driver import START_S, HttpConnection, HttpServerProcess
from bench.valkey import spread


class WorkersProcess(HttpServerProcess):
    """A supervisor with its workers. They may use every CPU: the driver leaves most of its own to them."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, workers: int, carried: bool, timed: bool
    ) -> None:
        """`carried`: the owner of every session is another worker than the one of its connection. `timed`: elapsed
        time counts, not the CPU time of all processes.
        """
        super().__init__(command, env)
        self._workers = workers
        self._carried = carried
        self._timed = timed

    def __enter__(self) -> Self:
        super().__enter__()
        until = time.monotonic() + START_S
        while len(pids := list(_family(self.pid))) <= self._workers:
            if time.monotonic() > until:
                raise BenchError(f"there are {len(pids)} processes, and not a supervisor with {self._workers} workers")
            time.sleep(0.02)
        if self._timed:
            for pid in pids:
                spread(pid)
        return self

    def cpu_ns(self) -> int:
        """The elapsed time, or the CPU time of all processes."""
        return time.perf_counter_ns() if self._timed else sum(map(cpu_ns, _family(self.pid)))

    def ask(self, question: Question, count: int, window: int) -> Sample:
        """Send so many requests. Consecutive connections lead to different workers: so a forwarded session is that
        of the neighbour.
        """
        while len(self._lines) < window:
            made = [self._opened(self._line()) for _ in range(self._workers)]
            if self._carried:
                exchange(made)
            self._lines += made
        return super().ask(question, count, window)


def exchange(lines: Sequence[HttpConnection]) -> None:
    """Assign the session of each connection to the next one."""
    first = lines[0].headers
    for line, after in pairwise(lines):
        line.headers = after.headers
    lines[-1].headers = first


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    if sys.platform != "linux":
        raise BenchError("who is whose child is known on Linux only")
    yield pid
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text("ascii").split():
            yield from _family(int(child))
