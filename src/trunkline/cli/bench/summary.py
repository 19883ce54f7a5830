"""The figures of a load test as lines of text."""

from typing import Final

from trunkline.cli.bench.measurement import Measurement
from trunkline.cli.terminal import escape

__all__ = ["cpu_in_words", "find_remarks", "format_seconds", "summarize"]

_LATE: Final = 0.005  # seconds of delay by the load generator that are worth a remark
_BUSY: Final = 0.9  # share of a CPU
_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_EXAMPLE: Final = 200  # characters of an error message


def format_seconds(seconds: float) -> str:
    """Return a duration with three digits, in the unit that fits."""
    for size, unit in _UNITS:
        if seconds >= size * 0.9995:
            value = seconds / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"  # noqa: PLR2004 - digits
    return f"{seconds * 1e6:.2f} µs" if seconds else "0"


def summarize(measurement: Measurement) -> list[str]:
    """Return the lines of the result, escaped."""
    latencies = measurement.latencies
    points = {f"p{percent}": latencies.percentile(percent) for percent in (50, 90, 99)} | {"max": latencies.max}
    lines = [
        f"requests    {measurement.requests} in {measurement.seconds:.4g} s",
        f"throughput  {measurement.throughput:.1f} responses per second",
        "latency     " + "  ".join(f"{name} {format_seconds(value)}" for name, value in points.items()),
        f"server CPU  {cpu_in_words(measurement)}",
        f"errors      {measurement.failed}",
    ]
    for kind, error in sorted(measurement.errors.items(), key=lambda each: -each[1].count):
        lines.append(f"  {error.count} {escape(kind)}: {escape(error.example[:_EXAMPLE])}")
    return lines


def cpu_in_words(measurement: Measurement) -> str:
    """Return the CPU time of the server, or why it is unknown."""
    used = measurement.server_cpu
    if used is None:
        return "unknown: only measured of a process that this command starts, on Linux"
    each = used / measurement.responses_in_run if measurement.responses_in_run else 0.0
    share = used / measurement.seconds if measurement.seconds else 0.0
    return f"{format_seconds(used)}, {format_seconds(each)} per response, {share:.0%} of one CPU"


def find_remarks(measurement: Measurement) -> list[str]:
    """Return reasons to doubt the figures."""
    remarks: list[str] = []
    if measurement.interrupted_at is not None:
        remarks.append(f"interrupted; {measurement.unfinished} requests had no response yet")
    elif measurement.unfinished:
        remarks.append(f"{measurement.unfinished} requests had no response")
    if measurement.unsent:
        remarks.append(f"{measurement.unsent} requests were due but never sent: too many others had no response yet")
    if measurement.reconnections:
        remarks.append(f"connections were lost {measurement.reconnections} times")
    late = measurement.delays.percentile(99)
    if measurement.plan.rate is not None and late > _LATE:
        remarks.append(
            f"1 % of the requests started {format_seconds(late)} late or more, which their latency includes: "
            "the load generator or the machine is busy; use a lower rate or more load generators"
        )
    if measurement.client_cpu is not None and measurement.client_cpu > _BUSY * measurement.seconds > 0:
        remarks.append("the load generator used a whole CPU; the server may be able to do more")
    return remarks
