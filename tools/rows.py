"""Prints the acceptance rows that no test names yet: `make rows`. Needs Python alone, no environment.

tests/rows.txt has the rows; a test shows one by carrying its id in its name, as `test_p07_…` and `test_k02_x20_…` do.
"""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
ROW = re.compile(r"([A-Z]{1,2}\d{2,3}) (.+)")
TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


def read_rows(text: str) -> dict[str, dict[str, str]]:
    """The rows by section: id and subject."""
    sections: dict[str, dict[str, str]] = {}
    rows: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line[3:], {})
        elif row := ROW.fullmatch(line):
            rows[row[1]] = row[2]
    return sections


def named_ids(folder: Path) -> set[str]:
    """Every word of every test's name that could be an id."""
    names = [name for file in folder.rglob("test_*.py") for name in TEST.findall(file.read_text("utf-8"))]
    return {word.upper() for name in names for word in name.split("_")}


def report(sections: dict[str, dict[str, str]], named: set[str]) -> list[str]:
    """The rows without a test, and a count by section."""
    lines: list[str] = []
    counts = [f"{'section':<48} rows  with a test"]
    for title, rows in sections.items():
        missing = {ident: subject for ident, subject in rows.items() if ident not in named}
        if missing:
            lines += [f"{title}:", *(f"  {ident:<6}{subject}" for ident, subject in missing.items())]
        counts.append(f"{title:<48} {len(rows):>4}  {len(rows) - len(missing):>4}")
    every = {ident for rows in sections.values() for ident in rows}
    counts.append(f"{'all':<48} {len(every):>4}  {len(every & named):>4}")
    return [*lines, "", *counts]


if __name__ == "__main__":
    print(*report(read_rows((TESTS / "rows.txt").read_text("utf-8")), named_ids(TESTS)), sep="\n")
