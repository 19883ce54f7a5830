"""CPU per request of a server on stdio, ours beside its peers': `make bench PYTHON=…`.

Only ratios inside one run mean something. So every target runs on the same CPython and on the one CPU that the driver
runs on. Each round starts all targets of a row afresh, and asks them short batches in turn, in an order that is drawn
anew each time. A batch aims at the same CPU time whatever a request costs, so that a quiet moment of the machine is as
likely to hold one of theirs as one of ours; the dearest ones take longer, since a window has to be filled twice. The
best batch of all rounds counts.
"""

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from driver import BenchError, Sample, ServerProcess
from environments import ROOT, CannotInstall, Environments
from report import Figures, judge, lines, write_json
from workloads import ROWS, TARGETS, Row, Target

BATCH_US = 25_000  # CPU time that a batch aims at: some 2,000 calls of ours, some 30 of `mcp`


def main() -> int:
    """Runs the table; the exit status is 1 when a gate fails or one of our own servers could not be measured."""
    options = _options()
    rows = [row for row in (_selected(row, options) for row in ROWS if options.rows in row.name) if row.targets]
    environments = Environments(options.python)
    commands, missing = _commands(environments, {name for row in rows for name in row.targets})
    _pin()
    print(f"CPU of the server process per request, CPython {environments.version}, best of {options.repeats} rounds")
    table, failed = [], False
    for row in rows:
        figures = _measure(row, commands, options)
        figures.missing |= {name: missing[name] for name in row.targets if name in missing}
        table.append((row, figures))
        print(*(line.rstrip() for line in lines(row, figures)), sep="\n", end="\n\n", flush=True)
        failed |= any(verdict.bar.gate and verdict.word == "FAIL" for verdict in judge(row, figures))
        failed |= any(name.startswith("trunkline") for name in figures.missing)
    write_json(ROOT / ".cache" / "bench" / "stdio.json", environments.version, table)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures what a request costs the server process, on stdio.")
    parser.add_argument("--python", default=sys.executable, help="the CPython that every target runs on")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--targets", help="only targets whose name contains one of these, separated by commas")
    parser.add_argument("--repeats", type=int, help="rounds for each row (5)")
    parser.add_argument("--quick", action="store_true", help="a rough look: fewer rounds and batches")
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.quick else 5)
    options.batches = 4 if options.quick else 10
    return options


def _selected(row: Row, options: argparse.Namespace) -> Row:
    """The row with only the targets that were asked for."""
    wanted = options.targets.split(",") if options.targets else [""]
    targets = tuple(name for name in row.targets if any(part in name for part in wanted))
    return replace(row, targets=targets)


def _commands(environments: Environments, names: set[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """How each target is started; and of those that cannot be, why."""
    commands, missing = {}, {}
    for name, target in TARGETS.items():
        if name in names:
            try:
                interpreter = environments.interpreter(target.environment)
            except CannotInstall as error:
                missing[name] = str(error)
            else:
                commands[name] = [str(interpreter), str(ROOT / "bench" / target.script), "stdio"]
    return commands, missing


def _pin() -> None:
    """Keeps driver and servers, which inherit it, on one CPU: a request that wakes another CPU costs thrice as much."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _measure(row: Row, commands: dict[str, list[str]], options: argparse.Namespace) -> Figures:
    """All rounds of one row. A target that answers wrongly is not started again, and keeps none of its samples."""
    figures = Figures()
    for _ in range(options.repeats):
        measurable = [name for name in row.targets if name in commands and name not in figures.missing]
        under_way = {name: _samples(row, TARGETS[name], commands[name], options.batches) for name in measurable}
        while under_way:
            for name in random.sample(list(under_way), len(under_way)):
                try:
                    figures.samples.setdefault(name, []).append(next(under_way[name]))
                except StopIteration:
                    del under_way[name]
                except BenchError as error:
                    del under_way[name], figures.samples[name]
                    figures.missing[name] = str(error)
    return figures


def _samples(row: Row, target: Target, command: Sequence[str], batches: int) -> Iterator[Sample]:
    """One process: spawned and warmed up when the first sample is asked for, then a batch of requests for each."""
    tools = row.tools if target.tools is None else target.tools
    with ServerProcess(command, os.environ | {"BENCH_TOOLS": str(tools)}) as server:
        spawned = server.handshake()
        if row.question is None:
            yield spawned
            return
        server.ask(row.question, row.warm_up, row.window)
        warm = server.ask(row.question, row.warm_up, row.window)
        count = max(int(BATCH_US / warm.cpu_us), 2 * row.window, 4)
        for _ in range(batches):
            yield server.ask(row.question, count, row.window)


if __name__ == "__main__":
    sys.exit(main())
