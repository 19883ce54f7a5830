"""Sends requests to an MCP server over pipes and measures the cost of the responses.

The figure is the CPU time of the server process, threads included. The driver must not disturb it: it encodes
requests before the clock starts, only counts responses while the clock runs, and checks all of them afterwards.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

REVISION = "2025-11-25"
SILENCE_MS = 30_000  # the slowest response, `mcp` listing 1,000 tools on a busy machine, takes a fraction of a second


class BenchError(Exception):
    """The server misbehaved, so no figure may be printed."""


class WrongAnswer(BenchError):
    """A response was missing, duplicate, an error, or wrong."""


@dataclass(frozen=True)
class Question:
    """A kind of request: the request with a given id, and its expected result."""

    method: str
    params: Callable[[int], Mapping[str, Any]]
    answered_by: Callable[[int, Any], bool]
    tells: str | None = None  # notifications before each response
    capabilities: Mapping[str, Any] = field(default_factory=dict)  # that a client needs for it


@dataclass(frozen=True)
class Sample:
    """The cost of one batch of requests, per request: CPU time in µs, or the unit of its row."""

    cost: float
    answer_bytes: float


INITIALIZE = Question(
    "initialize",
    lambda _: {
        "protocolVersion": REVISION,
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "0"},
    },
    lambda _, result: "serverInfo" in result and result["protocolVersion"] <= REVISION,  # theirs to choose
)


def cpu_ns(pid: int) -> int:
    """The CPU time, user and system, that a process has used in all its threads since it started."""
    if sys.platform == "linux":
        return time.clock_gettime_ns((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python does not wrap
    clock = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    seconds = 0.0  # from [hours:]minutes:seconds.hundredths, so figures are coarse here
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return int(seconds * 1e9)


def check_answers(received: bytes, ids: Iterable[int], answered_by: Callable[[int, Any], bool]) -> None:
    """Raise WrongAnswer unless `received` has one correct response for each id."""
    waiting = set(ids)
    for line in received.removesuffix(b"\n").split(b"\n"):
        try:
            answer = json.loads(line)
            waiting.remove(answer["id"])
            right = answered_by(answer["id"], answer["result"])
        except (ValueError, LookupError, TypeError):
            right = False
        if not right:
            raise WrongAnswer(f"wrong, unasked or second answer: {line[:300].decode(errors='replace')}")
    if waiting:
        raise WrongAnswer(f"no answer to {len(waiting)} requests")


class Process:
    """A process under test. Leaving it, as a context manager, kills it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, **streams: Any) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        streams = streams or {"stdin": subprocess.DEVNULL, "stdout": self._errors}
        try:
            self._process = subprocess.Popen(command, stderr=self._errors, env=env, **streams)
        except OSError as error:
            self._errors.close()
            raise BenchError(f"the command does not start: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    def cpu_ns(self) -> int:
        """The CPU time so far."""
        return cpu_ns(self._process.pid)

    def memory(self) -> int:
        """The memory in use, in bytes."""
        if sys.platform == "linux":
            with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as figures:
                return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        command = ["ps", "-o", "rss=", "-p", str(self._process.pid)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024

    def last_words(self) -> str:
        """The end of its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]


class ServerProcess(Process):
    """A server under test, over its stdin and stdout."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        super().__init__([*command, "stdio"], env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        self._to_read, self._to_read_or_write = select.poll(), select.poll()
        self._to_read.register(self._stdout, select.POLLIN)
        self._to_read_or_write.register(self._stdout, select.POLLIN)
        self._to_read_or_write.register(self._stdin, select.POLLOUT)
        self._buffer = bytearray(1 << 20)  # reused: a fresh one per read would cost the CPU we share with the server
        self._next_id = 1

    def handshake(self) -> Sample:
        """Perform the handshake. The sample is the cost from the spawn to the first response."""
        sample = self._measure(INITIALIZE, 1, 1, since=0)
        os.write(self._stdin, b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return sample

    def ask(self, question: Question, count: int, window: int) -> Sample:
        """Send `count` requests with up to `window` in flight, and check every response."""
        return self._measure(question, count, window, since=self.cpu_ns())

    def _measure(self, question: Question, count: int, window: int, since: int) -> Sample:
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        frames = [_frame(id_, question.method, question.params(id_)) for id_ in ids]
        try:
            received = self._exchange(frames, window)
        except (EOFError, OSError, TimeoutError) as error:
            raise BenchError(f"{error or 'the server hung up'}\n{self.last_words()}") from error
        spent = self.cpu_ns() - since
        check_answers(received, ids, question.answered_by)
        return Sample(spent / count / 1000, len(received) / count)

    def _exchange(self, frames: Sequence[bytes], window: int) -> bytes:
        """Send the frames, at most `window` ahead of the responses, and return the bytes of the responses."""
        received = bytearray()
        outgoing = memoryview(b"")
        sent = answered = 0
        while answered < len(frames):
            if not outgoing:
                ready = min(answered + window, len(frames))
                outgoing = memoryview(b"".join(frames[sent:ready]))
                sent = ready
            if outgoing:
                outgoing = outgoing[self._write(outgoing) :]
            events = (self._to_read_or_write if outgoing else self._to_read).poll(SILENCE_MS)
            if not events:
                raise TimeoutError(f"no answer for {SILENCE_MS // 1000} s, {len(frames) - answered} are missing")
            if any(fd == self._stdout for fd, _ in events):
                size = os.readv(self._stdout, [self._buffer])
                if not size:
                    raise EOFError
                received += memoryview(self._buffer)[:size]
                answered += self._buffer.count(b"\n", 0, size)
        return bytes(received)

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._stdin, data)
        except BlockingIOError:
            return 0


class ClientProcess(Process):
    """A client under test, which has its own server and gets its commands over stdin."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        super().__init__(command, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __exit__(self, *exc_info: object) -> None:
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        super().__exit__(*exc_info)

    def ask(self, count: int, window: int) -> Sample:
        """Run so many calls in the client; return the cost of each."""
        try:
            self._process.stdin.write(f"{count} {window}\n")
            before = self.cpu_ns()
            self._process.stdin.flush()
            done = self._process.stdout.readline()
            spent = self.cpu_ns() - before
        except OSError:
            done = ""
        if not done:
            raise BenchError(self.last_words() or "the client hung up")
        return Sample(spent / count / 1000, 0)


def _frame(id_: int, method: str, params: Mapping[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
