"""The view of a running load test on a terminal: a chart if rich is installed, otherwise a line that is replaced."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from trunkline.cli.bench.load import now
from trunkline.cli.bench.measurement import Measurement
from trunkline.cli.bench.summary import format_seconds
from trunkline.cli.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["show_progress", "status_line"]

_REFRESH: Final = 0.25  # seconds
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_BAR: Final = 40  # characters of the longest bar of the histogram
_ROWS: Final = 8  # of the histogram


@asynccontextmanager
async def show_progress(measurement: Measurement, title: str, terminal: Terminal) -> AsyncGenerator[None]:
    """Show the state of a run while the block runs, if standard error is a terminal. The title must be escaped."""
    if not terminal.shows_progress:
        yield
        return
    with contextlib.ExitStack() as stack:
        update = _open_chart(measurement, title, stack) or (lambda: terminal.status(status_line(measurement, now())))

        async def refresh() -> None:
            while True:
                update()
                await asyncio.sleep(_REFRESH)

        refreshing = asyncio.ensure_future(refresh())
        try:
            yield
        finally:
            refreshing.cancel()
            await asyncio.wait([refreshing])
            terminal.clear_status()


def status_line(measurement: Measurement, at: float) -> str:
    """Return the state of a run in one line."""
    if at < measurement.begins:
        return f"warming up, {measurement.begins - at:.0f} s left"
    plan, latencies = measurement.plan, measurement.latencies
    elapsed = min(at - measurement.begins, plan.duration)
    rate = measurement.responses_in_run / elapsed if elapsed > 0 else 0.0
    percentiles = "  ".join(f"p{percent} {format_seconds(latencies.percentile(percent))}" for percent in (50, 99))
    failed = f"  {measurement.failed} errors" if measurement.failed else ""
    waiting = "  waiting for the last responses" if at >= measurement.ends else ""
    return f"{elapsed:.0f} of {plan.duration:g} s  {rate:.0f}/s  {percentiles}{failed}{waiting}"


def _open_chart(measurement: Measurement, title: str, stack: contextlib.ExitStack) -> Callable[[], None] | None:
    """Open a live chart on standard error, and return the function that updates it; None without rich."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    console = Console(stderr=True, highlight=False)
    live = stack.enter_context(Live(console=console, auto_refresh=False, transient=True))
    return lambda: live.update(_chart(measurement, title), refresh=True)


def _chart(measurement: Measurement, title: str) -> "RenderableType":
    from rich.panel import Panel
    from rich.text import Text

    at = now()
    passed = max(int((at - measurement.begins) / measurement.interval), 0)
    counts = [one.responses for one in measurement.intervals[:passed]]
    text = Text(f"{status_line(measurement, at)}\n\n")
    text.append(f"responses over time, at most {max(counts, default=0) / measurement.interval:.0f}/s\n", "dim")
    text.append(f"{_sparkline(counts)}\n\n", "cyan")
    text.append("latency\n", "dim")
    for label, bar, count in _histogram_rows(measurement):
        text.append(f"{label:>9} ")
        text.append(bar, "cyan")
        text.append(f" {count}\n")
    return Panel(text, title=Text(title), title_align="left", expand=False)


def _sparkline(counts: list[int]) -> str:
    most = max(counts, default=0) or 1
    return "".join(_BLOCKS[-(-count * (len(_BLOCKS) - 1) // most)] for count in counts)


def _histogram_rows(measurement: Measurement) -> list[tuple[str, str, int]]:
    """Return the upper bound, the bar and the count of each row; bounds grow by a constant factor."""
    buckets = [*measurement.latencies.buckets()]
    if not buckets:
        return []
    low, high = buckets[0].low, buckets[-1].high
    factor = (high / low) ** (1 / _ROWS)
    bounds = [low * factor ** (row + 1) for row in range(_ROWS - 1)] + [high]
    counts = [0] * _ROWS
    row = 0
    for bucket in buckets:
        while row < _ROWS - 1 and bucket.low >= bounds[row]:
            row += 1
        counts[row] += bucket.count
    most = max(counts)
    return [
        (f"≤{format_seconds(bound)}", "█" * -(-count * _BAR // most), count)
        for bound, count in zip(bounds, counts, strict=True)
    ]
