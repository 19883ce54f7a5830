"""Server programs as a service manager starts them, and HTTP requests to their sockets."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.attacks.raw import Answer, Caller, initialize, request
from tests.processes import PATIENCE, eventually

PROGRAM = """
from trunkline import *
server = Server("library", settings=Settings.load())

@server.tool
async def environment() -> list[str]:
    import os
    return sorted(os.environ)

{run}
"""

# systemd passes descriptors from 3 on and sets LISTEN_PID between fork and exec.
LAUNCHER = """
import os, sys
numbers = [int(number) for number in sys.argv[1].split()]
for place, number in enumerate([os.dup2(number, 100 + index) for index, number in enumerate(numbers)], 3):
    os.dup2(number, place)
    os.close(number)
os.environ |= {"LISTEN_FDS": str(len(numbers)), "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class Service:
    """A running program, its address and its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Any) -> None:
        self.process = process
        self._log = log
        self._rest: str | None = None
        self.address = ""

    @property
    def log(self) -> str:
        """The standard error so far."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode() if self._rest is None else self._rest

    def ended(self) -> None:
        """Keep the log, whose file is closed now."""
        self._rest = self.log

    def wait_for_log(self, pattern: str, times: int = 1) -> None:
        """Wait until so many lines of the log match."""
        eventually(lambda: self.process.poll() is not None or len(re.findall(pattern, self.log)) >= times, every=0.02)
        assert len(re.findall(pattern, self.log)) == times, self.log


@contextlib.contextmanager
def service(
    run: str, *, environ: Mapping[str, str] | None = None, sockets: Sequence[Any] | None = None
) -> Iterator[Service]:
    """Run a program whose last line is `run`; with `sockets`, as systemd does."""
    program = ["-c", PROGRAM.format(run=textwrap.dedent(run))]
    numbers = [each.fileno() for each in sockets or ()]
    if sockets is not None:
        program = ["-c", LAUNCHER, " ".join(map(str, numbers)), *program]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *program], stderr=log, pass_fds=numbers, env={**os.environ, **(environ or {})}
        )
        started = Service(process, log)
        try:
            eventually(lambda: process.poll() is not None or " listens at " in started.log, every=0.02)
            if found := re.search(r"listens at (\S+)", started.log):
                started.address = found[1]
            yield started
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            started.ended()


async def post(place: int | str, *, path: str = "/mcp", body: Any = None, **headers: Any) -> Answer:
    """Send one request, by default `initialize`, to a port or the path of a Unix socket; return the answer."""
    async with Caller(place) as caller:
        caller.say(request("POST", path, initialize() if body is None else body, **headers))
        return await caller.answer()


def post_now(place: int | str, **options: Any) -> Answer:
    """Do the same outside of a loop."""
    return asyncio.run(post(place, **options))
