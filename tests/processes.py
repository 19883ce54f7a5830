"""A server in a child process, with both ends of its pipes under the test's control.

    with StdioPeer(SCRIPT) as peer:
        peer.initialize()
        assert peer.result("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})["isError"] is False

Each line of its standard output has to be a message: anything else fails the test, at the latest when the process
has ended and the peer has read all of it. Every wait has a deadline.
"""

import asyncio
import contextlib
import json
import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests import official
from tests.limits import PATIENCE

from trunkline.event_loop import find_loop_factory
from trunkline.testing import RawPeer, Transcript


class StdioPeer:
    """The client of a server script; sends single bytes if required."""

    def __init__(
        self,
        script: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        wrapped: list[str] | None = None,
        framing: str = "lines",
    ) -> None:
        """`wrapped` precedes the command; `framing="headers"` sends a Content-Length before each message."""
        self.transcript = Transcript()
        self._framing = framing
        self._ids = count(1)
        self._buffer = b""
        self._ended = False  # its output
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the peer
        self.process = subprocess.Popen(
            [*(wrapped or []), sys.executable, "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(env or {})},
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input = self.process.stdin.fileno()
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close_input()
            if kind is None:
                self.exit_code()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()  # type: ignore[union-attr]
            self._stderr.close()
        for tap in RawPeer.taps:
            tap(self.transcript)

    # --- sending -------------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any] | list[Any] | bytes) -> None:
        """Send a framed message; bytes pass unchanged."""
        if isinstance(message, bytes):
            data = message
            self.transcript.frames += [("client", line) for line in message.splitlines()]
        else:
            frame = json.dumps(message, ensure_ascii=False).encode()
            self.transcript.frames.append(("client", frame))
            data = frame + b"\n" if self._framing == "lines" else b"Content-Length: %d\r\n\r\n%b" % (len(frame), frame)
        while data:
            data = data[os.write(self.input, data) :]

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def call(self, method: str, params: Any = None) -> int:
        """Send a request; return its id."""
        ident = next(self._ids)
        self.send({"jsonrpc": "2.0", "id": ident, "method": method, **({} if params is None else {"params": params})})
        return ident

    def tool(self, name: str, **arguments: Any) -> int:
        """Call a tool without waiting; return the request id."""
        return self.call("tools/call", {"name": name, "arguments": arguments})

    def close_input(self) -> None:
        """Close the server's standard input."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    # --- receiving -------------------------------------------------------------------------------

    def read(self, timeout: float = PATIENCE) -> bytes:
        """Some bytes of the server's output; empty at its end."""
        if not select.select([self.output], [], [], timeout)[0]:
            raise AssertionError(f"nothing on standard output for {timeout} s; standard error: {self.stderr()}")
        data = os.read(self.output, 1 << 20)
        self._ended = not data
        return data

    def receive(self) -> Any:
        """The next message."""
        deadline = time.monotonic() + PATIENCE
        while (message := self._next()) is None:
            self._buffer += self.read(max(0.0, deadline - time.monotonic()))
            if self._ended:
                raise AssertionError(f"standard output ended; standard error: {self.stderr()}")
        return message

    def _next(self) -> Any:
        frame = self._cut_line() if self._framing == "lines" else self._cut_headed()
        if frame is None:
            return None
        self.transcript.frames.append(("server", frame))
        try:
            return json.loads(frame)
        except ValueError:
            raise AssertionError(f"standard output has something that is no message: {frame!r}") from None

    def _cut_line(self) -> bytes | None:
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        return line

    def _cut_headed(self) -> bytes | None:
        header, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        name, _, size = header.partition(b": ")
        assert name == b"Content-Length", f"no header of one line: {header!r}"
        if len(rest) < int(size):
            return None
        self._buffer = rest[int(size) :]
        return rest[: int(size)]

    def answer_to(self, ident: int) -> Any:
        """Return the response to a request; skip earlier messages."""
        while (message := self.receive()).get("id") != ident or "method" in message:
            pass
        return message

    def request(self, method: str, params: Any = None) -> Any:
        """Send a request; return the whole response."""
        return self.answer_to(self.call(method, params))

    def result(self, method: str, params: Any = None) -> Any:
        """Send a request; return the result."""
        answer = self.request(method, params)
        assert "result" in answer, answer
        return answer["result"]

    def initialize(self, revision: str = "2025-11-25", capabilities: Mapping[str, Any] | None = None) -> Any:
        """Perform the handshake."""
        client = {"name": "stdio peer", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": dict(capabilities or {}), "clientInfo": client}
        result = self.result("initialize", params)
        self.notify("notifications/initialized")
        return result

    def rest(self) -> list[Any]:
        """All messages until the end of the output."""
        messages: list[Any] = []
        while not self._ended:
            self._buffer += self.read()
            messages += iter(self._next, None)
        assert not self._buffer, f"standard output ends with something that is no message: {self._buffer!r}"
        return messages

    # --- the process -----------------------------------------------------------------------------

    def drop_output(self) -> None:
        """Discard the rest of the output."""
        self._ended = True

    def exit_code(self, timeout: float = PATIENCE) -> int:
        """Wait for the process to end while reading its output; return the exit code."""
        self.rest()
        return self.process.wait(timeout)

    def stderr(self) -> str:
        """Standard error so far."""
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode()

    def kill(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)


def command(script: str) -> list[str]:
    """The command that runs a script."""
    return [sys.executable, "-c", textwrap.dedent(script)]


def light(effects: Path) -> list[str]:
    """The command of a minimal server that starts fast and logs its effects to a file."""
    return [sys.executable, "-I", "-S", str(Path(__file__).parent / "spec" / "minimal_server.py"), str(effects)]


def eventually(truth: Callable[[], Any], timeout: float = PATIENCE, *, every: float = 0.005) -> Any:
    """Poll until a value is true; return it."""
    deadline = time.monotonic() + timeout
    while not (found := truth()):
        assert time.monotonic() < deadline, f"not true within {timeout} s"
        time.sleep(every)
    return found


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if a task, thread, descriptor or child process is left that did not exist before."""
    find_loop_factory()().close()  # libuv opens a pipe for signals with the first loop, and keeps it
    before = _there()
    yield
    if tasks := _tasks() - before["tasks"]:
        raise AssertionError(f"tasks are left: {tasks}")
    eventually(lambda: not any(_there()[kind] - known for kind, known in before.items()), PATIENCE)


def _there() -> dict[str, set[Any]]:
    return {
        "tasks": _tasks(),
        "threads": set(threading.enumerate()),
        "descriptors": _descriptors(),
        "children": children(),
    }


def _tasks() -> set[Any]:
    try:
        return asyncio.all_tasks()
    except RuntimeError:  # no loop is running here
        return set()


def _descriptors() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


def children(pid: int | str = "self") -> set[int]:
    """The child processes of a process, by default of this one, without the long-lived helpers of the suite."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= set(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split()))
    return found - official.BESIDE


def gone(pid: int) -> bool:
    """Return whether a process has ended, also if its parent has not reaped it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@contextlib.contextmanager
def no_descriptor_left(*, above: int = 0) -> Iterator[None]:
    """Lower the descriptor limit of this process to its open descriptors plus a few."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + above, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def pause_between_writes(pid: int, database: Path) -> None:
    """Stop a process at a moment when it does not hold the write lock of a SQLite file.

    A process that stops within a transaction would lock out all others until it continues.
    """
    async with asyncio.timeout(PATIENCE):
        os.kill(pid, signal.SIGSTOP)
        await until_stopped(pid)
        while _is_locked(database):
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGSTOP)
            await until_stopped(pid)


async def until_stopped(pid: int) -> None:
    """Wait until a process has been stopped by a signal."""
    async with asyncio.timeout(PATIENCE):
        while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
            await asyncio.sleep(0.01)


def _is_locked(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
