"""Examples and idioms pass pyright as a user's own files would, in its standard and in its strict mode."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs.pages import PAGES, ROOT, blocks, name_of
from tests.limits import PATIENCE

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
IDIOMS = Path(__file__).with_name("idioms.py")
STRICT = "# pyright: strict, reportMissingTypeStubs=false\n"
# A page awaits at its top level, where a program has an async function, a notebook or `python -m asyncio`.
TOP_LEVEL = {'"await" allowed only within async function', 'Use of "async" not allowed outside of async function'}


def code_of(page: Path) -> str:
    """The Python blocks of a page as one program, each on the lines that it has in the page."""
    lines: list[str] = []
    for line, code in blocks(page, "python"):
        lines += [""] * (line - len(lines))
        lines += code.splitlines()
    return "\n".join(lines) + "\n"


def sources() -> dict[str, str]:
    """Every example by the name of its page or file."""
    pages = {name_of(page): code_of(page) for page in PAGES if blocks(page, "python")}
    return pages | {name_of(file): file.read_text("utf-8") for file in (*EXAMPLES, IDIOMS)}


def diagnosed(codes: dict[str, str], folder: Path) -> Iterator[str]:
    """Check all codes by one pyright process, which takes far longer to read the libraries than to check an example;
    return each finding with the name and the line of its code.
    """
    names = {f"example_{number}.py": name for number, name in enumerate(codes)}
    for file, name in names.items():
        (folder / file).write_text(codes[name], "utf-8")
    # Users install the stubs of other libraries themselves.
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "reportMissingTypeStubs": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    tools = Path(sys.executable).parent
    done = subprocess.run(
        [tools / "pyright", "--outputjson", "--project", folder, "--pythonpath", sys.executable],
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,  # it reads every library that an example imports
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(codes)
    for found in report["generalDiagnostics"]:
        if found["message"] not in TOP_LEVEL:
            name, line = names[Path(found["file"]).name], found["range"]["start"]["line"] + 1
            yield f"{name}:{line}: {found['message']} ({found.get('rule', found['severity'])})"


def test_examples_pass_pyright_in_both_modes(tmp_path: Path) -> None:
    standard = sources()
    strict = {f"strict {name}": code + STRICT for name, code in standard.items()}
    found = list(diagnosed(standard | strict, tmp_path))
    assert not found, "\n".join(found)


def test_strict_mode_finds_more(tmp_path: Path) -> None:
    code = "def same(value): return value\n"
    findings = list(diagnosed({"standard": code, "strict": code + STRICT}, tmp_path))
    assert findings
    assert all(finding.startswith("strict:1: ") for finding in findings)


def test_findings_name_the_page_and_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```python\nimport asyncio\n```\n\n```python\nawait asyncio.sleep('long')\n```\n", "utf-8"
    )
    folder = tmp_path / "checked"
    folder.mkdir()
    [finding] = diagnosed({"page.md": code_of(page)}, folder)
    assert finding.startswith("page.md:8: ")
    assert finding.endswith("(reportArgumentType)")
