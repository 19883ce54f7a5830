"""The commands on the pages about the command line and receipts print what the pages show."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.docs.pages import ROOT, blocks, name_of
from tests.docs.test_snippets import save
from tests.limits import PATIENCE

from trunkline.cli.lint_rules import RULES
from trunkline.cli.main import COMMANDS

PAGE = ROOT / "docs/how-to/command-line.md"
RECEIPTS = ROOT / "docs/how-to/receipts.md"
CODE = re.compile(r"\[(\d+)\]")


class Step(NamedTuple):
    """A command of a page, the lines that it prints, and its exit code."""

    command: str
    lines: list[str]
    code: int


def steps(text: str) -> list[Step]:
    """The commands of a console block. `…` stands for any text; the exit code is in brackets after the output."""
    found: list[Step] = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = part.rstrip("\n").split("\n")
        code = CODE.fullmatch(lines[-1]) if lines else None
        found.append(Step(command, lines[:-1] if code else lines, int(code[1]) if code else 0))
    return found


@pytest.mark.parametrize("page", [PAGE, RECEIPTS], ids=name_of)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    save(page, tmp_path)
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for _, text in blocks(page, "console"):
        for command, lines, code in steps(text):
            if command.startswith("cat "):  # a file that the reader writes
                (tmp_path / command.removeprefix("cat ")).write_text("\n".join(lines) + "\n")
                continue
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
            shown = done.stdout.rstrip("\n").split("\n") if done.stdout else []
            pattern = "\n".join(re.escape(line).replace("…", ".*") for line in lines)
            assert done.returncode == code, f"{command}: {done.stderr}"
            assert re.fullmatch(pattern, "\n".join(shown)), f"{command} prints:\n{done.stdout}"


def test_steps_have_commands_output_and_codes() -> None:
    assert steps("$ a b\n$ c\nx\n\ny\n[3]\n") == [Step("a b", [], 0), Step("c", ["x", "", "y"], 3)]


@pytest.mark.parametrize("names", [[*COMMANDS], [rule.id for rule in RULES]], ids=["commands", "rules"])
def test_page_names_everything(names: list[str]) -> None:
    text = PAGE.read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []
