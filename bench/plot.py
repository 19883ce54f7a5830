"""Draws the figures of a run as SVG: `python -m bench.plot figures.json > performance.svg`.

One group of bars for each row that compares Trunkline with a peer, on one logarithmic scale. The drawing has its own
background and follows the reader's light or dark mode.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 860, 190, 80  # LEFT has the names of the targets, RIGHT the figure of the longest bar
BAR, STEP, HEADING, HEAD, FOOT = 11, 15, 30, 110, 64
STYLE = """\
svg { font: 12px system-ui, sans-serif; }
.page { fill: #fff; } .grid { stroke: #d1d9e0; } text { fill: #1f2328; } .quiet { fill: #59636e; }
.title { font-size: 17px; font-weight: 600; } .row { font-weight: 600; }
.name { text-anchor: end; } .tick { text-anchor: middle; }
.ours { fill: #0b6bcb; } .yardstick { fill: #4f9d69; } .peer { fill: #9aa4af; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; } .grid { stroke: #30363d; } text { fill: #e6edf3; } .quiet { fill: #9198a1; }
.ours { fill: #58a6ff; } .yardstick { fill: #56a870; } .peer { fill: #6e7681; }
}
"""
LEGEND = {"ours": "Trunkline", "yardstick": "decoding and encoding only, not an MCP server", "peer": "other libraries"}


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale from one power of ten to another."""

    low: int
    high: int

    def x(self, cost: float) -> float:
        """The place of a cost, in pixels from the left."""
        return LEFT + (math.log10(cost) - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)


def svg(document: Mapping[str, Any]) -> str:
    """Return the drawing of a run's JSON document."""
    rows = {name: row for name, row in document["rows"].items() if _is_drawn(row)}
    costs = [target["best"] for row in rows.values() for target in row["targets"].values()]
    scale = _scale(costs)
    bottom = HEAD + sum(HEADING + STEP * (len(row["targets"]) + len(row["missing"])) for row in rows.values())
    parts = [*_frame(scale, bottom), *_groups(rows, scale), *_caption(document, bottom)]
    size = f'width="{WIDTH}" height="{bottom + FOOT}" viewBox="0 0 {WIDTH} {bottom + FOOT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>CPU time per call</title>\n'
        f"<style>\n{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def duration(us: float) -> str:
    """A time in a unit that suits its size, with three digits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size * 0.9995:
            return f"{_digits(us / size)} {unit}"
    return f"{_digits(us)} µs"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def _is_drawn(row: Mapping[str, Any]) -> bool:
    """Return whether a row compares CPU times with a peer."""
    return row["unit"] == "µs" and any(_kind(name) != "ours" for name in row["targets"])


def _kind(target: str) -> str:
    if target.startswith("trunkline"):
        return "ours"
    return "yardstick" if target.startswith("bare") else "peer"


def _scale(costs: list[float]) -> Scale:
    if not costs:
        return Scale(0, 1)
    low = math.ceil(math.log10(min(costs))) - 1  # below the cheapest, so that its bar has a length
    return Scale(low, max(low + 1, math.ceil(math.log10(max(costs)))))


def _text(x: float, y: float, content: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(content)}</text>'


def _bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" class="{kind}"/>'


def _frame(scale: Scale, bottom: int) -> Iterator[str]:
    """The background, the title, the legend and the decades of the scale."""
    yield f'<rect width="{WIDTH}" height="{bottom + FOOT}" class="page"/>'
    yield _text(16, 28, "CPU time per call", "title")
    yield _text(16, 47, "best batch of a run, logarithmic scale; shorter is cheaper", "quiet")
    x = 16.0
    for kind, meaning in LEGEND.items():
        yield _bar(x, 60, BAR, kind)
        yield _text(x + 17, 70, meaning)
        x += 50 + 6.4 * len(meaning)
    for power in range(scale.low, scale.high + 1):
        place = scale.x(10.0**power)
        yield f'<path d="M{place:.1f} {HEAD - 8}V{bottom + 4}" class="grid"/>'
        yield _text(place, HEAD - 14, duration(10.0**power), "quiet tick")
        yield _text(place, bottom + 19, duration(10.0**power), "quiet tick")


def _groups(rows: Mapping[str, Any], scale: Scale) -> Iterator[str]:
    """The name and the bars of each row, the cheapest first."""
    y = HEAD
    for name, row in rows.items():
        yield _text(16, y + 16, name, "row")
        y += HEADING - 8
        for target, figures in sorted(row["targets"].items(), key=lambda item: item[1]["best"]):
            end = scale.x(figures["best"])
            yield _text(LEFT - 8, y + 9.5, target, "name")
            yield _bar(LEFT, y, end - LEFT, _kind(target))
            yield _text(end + 5, y + 9.5, duration(figures["best"]), "quiet")
            y += STEP
        for target in row["missing"]:
            yield _text(LEFT - 8, y + 9.5, target, "name")
            yield _text(LEFT + 5, y + 9.5, "not measured", "quiet")
            y += STEP
        y += 8


def _caption(document: Mapping[str, Any], bottom: int) -> Iterator[str]:
    """The origin of the figures."""
    origin = f"CPython {document['python']}, commit {document['commit']}, {document['effort']}"
    yield _text(16, bottom + 40, f"{origin}. Measured by python -m bench.run.", "quiet")
    yield _text(16, bottom + 56, "Servers: CPU of the server process. Clients: CPU of the client process.", "quiet")


if __name__ == "__main__":
    print(svg(json.loads(Path(sys.argv[1]).read_text("utf-8"))), end="")
