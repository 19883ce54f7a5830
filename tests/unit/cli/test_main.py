"""The command line: help, version and exit status."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from tests.limits import PATIENCE
from tests.unit.auth.auth_setup import auth_setup
from tests.unit.cli.commands import trunkline

from trunkline.cli.main import COMMANDS, main
from trunkline.version import __version__


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"trunkline {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "named"), [(["--help"], ["auth", "store"]), (["auth", "--help"], ["doctor", "status", "logout"])]
)
def test_help_lists_commands(capsys: pytest.CaptureFixture[str], arguments: list[str], named: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert [name for name in named if name not in said] == []


@pytest.mark.parametrize(
    "words",
    [
        *([name] for name in COMMANDS),
        *(["auth", name] for name in ("doctor", "status", "logout")),
        *(["store", name] for name in ("check", "migrate", "stats", "export", "backup")),
    ],
    ids=" ".join,
)
def test_help_has_examples(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert f"\n  trunkline {' '.join(words)}" in capsys.readouterr().out.partition("examples:")[2]


@pytest.mark.parametrize(("arguments", "named"), [([], "auth"), (["auth"], "doctor")])
def test_missing_command_prints_help(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    assert main(arguments) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["auth", "login"], "doctor"),
        (["auth", "doctor"], "URL"),
        (["auth", "doctor", "http://127.0.0.1:1", "--timeout", "0"], "--timeout"),
        (["auth", "doctor", "http://127.0.0.1:1", "--timeout", "inf"], "--timeout"),
    ],
)
def test_unknown_argument_prints_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert named in capsys.readouterr().err


async def test_runs_as_command_and_module() -> None:
    done = await trunkline("--version")

    assert done == (0, f"trunkline {__version__}\n", "")


async def test_ctrl_c_exits_silently() -> None:
    async with auth_setup() as there:
        there.silent = True
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trunkline", "auth", "doctor", there.url, stderr=asyncio.subprocess.PIPE
        )
        await there.knocked.wait()
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()

    assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["auth", "doctor", "http://127.0.0.1:1/mcp"]])
def test_broken_pipe_has_no_traceback(arguments: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command, environ = [sys.executable, "-m", "trunkline", *arguments], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environ, check=False, timeout=PATIENCE)
    os.close(writing)

    unnoticed = "--help" in arguments and unbuffered  # by argparse
    assert (done.returncode, done.stderr) == (0 if unnoticed else 141, b"")


def test_package_import_does_not_load_cli() -> None:
    program = "import sys, trunkline; print([n for n in sys.modules if n.startswith(('trunkline.cli', 'trunkline.auth', 'rich', 'argparse'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)

    assert done.stdout == "[]\n"
