"""The command line, in a child process and in this one."""

import asyncio
import os
import sys
from typing import NamedTuple

import pytest
from tests.limits import PATIENCE

from trunkline.cli.main import main


class Ended(NamedTuple):
    """The exit status of a command, and its output."""

    status: int
    out: str
    err: str


async def trunkline(*arguments: str, stdin: str = "", environ: dict[str, str] | None = None) -> Ended:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "trunkline",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environ or {})},
    )
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), PATIENCE)
    return Ended(process.returncode or 0, out.decode(), err.decode())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, output and errors."""
    capsys.readouterr()
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code))
    said = capsys.readouterr()
    return code, said.out, said.err
