"""CPU per request of a server, ours beside its peers': `make bench PYTHON=…`.

Only ratios inside one run mean something. So every target runs on the same CPython and on the one CPU that the
driver runs on. Each round starts all targets of a row afresh, and sends them short batches in turn, in a new random
order each time. A batch aims at the same CPU time whatever a request costs, so that a quiet moment of the machine is
as likely to hold one of theirs as one of ours; the most expensive ones take longer, since a window has to be filled
twice. The best batch of all rounds counts.

`make bench BASE=<commit>` measures this tree beside one of its commits instead, and fails if the cost of a row has
grown by more than a tenth. The two alternate, so that disturbances hit neighbouring batches alike: the median of the
ratios of neighbours counts. Nothing is measured again, whatever the outcome.

The figures are written as JSON and drawn as SVG beside it, or where `--plot` says; `--markdown` prints them as a table,
or puts the table into a page.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.driver import BenchError
from bench.environments import NPM_FOLDER, ROOT, CannotInstall, Environments, commit_of_tree
from bench.plot import svg
from bench.report import Figures, Origin, document_of, lines, verdicts_of
from bench.sampling import samples
from bench.tables import markdown, replaced
from bench.workloads import BASE, BASES, ROWS, TARGETS, Row, against_base, base_of

NOT_COMPARED = ("client", "sessions", "stores", "workers", "throughput", "busiest")
"""With a base: a client has no script of its own there, memory has one sample, stores and workers are compared with
each other."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table. The exit status is 1 when a gate fails, when a figure for a gate is missing, or when one of our
    own servers could not be measured.
    """
    options = _options(arguments)
    wanted = [row for row in ROWS if options.rows in row.name and not (options.base and not _has_base(row))]
    rows = [row for row in (_selected(row, options) for row in wanted) if row.targets]
    environments = Environments(options.python)
    commands, missing = commands_of(environments, {name for row in rows for name in row.targets}, options.base)
    pin()
    print(
        f"CPU of the server process per request, CPython {environments.version}, best of {options.repeats} rounds",
        flush=True,
    )
    origin = Origin(environments.version, commit_of_tree(), f"{options.repeats} rounds of {options.batches} batches")
    table, rates, failed = [], [], False
    for row in rows:
        figures = measure(row, commands, options)
        figures.missing |= {name: missing[name] for name in row.targets if name in missing}
        table.append((row, figures))
        print(*(line.rstrip() for line in lines(row, figures)), sep="\n", end="\n\n", flush=True)
        failed |= fails(row, figures)
    if options.base:
        failed |= not any(
            base in figures.samples for _, figures in table for base in BASES.values()
        )  # nothing was compared
    elif "trunkline" in commands and not options.rows:
        rates, missed = in_process(commands["trunkline"][0])
        failed |= missed
    write(document_of(origin, table, rates), options)
    return int(failed)


def write(document: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Write the figures of a run in all requested forms."""
    for path in (options.json, options.plot):
        path.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    options.plot.write_text(svg(document), "utf-8")
    if options.markdown == "-":
        print(markdown(document), end="")
    elif options.markdown:
        page = Path(options.markdown)
        page.write_text(replaced(page.read_text("utf-8"), markdown(document)), "utf-8")


def fails(row: Row, figures: Figures) -> bool:
    """Return whether a row fails the run, by its figures or by a lack of them. A row that the base lacks cannot
    regress.
    """
    if any(name.startswith("trunkline") for name in figures.missing):
        return True
    return any(
        verdict.bar.gate
        and verdict.word != "PASS"
        and not (verdict.bar.peer in BASES.values() and verdict.ratio is None)
        for verdict in verdicts_of(row, figures)
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures what a request costs the server process.")
    parser.add_argument("--python", default=sys.executable, help="the CPython that every target runs on")
    parser.add_argument("--base", metavar="COMMIT", help="measure against this commit instead of against peers")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--targets", help="only targets whose name contains one of these, separated by commas")
    parser.add_argument("--repeats", type=int, help="rounds for each row (5)")
    parser.add_argument("--quick", action="store_true", help="a rough look: fewer rounds and batches")
    parser.add_argument("--json", type=Path, help="where the figures go, with every sample")
    parser.add_argument("--plot", type=Path, help="where the drawing goes, as SVG (beside the figures)")
    parser.add_argument(
        "--markdown", nargs="?", const="-", metavar="PAGE", help="print the figures as a table, or put it into a page"
    )
    options = parser.parse_args(arguments)
    options.repeats = options.repeats or (2 if options.quick else 5)
    options.batches = 4 if options.quick else 10
    options.json = options.json or ROOT / ".cache" / "bench" / ("base.json" if options.base else "figures.json")
    options.plot = options.plot or options.json.with_suffix(".svg")
    return options


def _has_base(row: Row) -> bool:
    """Whether a row can be measured on an earlier commit, which has the benchmark's server only."""
    return row.how not in NOT_COMPARED and base_of(row) is not None


def _selected(row: Row, options: argparse.Namespace) -> Row:
    """The row with only the requested targets, and the bars between those."""
    if options.base:
        return against_base(row)
    wanted = options.targets.split(",") if options.targets else [""]
    targets = tuple(name for name in row.targets if any(part in name for part in wanted))
    bars = tuple(bar for bar in row.bars if bar.ours in targets and bar.peer in {*targets, None})
    return replace(row, targets=targets, bars=bars)


def commands_of(
    environments: Environments, names: set[str], base: str | None = None
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The command of each target; and why others have none."""
    commands, missing = {}, {}
    for name in sorted(names):
        try:
            if name in BASES.values():
                interpreter, tree = environments.base(base or "HEAD")
                script = tree / "bench" / "server.py" if name == BASE else ROOT / "bench" / "asgi_server.py"
            else:
                interpreter = environments.interpreter(TARGETS[name].environment)
                script = ROOT / "bench" / TARGETS[name].script
        except CannotInstall as error:
            missing[name] = str(error)
        else:
            commands[name] = _command(name, str(interpreter), str(script))
    return commands, missing


def _command(name: str, interpreter: str, script: str) -> list[str]:
    line = TARGETS[name].line if name in TARGETS else None
    folder = [str(NPM_FOLDER)] if name in TARGETS and TARGETS[name].environment == "node" else []
    if line is None:
        return [interpreter, script, *folder]  # and the transport, which is its row's
    return [interpreter, script, *folder, line, sys.executable, str(ROOT / "bench" / "clients" / "raw_server.py")]


def in_process(interpreter: str) -> tuple[list[dict[str, Any]], bool]:
    """Print the figures within one process; return the rates, and whether a bar is missed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rates.json"
        programs = [  # as modules: scripts would see ours as packages
            ["bench.inprocess", str(path)],
            ["bench.stores"],
            ["bench.observers"],
            ["bench.unobserved", "--rounds", "5"],
            ["bench.overload"],
        ]
        missed = [subprocess.run([interpreter, "-m", *one], cwd=ROOT, check=False).returncode != 0 for one in programs]
        return json.loads(path.read_text("utf-8")) if path.exists() else [], any(missed)


def pin() -> None:
    """Pin driver and servers, which inherit it, to one CPU: a request that wakes another CPU costs thrice as much."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure(row: Row, commands: Mapping[str, Sequence[str]], options: argparse.Namespace) -> Figures:
    """All rounds of one row. A target with a wrong response is not started again, and loses all of its samples."""
    figures = Figures()
    many = row.question is None and any(bar.paired for bar in row.bars)  # a spawn is one sample, and pairs need some
    for _ in range(options.repeats * (options.batches if many else 1)):
        measurable = [name for name in row.targets if name in commands and name not in figures.missing]
        under_way = {name: samples(row, name, commands[name], options.batches) for name in measurable}
        while under_way:
            for name in random.sample(list(under_way), len(under_way)):
                try:
                    sample = next(under_way[name])
                except StopIteration:
                    del under_way[name]
                except (BenchError, OSError, LookupError, ValueError) as error:  # theirs, or of an answer like no other
                    del under_way[name]
                    figures.samples.pop(name, None)
                    figures.missing[name] = str(error) or type(error).__name__
                else:
                    figures.samples.setdefault(name, []).append(sample)
    return figures


if __name__ == "__main__":
    sys.exit(main())
