"""`trunkline new`: projects that pass their own checks."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.unit.cli.test_install import run

from trunkline.version import __version__

TOOLS = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(folder: Path, *command: str) -> None:
    environ = {**os.environ, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environ, check=False, capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("options", [[], ["--http", "--tasks"]], ids=["plain", "http and tasks"])
def test_project_passes_its_own_checks(capsys: pytest.CaptureFixture[str], here: Path, options: list[str]) -> None:
    assert run(capsys, "new", "my-shop", *options)[0] == 0
    folder = here / "my-shop"
    check(folder, str(TOOLS / "ruff"), "format", "--no-cache", "--check", ".")
    check(folder, str(TOOLS / "ruff"), "check", "--no-cache", ".")
    check(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    check(folder, sys.executable, "-m", "pyright", "--pythonpath", sys.executable)


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ([], "trunkline install server.py --host claude-desktop"),
        (["--http", "--tasks"], "trunkline run server.py --http"),
    ],
    ids=["plain", "http and tasks"],
)
def test_first_call_and_next_commands_are_printed(
    capsys: pytest.CaptureFixture[str], here: Path, options: list[str], last: str
) -> None:
    code, out, err = run(capsys, "new", "shop", *options)
    assert (code, out) == (0, f"5\n  cd shop\n  python -m pytest\n  {last}\n")
    assert err.startswith("created shop with server.py, tests/test_server.py, README.md, pyproject.toml, .gitignore")
    assert "first call: trunkline call shop/server.py add a=2 b=3\n" in err


def test_printed_commands_work(capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(capsys, "new", "shop")
    monkeypatch.chdir(here / "shop")
    config = str(here / "claude.json")
    assert run(capsys, "install", "server.py", "--host", "claude-desktop", "--config", config, "--yes")[0] == 0
    assert run(capsys, "call", f"{config}:shop", "add", "a=2", "b=3")[:2] == (0, "5\n")


def test_options_change_the_project(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    _, out, _ = run(capsys, "new", "shop", "--http", "--tasks", "--dir", "sub/other folder", "--json")
    folder = here / "sub" / "other folder"
    made = json.loads(out)
    assert made["folder"] == str(folder)
    assert all((folder / name).is_file() for name in made["files"])
    assert "tests/test_tasks.py" in made["files"]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("shop", [f"trunkline[http]>={__version__}"])
    assert 'server.run("http")' in (folder / "server.py").read_text()
    assert "$" not in "".join((folder / name).read_text() for name in made["files"])


@pytest.mark.parametrize("name", ["", "1st", "a b", "../x", "a/b", "_x", "shop-", "ü", "a" * 65, "trunkline", "NUL"])
def test_bad_names_are_refused(capsys: pytest.CaptureFixture[str], here: Path, name: str) -> None:
    code, _, err = run(capsys, "new", name)
    assert (code, "cannot name a project" in err) == (2, True)
    assert [*here.iterdir()] == []


def test_folder_with_files_is_refused(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "shop").mkdir()
    (here / "shop" / "server.py").write_text("mine")
    code, _, err = run(capsys, "new", "shop")
    assert (code, err) == (2, "trunkline: shop is not empty; choose another folder with --dir\n")
    assert [file.name for file in (here / "shop").iterdir()] == ["server.py"]


def test_empty_folder_is_used(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "shop").mkdir()
    assert run(capsys, "new", "shop")[0] == 0


def test_file_in_the_place_of_the_folder_is_refused(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "shop").write_text("mine")
    for place in ("shop", "shop/below"):
        code, _, err = run(capsys, "new", "shop", "--dir", place)
        assert (code, "already exists and is not a folder" in err) == (2, True)
