"""Runs one process under test: spawned and warmed up for its first sample, then measured for each."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from bench.authentication import TOKEN
from bench.driver import ClientProcess, Sample, ServerProcess
from bench.http_driver import HttpServerProcess
from bench.valkey import store_option
from bench.workers import Figure, WorkersProcess
from bench.workloads import TARGETS, Row

BATCH_US = 25_000  # CPU time that a batch aims at: some 2,000 calls of ours, some 30 of `mcp`
WORKERS_BATCH_US = 400_000  # many calls for each worker: at the end of a batch not all of them have one
CLIENT_BATCH_US = 200_000  # long enough to include node's garbage collection, which does not run within every few calls

Command = Sequence[str]


def samples(row: Row, name: str, command: Command, batches: int) -> Iterator[Sample]:
    """The samples of one process of a target."""
    return _HOW[row.how](row, name, command, batches)


def _environment(row: Row, name: str) -> dict[str, str]:
    own = TARGETS[name].tools if name in TARGETS else None
    verified = {"BENCH_VERIFIED": "1"} if name in TARGETS and TARGETS[name].verified else {}
    guard = TARGETS[name].guard if name in TARGETS else None
    guarded = {} if guard is None else {"BENCH_GUARD": guard}
    return os.environ | {"BENCH_TOOLS": str(row.tools if own is None else own)} | verified | guarded


def _over_stdio(row: Row, name: str, command: Command, batches: int) -> Iterator[Sample]:
    with ServerProcess(command, _environment(row, name)) as server:
        spawned = server.handshake()
        if row.question is None:
            yield spawned
            return
        yield from _asked(row, server, batches)


def _over_http(row: Row, name: str, command: Command, batches: int) -> Iterator[Sample]:
    stateless = TARGETS[name].stateless if name in TARGETS else None
    token = TOKEN if name in TARGETS and TARGETS[name].verified else None
    exclusive = name in TARGETS and TARGETS[name].exclusive
    env = _environment(row, name)
    with (
        _kept(name, command) as kept,
        HttpServerProcess(command, env | kept, stateless, token, exclusive=exclusive) as server,
    ):
        yield from _asked(row, server, batches)


@contextmanager
def _kept(name: str, command: Command) -> Iterator[dict[str, str]]:
    place = TARGETS[name].keeps if name in TARGETS else None
    with tempfile.TemporaryDirectory() as folder, store_option(place, command[0], folder) as told:
        yield told


def _with_workers(row: Row, name: str, command: Command, batches: int) -> Iterator[Sample]:
    """The CPU time of all processes of a server, or the elapsed time, for each call."""
    target = TARGETS[name]
    with _kept(name, command) as kept:
        env = _environment(row, name) | kept | {"BENCH_WORKERS": str(target.workers)}
        figure = _FIGURES[row.how]
        batch_us = BATCH_US if figure == "cpu" else WORKERS_BATCH_US
        with WorkersProcess(command, env, workers=target.workers, carried=target.carried, figure=figure) as server:
            yield from _asked(row, server, batches, batch_us)


def _asked(
    row: Row, server: ServerProcess | HttpServerProcess, batches: int, batch_us: float | None = None
) -> Iterator[Sample]:
    question = row.asked
    server.ask(question, row.warm_up, row.window)
    warm = server.ask(question, row.warm_up, row.window)
    count = max(int((batch_us or BATCH_US) / warm.cost), 2 * row.window, 4)
    for _ in range(batches):
        yield server.ask(question, count, row.window)


def _as_client(row: Row, _: str, command: Command, batches: int) -> Iterator[Sample]:
    with ClientProcess(command) as client:
        client.ask(row.warm_up, row.window)
        count = max(int(CLIENT_BATCH_US / client.ask(row.window * 8, row.window).cost), 8 * row.window)
        for _ in range(max(1, batches // 2)):
            yield client.ask(count // row.window * row.window, row.window)


def _telling(row: Row, name: str, command: Command, batches: int) -> Iterator[Sample]:
    """`window` subscribers, notified at once; the cost of one of them."""
    with HttpServerProcess(command, _environment(row, name)) as server:
        server.subscribe(row.window)
        server.tell(row.asked, row.warm_up)
        for _ in range(batches):
            yield server.tell(row.asked, 4)


def _holding(row: Row, name: str, command: Command, _: int) -> Iterator[Sample]:
    """`window` idle sessions; the growth of the process's memory in KB for each."""
    with HttpServerProcess(command, _environment(row, name)) as server:
        server.open_sessions(row.warm_up)
        before = server.memory()
        server.open_sessions(row.window)
        yield Sample((server.memory() - before) / row.window / 1024, 0)


_FIGURES: Final[Mapping[str, Figure]] = {"workers": "cpu", "throughput": "elapsed", "busiest": "busiest"}
_HOW: Final[Mapping[str, Callable[[Row, str, Command, int], Iterator[Sample]]]] = {
    "stdio": _over_stdio,
    "client": _as_client,
    "http": _over_http,
    "stores": _over_http,
    "subscribers": _telling,
    "sessions": _holding,
    "workers": _with_workers,
    "throughput": _with_workers,
    "busiest": _with_workers,
}
