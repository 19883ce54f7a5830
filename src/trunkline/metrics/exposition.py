"""Text of Prometheus (exposition format 0.0.4) for samples of metrics."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from operator import add
from typing import Final

from trunkline.metrics.families import FAMILIES, Family
from trunkline.metrics.samples import Sample

__all__ = ["CONTENT_TYPE", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def render(samples: Iterable[Sample], alive: Collection[int]) -> str:
    """Return the text for samples of all slots: counters and histograms are added up, also those of slots whose process
    has ended; gauges only of the slots that are `alive`."""
    series: dict[str, dict[tuple[str, ...], Sequence[float]]] = {}
    for slot, family, labels, values in samples:
        if family.kind == "gauge" and slot not in alive:
            continue
        found = series.setdefault(family.name, {})
        key = (*labels, str(slot)) if family.per_worker else labels
        known = found.get(key)
        found[key] = values if known is None else tuple(map(add, known, values))
    lines: list[str] = []
    for name, family in FAMILIES.items():
        if name in series:
            lines.append(f"# HELP {name} {family.help.translate(_HELP_ESCAPES)}")
            lines.append(f"# TYPE {name} {family.kind}")
            for key, values in sorted(series[name].items()):
                lines.extend(_render_series(family, key, values))
    return "\n".join(lines) + "\n" if lines else ""


def _render_series(family: Family, key: Sequence[str], values: Sequence[float]) -> Iterable[str]:
    names = (*family.labels, "worker") if family.per_worker else family.labels
    labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, key, strict=True))
    if family.kind != "histogram":
        braces = f"{{{labels}}}" if labels else ""
        return (f"{family.name}{braces} {_format(values[0])}",)
    return _render_histogram(family, labels, values)


def _render_histogram(family: Family, labels: str, values: Sequence[float]) -> Iterable[str]:
    name, first = family.name, f"{labels}," if labels else ""
    bounds = (*map(_format, family.buckets), "+Inf")
    counts = list(accumulate(values[: len(bounds)]))
    for bound, count in zip(bounds, counts, strict=True):
        yield f'{name}_bucket{{{first}le="{bound}"}} {_format(count)}'
    braces = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{braces} {_format(values[len(bounds)])}"
    yield f"{name}_count{braces} {_format(counts[-1])}"


def _format(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
