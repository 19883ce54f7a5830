"""Print the acceptance rows that no test shows yet: `make rows`. Needs Python alone, no environment.

tests/rows.txt has the rows; a test shows those in its marker, as in `@pytest.mark.row("K02", "X20")`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
ROW = re.compile(r"([A-Z]{1,2}\d{2,3}) (.+)")


def read_rows(text: str) -> dict[str, dict[str, str]]:
    """Return the subject of each row by its id, section by section."""
    sections: dict[str, dict[str, str]] = {}
    rows: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line[3:], {})
        elif row := ROW.fullmatch(line):
            rows[row[1]] = row[2]
    return sections


def marked_ids(folder: Path) -> set[str]:
    """Return every id in a `row` marker of a test file."""
    return {ident for file in folder.rglob("test_*.py") for ident in _ids_in(ast.parse(file.read_text("utf-8")))}


def _ids_in(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.row":
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def report(sections: dict[str, dict[str, str]], shown: set[str]) -> list[str]:
    """Return the rows without a test, and the counts by section."""
    lines: list[str] = []
    counts = [f"{'section':<48} rows  with a test"]
    for title, rows in sections.items():
        missing = {ident: subject for ident, subject in rows.items() if ident not in shown}
        if missing:
            lines += [f"{title}:", *(f"  {ident:<6}{subject}" for ident, subject in missing.items())]
        counts.append(f"{title:<48} {len(rows):>4}  {len(rows) - len(missing):>4}")
    every = {ident for rows in sections.values() for ident in rows}
    counts.append(f"{'all':<48} {len(every):>4}  {len(every & shown):>4}")
    return [*lines, "", *counts]


if __name__ == "__main__":
    print(*report(read_rows((TESTS / "rows.txt").read_text("utf-8")), marked_ids(TESTS)), sep="\n")
