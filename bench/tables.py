"""Prints the figures of a run as Markdown: `python -m bench.tables figures.json [PAGE]`.

With a page, the table replaces the one between the two comments there.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures of bench.run -->\n", "<!-- end of figures -->\n"
_PART = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)


def markdown(document: Mapping[str, Any]) -> str:
    """Return the tables of a run's JSON document."""
    return "\n".join(_lines(document)) + "\n"


def replaced(page: str, tables: str) -> str:
    """Return a page with new tables. Raise `ValueError` if it has no place for them."""
    found, count = _PART.subn(lambda _: f"{BEGIN}{tables}{END}", page)
    if count != 1:
        raise ValueError(f"the page needs one part between {BEGIN.strip()} and {END.strip()}, and has {count}")
    return found


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"CPython {document['python']}, commit {document['commit']}, {document['effort']}."
    yield from ("", "| workload | Trunkline | others | gates |", "|---|--:|---|---|")
    for name, row in document["rows"].items():
        yield f"| {name}{_unit(row['unit'])} | {_ours(row)} | {_others(row)} | {_gates(row)} |"
    if rates := document["in_process"]:
        yield from ("", "| within one process | per second | gate |", "|---|--:|---|")
        for rate in rates:
            verdict = ("met" if rate["per_second"] >= rate["wanted"] else "**missed**") if rate["gate"] else "no gate"
            yield f"| {rate['name']} | {rate['per_second']:,.0f} | {rate['wanted']:,}: {verdict} |"


def _unit(unit: str) -> str:
    return "" if unit == "µs" else f" ({unit})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _main_target(row: Mapping[str, Any]) -> str | None:
    """The target of ours that the row is about: the first one."""
    return next((name for name in row["targets"] if name.startswith("trunkline")), None)


def _ours(row: Mapping[str, Any]) -> str:
    target = _main_target(row)
    return "not measured" if target is None else _number(row["targets"][target]["best"])


def _others(row: Mapping[str, Any]) -> str:
    main = _main_target(row)
    measured = [f"{name} {_number(cost['best'])}" for name, cost in row["targets"].items() if name != main]
    return "; ".join([*measured, *(f"{name} not measured" for name in row["missing"])]) or "-"


def _gates(row: Mapping[str, Any]) -> str:
    return "; ".join(_verdict(bar) for bar in row["bars"]) or "-"


def _verdict(bar: Mapping[str, Any]) -> str:
    word = {"PASS": "met", "FAIL": "**missed**"}.get(bar["verdict"], bar["verdict"])
    return f"{bar['bar']}: {word}" if bar["ratio"] is None else f"{bar['bar']}: {bar['ratio']:.2f}, {word}"


def main(figures: str, page: str | None = None) -> None:
    """Print the tables, or put them into a page."""
    tables = markdown(json.loads(Path(figures).read_text("utf-8")))
    if page is None:
        print(tables, end="")
    else:
        Path(page).write_text(replaced(Path(page).read_text("utf-8"), tables), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
