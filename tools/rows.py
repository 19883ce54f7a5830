"""The acceptance rows and their tests: `make rows` prints the open ones. Needs Python alone, no environment.

tests/rows.txt has the rows, and says what an open one waits for. A test shows the rows of its marker, as in
`@pytest.mark.row("K02", "X20")`; an example of the founding documents those of its member `rows`.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
EXAMPLES = "spec/founding_examples/*.json"
ROW = re.compile(r"(?P<ident>[A-Z]{1,2}\d{2,5}e?) (?P<subject>.+?)(?: -- (?P<open_because>.+))?")


@dataclass(frozen=True)
class Row:
    """One acceptance row."""

    ident: str
    subject: str
    open_because: str | None = None  # what a row without a test waits for, or why it is not built


@dataclass(frozen=True, order=True)
class FoundTest:
    """A test that shows rows: its file below `tests`, and its name there."""

    file: str
    name: str


Sections = Mapping[str, list[Row]]
Shown = Mapping[str, list[FoundTest]]


def read_rows(text: str) -> dict[str, list[Row]]:
    """Return the rows of each section."""
    sections: dict[str, list[Row]] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line[3:], [])
        elif row := ROW.fullmatch(line):
            rows.append(Row(**row.groupdict()))
    return sections


def find_tests(folder: Path) -> dict[str, list[FoundTest]]:
    """Return the tests that show each row, by its id."""
    found: dict[str, list[FoundTest]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        for name, ident in _marked(ast.parse(file.read_text("utf-8"))):
            found.setdefault(ident, []).append(FoundTest(file.relative_to(folder).as_posix(), name))
    for file in sorted(folder.glob(EXAMPLES)):
        for example in json.loads(file.read_text("utf-8")):
            for ident in example.get("rows", ()):
                found.setdefault(ident, []).append(FoundTest(file.relative_to(folder).as_posix(), example["name"]))
    return found


def _marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each test of a module with each id of its markers, including those of its parameters."""
    constants = {
        node.targets[0].id: node.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        for part in (part for decorator in node.decorator_list for part in _parts(decorator, constants)):
            if isinstance(part, ast.Call) and ast.unparse(part.func) == "pytest.mark.row":
                yield from ((node.name, a.value) for a in part.args if isinstance(a, ast.Constant))


def _parts(decorator: ast.AST, constants: Mapping[str, ast.expr]) -> Iterator[ast.AST]:
    """Yield the nodes of a decorator, and those of the constants of its module that it names."""
    for part in ast.walk(decorator):
        yield part
        if isinstance(part, ast.Name) and part.id in constants:
            yield from ast.walk(constants[part.id])


def report(sections: Sections, shown: Shown) -> list[str]:
    """Return the rows without a test, and the counts by section."""
    lines: list[str] = []
    counts = [f"{'section':<48} rows  with a test"]
    for title, rows in sections.items():
        missing = [row for row in rows if row.ident not in shown]
        if missing:
            lines += [f"{title}:", *(f"  {row.ident:<8}{row.subject}: {row.open_because}" for row in missing)]
        counts.append(f"{title:<48} {len(rows):>4}  {len(rows) - len(missing):>4}")
    every = {row.ident for rows in sections.values() for row in rows}
    counts.append(f"{'all':<48} {len(every):>4}  {len(every & shown.keys()):>4}")
    return [*lines, "", *counts]


if __name__ == "__main__":
    print(*report(read_rows((TESTS / "rows.txt").read_text("utf-8")), find_tests(TESTS)), sep="\n")
