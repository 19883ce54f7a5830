"""The commands on the page about hosts print what the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks
from tests.limits import PATIENCE

PAGE = ROOT / "docs/how-to/install-in-hosts.md"


@pytest.mark.skipif(sys.platform != "linux", reason="the page shows the paths of Linux")
def test_commands_print_what_the_page_says(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "projects"
    home.mkdir()
    folder.mkdir()
    unset = {"XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"}
    environ = {name: value for name, value in os.environ.items() if name not in unset}
    shown = "".join(block for _, block in blocks(PAGE, "console"))
    steps = re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]
    assert steps
    for step in steps:
        line, _, expected = step.partition("\n")
        program, *arguments = shlex.split(line.replace("~", str(home)))
        assert program == "trunkline"
        done = subprocess.run(
            [sys.executable, "-m", "trunkline", *arguments],
            cwd=folder,
            env={**environ, "HOME": str(home), "PYTHONUNBUFFERED": "1"},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        said = done.stdout.replace(sys.executable, "/opt/python/bin/python").replace(str(home), "~")
        assert (done.returncode, said.replace(str(folder), "/opt/projects")) == (0, expected)
