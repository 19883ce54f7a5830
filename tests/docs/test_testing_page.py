"""The tests in the manual's page about testing, run by pytest."""

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT, blocks
from tests.limits import PATIENCE

PAGE = ROOT / "docs/how-to/testing.md"


def test_tests_of_the_page_pass(tmp_path: Path) -> None:
    code = "\n\n".join(
        block for _, block in blocks(PAGE, "python") if "def test_" in block and "await test_" not in block
    )
    assert code.count("def test_") == 4
    (tmp_path / "test_shop.py").write_text(code, "utf-8")
    options = ("-p", "trunkline_pytest", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider")
    ini = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}

    def run(*more: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", *options, *ini, *more, "test_shop.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=PATIENCE
        )
        return done.stdout + done.stderr

    assert "has no snapshot" in run()
    assert "4 passed" in run("--mcp-snapshot-update")
    assert (tmp_path / "test_shop.shop.catalog.json").exists()
    assert "4 passed" in run()
