"""The report of a load test: one HTML file without scripts and without references to other files."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from trunkline.cli.bench.histogram import Bucket
from trunkline.cli.bench.measurement import Measurement
from trunkline.cli.bench.summary import cpu_in_words, find_remarks, format_seconds

__all__ = ["render_report"]

_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 34
_COLUMNS: Final = 60  # bars of the histogram
_STYLE: Final = """\
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #59636e; --grid: #d1d9e0; --bar: #0b6bcb; --bad: #c93c37; }
@media (prefers-color-scheme: dark) {
:root { --ink: #e6edf3; --quiet: #9198a1; --grid: #30363d; --bar: #58a6ff; --bad: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 800px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; overflow-wrap: anywhere; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 2px 1.5em 2px 0; overflow-wrap: anywhere; }
th { font-weight: 600; vertical-align: top; } .quiet { color: var(--quiet); }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; } text { fill: var(--quiet); }
.grid { stroke: var(--grid); } .bar { fill: var(--bar); } .mark { stroke: var(--bad); stroke-dasharray: 4 3; }
.line { fill: none; stroke: var(--bar); stroke-width: 2; } .errors { fill: none; stroke: var(--bad); stroke-width: 2; }
"""
# No script, no frame, nothing from elsewhere, even if a text of the server were not escaped.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def render_report(measurement: Measurement, *, target: str, request: str, server: str, date: str) -> str:
    """Return the report. All texts are escaped here."""
    latencies = measurement.latencies
    figures = {
        "Target": target,
        "Server": server,
        "Request": request,
        "Load": measurement.plan.describe(),
        "Measured": f"{measurement.seconds:.4g} s after {measurement.plan.warm_up:g} s of warm-up, {date}",
        "Requests": str(measurement.requests),
        "Throughput": f"{measurement.throughput:.1f} responses per second",
        **{f"Latency p{percent}": format_seconds(latencies.percentile(percent)) for percent in (50, 90, 99)},
        "Latency max": format_seconds(latencies.max),
        "Server CPU": cpu_in_words(measurement),
        "Errors": str(measurement.failed),
    }
    errors = [(str(error.count), kind, error.example) for kind, error in measurement.errors.items()]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>Load test of {escape(target)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Load test of {escape(target)}</h1>",
        *(f"<p><strong>{escape(remark)}</strong></p>" for remark in find_remarks(measurement)),
        _table(figures.items()),
        "<h2>Latency</h2>",
        _plot_latencies([*latencies.buckets()], measurement),
        '<p class="quiet">From the intended start of a request to its response or timeout, on a logarithmic scale.</p>',
        "<h2>Throughput</h2>",
        _plot_throughput(measurement),
        *(["<h2>Errors</h2>", _table(errors)] if errors else []),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = [
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in more)}</tr>"
        for first, *more in rows
    ]
    return f"<table>{''.join(lines)}</table>"


def _svg(parts: Iterable[str], label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _y(value: float, most: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / most


def _y_axis(most: float) -> list[str]:
    parts: list[str] = []
    for share in (0.0, 0.5, 1.0):
        y = _y(share, 1.0)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{most * share:.4g}", "end"))
    return parts


def _plot_latencies(buckets: Sequence[Bucket], measurement: Measurement) -> str:
    if not buckets:
        return '<p class="quiet">No responses.</p>'
    low, high = math.log(buckets[0].low), math.log(buckets[-1].high)
    width = (_WIDTH - _LEFT - _RIGHT) / _COLUMNS
    counts = [0] * _COLUMNS

    def column(seconds: float) -> float:
        return (math.log(seconds) - low) / (high - low) * _COLUMNS

    for bucket in buckets:
        middle = math.sqrt(bucket.low * bucket.high)
        counts[min(int(column(middle)), _COLUMNS - 1)] += bucket.count
    most = max(counts)
    parts = _y_axis(most)
    for at, count in enumerate(counts):
        if count:
            y = _y(count, most)
            bound = format_seconds(math.exp(low + (high - low) * (at + 1) / _COLUMNS))
            parts.append(
                f'<rect class="bar" x="{_LEFT + at * width:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
                f'height="{_HEIGHT - _BOTTOM - y:.1f}"><title>{count} up to {escape(bound)}</title></rect>'
            )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        label = format_seconds(math.exp(low + (high - low) * share))
        parts.append(_text(_LEFT + share * width * _COLUMNS, _HEIGHT - 14, label, "middle" if share < 1 else "end"))
    for percent in (50, 90, 99):
        x = _LEFT + column(measurement.latencies.percentile(percent)) * width
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text(x, _TOP - 2, f"p{percent}"))
    return _svg(parts, "histogram of latencies")


def _plot_throughput(measurement: Measurement) -> str:
    intervals = measurement.measured_intervals()
    if not intervals:
        return '<p class="quiet">The run ended too early for this plot.</p>'
    length = measurement.interval
    rates = [one.responses / length for one in intervals]
    failures = [one.errors / length for one in intervals]
    most = max(*rates, *failures, 1.0)
    width = (_WIDTH - _LEFT - _RIGHT) / len(intervals)

    def line(values: Sequence[float], style: str) -> str:
        points = " ".join(f"{_LEFT + (at + 0.5) * width:.1f},{_y(value, most):.1f}" for at, value in enumerate(values))
        return f'<polyline class="{style}" points="{points}"/>'

    parts = [*_y_axis(most), line(rates, "line")]
    if any(failures):
        parts.append(line(failures, "errors"))
    for share in (0.0, 0.5, 1.0):
        label = f"{len(intervals) * length * share:.3g} s"
        x = _LEFT + share * width * len(intervals)
        parts.append(_text(x, _HEIGHT - 14, label, "middle" if share < 1 else "end"))
    return _svg(parts, "responses and errors per second over time")
