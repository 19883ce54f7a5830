"""Sends requests to a server of several processes on one port, whose connections are spread evenly."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

from bench.driver import BenchError, Question, Sample, cpu_ns
from bench.http_driver import START_S, HttpConnection, HttpServerProcess
from bench.valkey import spread

Figure = Literal["cpu", "elapsed", "busiest"]
"""The cost of a call: the CPU time of all processes, the elapsed time, or the CPU time of the busiest process, which is
the elapsed time if every process has a CPU of its own and none has to wait for another.
"""


class WorkersProcess(HttpServerProcess):
    """A supervisor with its workers. They may use every CPU: the driver leaves most of its own to them."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, workers: int, carried: bool, figure: Figure
    ) -> None:
        """`carried`: the owner of every session is another worker than the one of its connection."""
        super().__init__(command, env)
        self._workers = workers
        self._carried = carried
        self._figure = figure

    def __enter__(self) -> Self:
        super().__enter__()
        until = time.monotonic() + START_S
        while len(pids := list(_family(self.pid))) <= self._workers:
            if time.monotonic() > until:
                raise BenchError(f"there are {len(pids)} processes, and not a supervisor with {self._workers} workers")
            time.sleep(0.02)
        if self._figure == "elapsed":
            for pid in pids:
                spread(pid)
        return self

    def cpu_ns(self) -> int:
        """The elapsed time, or the CPU time of all processes."""
        return time.perf_counter_ns() if self._figure == "elapsed" else sum(map(cpu_ns, _family(self.pid)))

    def ask(self, question: Question, count: int, window: int) -> Sample:
        """Send so many requests. Consecutive connections lead to different workers: so a forwarded session is that
        of the neighbour.
        """
        while len(self._lines) < window:
            made = [self._opened(self._line()) for _ in range(self._workers)]
            if self._carried:
                exchange(made)
            self._lines += made
        if self._figure != "busiest":
            return super().ask(question, count, window)
        before = {pid: cpu_ns(pid) for pid in _family(self.pid)}
        asked = super().ask(question, count, window)
        spent = max(cpu_ns(pid) - cpu for pid, cpu in before.items())
        return Sample(spent / count / 1000, asked.answer_bytes)


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
