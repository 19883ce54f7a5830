"""The command line in a child process."""

import asyncio
import os
import sys
from typing import NamedTuple

from tests.limits import PATIENCE


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
