"""A server of a Python file or module in a child process, for commands that need one to talk to."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from trunkline.errors import TransportError
from trunkline.transports.stdio import orphan_guard

__all__ = ["read_line", "run_command", "serve_http"]

_ADDRESS: Final = re.compile(r" listens at http://127\.0\.0\.1:(\d+)(/\S*)$")
_TAIL: Final = 20  # lines of standard error to show if it does not start
_STOP_TIMEOUT: Final = 10.0  # seconds


def run_command(text: str) -> list[str]:
    """Return the command that serves a file or module on stdio, with the Python of this process."""
    return [sys.executable, "-m", "trunkline", "run", text]


@asynccontextmanager
async def serve_http(text: str, on_stderr: Callable[[str], None] | None = None) -> AsyncGenerator[str]:
    """Serve a Python file or module over HTTP on a free port of this machine; yield the URL. Raises `TransportError` if
    it does not start."""
    process = await asyncio.create_subprocess_exec(
        *run_command(text),
        "--http",
        "--port",
        "0",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl+C is ours to handle
    )
    orphan_guard.add(process.pid)
    reading = None
    try:
        stderr = cast("asyncio.StreamReader", process.stderr)
        url = await _read_address(stderr, text, on_stderr)
        reading = asyncio.ensure_future(_pass_on(stderr, on_stderr))
        yield url
    finally:
        if reading is not None:
            reading.cancel()
        await _stop(process)
        orphan_guard.remove(process.pid)


async def _read_address(stream: asyncio.StreamReader, text: str, on_stderr: Callable[[str], None] | None) -> str:
    last: deque[str] = deque(maxlen=_TAIL)
    while line := await read_line(stream):
        if (found := _ADDRESS.search(line)) is not None:
            return f"http://localhost:{found[1]}{found[2]}"
        last.append(line)
        if on_stderr is not None:
            on_stderr(line)
    raise TransportError("\n".join([f"{text} cannot be served over HTTP:", *last]))


async def _pass_on(stream: asyncio.StreamReader, on_stderr: Callable[[str], None] | None) -> None:
    """Read standard error, so that the process does not block on it."""
    while line := await read_line(stream):
        if on_stderr is not None:
            on_stderr(line)


async def read_line(stream: asyncio.StreamReader) -> str:
    """Return the next line, cut off if it is very long; empty at the end."""
    try:
        line = await stream.readuntil()
    except asyncio.IncompleteReadError as error:
        line = error.partial
    except asyncio.LimitOverrunError as error:
        line = await stream.read(error.consumed)
    return (line.decode("utf-8", "replace").rstrip("\r\n") or " ") if line else ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Let the server shut down, and kill its process group if it does not."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_TIMEOUT)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
