"""Figures as text that is as readable in a log as on a terminal, and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench.driver import Sample
from bench.workloads import Bar, Row


@dataclass
class Figures:
    """The figures of one row: the samples of each target, and why others have none."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def best(self, target: str, per: str = "request") -> float:
        """The cheapest sample: the cost without disturbance."""
        return min(s.cost / (s.answer_bytes if per == "byte" else 1) for s in self.samples[target])

    def median(self, target: str, per: str = "request") -> float:
        """The middle sample."""
        return median(s.cost / (s.answer_bytes if per == "byte" else 1) for s in self.samples[target])

    def in_order(self, row: Row) -> list[tuple[str, list[Sample]]]:
        """The targets and their samples, in the order of the row's targets."""
        return sorted(self.samples.items(), key=lambda item: row.targets.index(item[0]))

    def pairs(self, ours: str, theirs: str) -> Iterator[tuple[float, float]]:
        """The consecutive samples of two targets."""
        return ((a.cost, b.cost) for a, b in zip(self.samples[ours], self.samples[theirs], strict=False))


@dataclass(frozen=True)
class Verdict:
    """Whether a row's figures meet one of its bars."""

    bar: Bar
    ratio: float | None  # or the figure itself, where there is no peer; None: a figure is missing

    @property
    def word(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "PASS" if self.bar.cleared(self.ratio) else "FAIL"


def verdicts_of(row: Row, figures: Figures) -> list[Verdict]:
    """One verdict per bar of the row."""
    return [Verdict(bar, _ratio(bar, figures)) for bar in row.bars]


def _ratio(bar: Bar, figures: Figures) -> float | None:
    if bar.ours not in figures.samples or (bar.peer is not None and bar.peer not in figures.samples):
        return None
    if bar.peer is None:
        return figures.best(bar.ours)
    if bar.paired:
        return median(bar.ratio(ours, theirs) for ours, theirs in figures.pairs(bar.ours, bar.peer))
    figure = figures.median if bar.by == "median" else figures.best
    return bar.ratio(figure(bar.ours, bar.per), figure(bar.peer, bar.per))


def lines(row: Row, figures: Figures) -> Iterator[str]:
    """One row: a line per target, then a line per bar."""
    by_size = any(bar.per == "byte" for bar in row.bars)
    headings = f"{f'best {row.unit}':>12}{f'median {row.unit}':>12}{'x ours':>9}{'bytes':>11}"
    ours = "trunkline" if "trunkline" in row.targets else row.targets[0]
    yield f"{row.name:<44}{headings}{'ns/byte' if by_size else '':>9}"
    for target, samples in figures.in_order(row):
        best = figures.best(target)
        times = f"{best / figures.best(ours):.2f}" if ours in figures.samples else ""
        middle = figures.median(target)
        per_byte = f"{figures.best(target, 'byte') * 1000:.2f}" if by_size else ""
        size = samples[0].answer_bytes
        yield f"  {target:<42}{best:>12,.1f}{middle:>12,.1f}{times:>9}{size:>11,.0f}{per_byte:>9}"
    for target, reason in figures.missing.items():
        yield f"  {target:<42}{'not measured':>12}  {_last_line(reason)}"
    for verdict in verdicts_of(row, figures):
        found = "" if verdict.ratio is None else f": {verdict.ratio:.2f}"
        yield f"  {verdict.word:<13}{'gate' if verdict.bar.gate else '':<6}{verdict.bar}{found}"


@dataclass(frozen=True)
class Origin:
    """Where the figures of a run come from."""

    python: str
    commit: str
    effort: str  # rounds and batches


def document_of(
    origin: Origin, table: Sequence[tuple[Row, Figures]], in_process: Sequence[Mapping[str, object]] = ()
) -> dict[str, Any]:
    """The whole run, every sample included, as it is written to the JSON file."""
    rows = {row.name: _as_json(row, figures) for row, figures in table}
    return {**asdict(origin), "rows": rows, "in_process": list(in_process)}


def _as_json(row: Row, figures: Figures) -> Mapping[str, object]:
    return {
        "unit": row.unit,
        "targets": {
            target: {
                "best": figures.best(target),
                "median": figures.median(target),
                "samples": [sample.cost for sample in samples],
                "answer_bytes": samples[0].answer_bytes,
            }
            for target, samples in figures.in_order(row)
        },
        "missing": figures.missing,
        "bars": [
            {"bar": str(verdict.bar), "gate": verdict.bar.gate, "ratio": verdict.ratio, "verdict": verdict.word}
            for verdict in verdicts_of(row, figures)
        ],
    }


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:120]
