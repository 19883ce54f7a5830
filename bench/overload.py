"""A tool that is limited to 100 calls per second, offered ten times as many over HTTP: `python -m bench.overload`.

The driver sends a call every millisecond, whether or not the earlier ones are answered, and waits for all answers. A
time counts from the moment at which a call was due, so a server that falls behind cannot hide it. Bars hold for our own
server: at least 90 calls per second succeed, 99 of 100 admitted calls meet their deadline, a refusal takes less than
5 ms, a call costs the server less than 5 ms of CPU time, every refusal says when to try again, and every call is
answered once. On a busy machine driver and server wait for a CPU; that time is printed, and deducted from the time in
which calls had to succeed; the time of refusals has no bar then. Peers have their own middleware, or none.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from bench.environments import ROOT, CannotInstall, Environments

LIMIT: Final = 100  # calls per second
OFFERED: Final = 1000
WANTED: Final = 90
DEADLINE: Final = 5.0  # seconds, for an admitted call, which needs a millisecond on an idle machine
REFUSAL_TIME: Final = 0.005  # seconds
REFUSAL_CPU: Final = 0.005
QUIET: Final = 0.05  # of the time, for which driver and server may wait for a CPU on a machine that is not busy
CONNECTIONS: Final = 64
PATIENCE: Final = 60.0

TARGETS: Final[dict[str, tuple[str, str, dict[str, str]]]] = {  # environment, script and variables
    "trunkline": ("trunkline", "server.py", {"BENCH_GUARD": "overload"}),
    "trunkline, http_rate": ("trunkline", "server.py", {"BENCH_HTTP_RATE": f"{LIMIT}/s"}),
    "mcp, no limit": ("mcp", "peers/mcp_server.py", {}),
    "fastmcp": ("fastmcp", "peers/fastmcp_server.py", {"BENCH_GUARD": "overload"}),
}

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RETRY: Final = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE)
_SESSION: Final = re.compile(rb"\r\nmcp-session-id: *([^\r]+)", re.IGNORECASE)
_DATA: Final = re.compile(rb"data: *(\{.*\})")


@dataclass
class Answer:
    """The answer to a call."""

    took: float  # since it was due
    admitted: bool
    advised: bool  # a refusal says when to try again


@dataclass
class Figures:
    """What became of the calls to one server."""

    sent: int = 0
    seconds: float = 0.0  # until the last call was sent
    drained: float = 0.0  # and until it was answered
    cpu: float = 0.0  # of the server, in seconds
    starved: float = 0.0  # of driver and server
    answers: list[Answer] = field(default_factory=list[Answer])
    duplicates: int = 0
    broken: int = 0  # connections that the server closed, or answers that are no answers

    def times(self, *, admitted: bool) -> list[float]:
        """The times of admitted or refused calls."""
        return sorted(answer.took for answer in self.answers if answer.admitted is admitted)

    @property
    def lost(self) -> int:
        """The number of calls without an answer."""
        return self.sent - len(self.answers)

    def missed_bars(self) -> list[str]:
        """The bars that our own server misses."""
        admitted, refused = self.times(admitted=True), [answer for answer in self.answers if not answer.admitted]
        seconds = max(0.0, self.seconds - self.starved)
        quick = _centile(self.times(admitted=False), 50) < REFUSAL_TIME or self.starved > QUIET * self.seconds
        bars = {
            f"at least {WANTED} calls/s succeed": len(admitted) >= WANTED * seconds,
            f"at most the limit of {LIMIT} calls/s and its burst": len(admitted) <= LIMIT * (self.drained + 1) + 1,
            "p99 of admitted calls meets the deadline": _centile(admitted, 99) < DEADLINE,
            "half of the refusals take less than 5 ms, on a machine that is not busy": quick,
            "a call costs less than 5 ms of CPU time": self.cpu < REFUSAL_CPU * self.sent,
            "every refusal says when to try again": bool(refused) and all(answer.advised for answer in refused),
            "every call is answered once": not (self.lost or self.duplicates or self.broken),
        }
        return [bar for bar, met in bars.items() if not met]


class Connection(asyncio.Protocol):
    """One connection with a session: a call at a time."""

    def __init__(self, port: int) -> None:
        self.session = b""
        self._port = port
        self._buffer = b""
        self._waiter: asyncio.Future[tuple[bytes, bytes]] | None = None
        self._transport: asyncio.Transport | None = None
        self.unexpected = 0  # answers that no call waits for

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (answer := self._cut()) is not None:
            waiter, self._waiter = self._waiter, None
            if waiter is None or waiter.done():
                self.unexpected += 1
            else:
                waiter.set_result(answer)

    def _cut(self) -> tuple[bytes, bytes] | None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        if found := _LENGTH.search(head):
            size = int(found[1])
        elif b"chunked" in head.lower():
            last = rest.find(b"0\r\n\r\n") if rest.startswith(b"0\r\n\r\n") else rest.find(b"\r\n0\r\n\r\n") + 2
            size = -1 if last == 1 else last + 5
        else:
            size = 0
        if size < 0 or len(rest) < size:
            return None
        self._buffer = rest[size:]
        return head, rest[:size]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def post(self, message: dict[str, Any]) -> tuple[bytes, bytes]:
        """Send a message; return the head and the body of the response."""
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        body = json.dumps(message).encode()
        session = b"mcp-session-id: %b\r\nmcp-protocol-version: 2025-11-25\r\n" % self.session if self.session else b""
        self._transport.write(
            b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"accept: application/json, text/event-stream\r\n%bcontent-length: %d\r\n\r\n%b"
            % (self._port, session, len(body), body)
        )
        async with asyncio.timeout(PATIENCE):
            return await self._waiter

    async def initialize(self) -> None:
        """Open a session, and wait where a limit applies to that, too."""
        client = {"name": "overload", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        while not self.session:
            head, _ = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
            if found := _SESSION.search(head):
                self.session = found[1]
            else:
                await asyncio.sleep(0.2)
        while not (await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}))[0].startswith(
            (b"HTTP/1.1 2",)
        ):
            await asyncio.sleep(0.2)


class Load:
    """Calls at fixed times, over connections that take turns."""

    def __init__(self, port: int) -> None:
        self.figures = Figures()
        self._port = port
        self._idle: deque[Connection] = deque()
        self._queue: deque[tuple[int, float]] = deque()  # calls that are due: no connection is idle
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        """Offer calls for some seconds, and wait for their answers."""
        loop = asyncio.get_running_loop()
        connections: list[Connection] = []
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_connection(lambda: Connection(self._port), "127.0.0.1", self._port)
            connections.append(connection)
            await connection.initialize()
        await asyncio.sleep(1.1)  # a full bucket
        self._idle.extend(connections)
        began = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            while self.figures.sent < (now - began) * OFFERED:
                self.figures.sent += 1
                self._queue.append((self.figures.sent, began + self.figures.sent / OFFERED))
            self._send()
            await asyncio.sleep(0.001)
        self.figures.seconds = time.perf_counter() - began
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._calls or (self._queue and self._idle):
                    self._send()
                    await asyncio.wait(self._calls)
        self.figures.drained = time.perf_counter() - began
        self.figures.duplicates = sum(connection.unexpected for connection in connections)
        for connection in connections:
            connection.close()

    def _send(self) -> None:
        while self._queue and self._idle:
            call = asyncio.create_task(self._call(self._idle.popleft(), *self._queue.popleft()))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, connection: Connection, number: int, due: float) -> None:
        params = {"name": "echo", "arguments": {"text": f"hello {number}"}}
        asked = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        try:
            head, body = await connection.post(asked)
            took = time.perf_counter() - due
            self.figures.answers.append(_answer(number, head, body, took))
        except (OSError, TimeoutError, ValueError, LookupError):
            self.figures.broken += 1
            return
        self._idle.append(connection)


def _answer(number: int, head: bytes, body: bytes, took: float) -> Answer:
    if head.startswith(b"HTTP/1.1 429"):
        return Answer(took, admitted=False, advised=_RETRY.search(head) is not None)
    found = _DATA.search(body)
    message = json.loads(found[1] if found else body)
    if message["id"] != number:
        raise ValueError(f"the answer is for {message['id']}, not for {number}")
    if "error" in message:
        data = message["error"].get("data") or {}
        return Answer(took, admitted=False, advised="retryAfterMs" in data)
    result = message["result"]
    if result.get("isError"):
        refusal = result.get("_meta", {}).get("trunkline/refusal", {})
        return Answer(took, admitted=False, advised=refusal.get("retryAfterMs", 0) > 0)
    if result["content"][0]["text"] != f"hello {number}":
        raise ValueError(f"the answer to {number} has another text")
    return Answer(took, admitted=True, advised=False)


def _centile(times: list[float], number: int) -> float:
    return quantiles(times, n=100, method="inclusive")[number - 1] if len(times) > 1 else float("nan")


def _cpu(pid: int) -> float:
    """The CPU time of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _starved(*pids: int) -> float:
    """The time that processes have waited for a CPU so far."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9


def measure(command: Sequence[str], environment: dict[str, str], seconds: float) -> Figures:
    """Start a server and load it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    env = os.environ | environment
    with subprocess.Popen(
        [*command, "http", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    ) as server:
        try:
            _wait_until_listening(port, server)
            load = Load(port)
            cpu, starved = _cpu(server.pid), _starved(os.getpid(), server.pid)
            asyncio.run(load.run(seconds))
            load.figures.cpu = _cpu(server.pid) - cpu
            load.figures.starved = _starved(os.getpid(), server.pid) - starved
            return load.figures
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait_until_listening(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise OSError("the server does not start")
        time.sleep(0.05)


def _line(name: str, figures: Figures) -> str:
    admitted, refused = figures.times(admitted=True), figures.times(admitted=False)
    cells = [
        f"{figures.sent / figures.seconds:,.0f}",
        f"{len(admitted) / figures.drained:.1f}",
        f"{figures.drained:.1f}",
        *(f"{_centile(times, number) * 1000:,.1f}" for times in (admitted, refused) for number in (50, 99)),
        f"{sum(not answer.advised for answer in figures.answers if not answer.admitted):,}",
        f"{figures.lost:,}",
        f"{figures.duplicates:,}",
        f"{figures.cpu / figures.sent * 1e6:,.0f}",
        f"{figures.starved:.1f}",
    ]
    return f"  {name:<24}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


_HEADINGS: Final = (
    *("offered/s", "admitted/s", "until s", "p50 ms", "p99 ms", "refused p50", "p99 ms", "no advice", "lost", "twice"),
    *("CPU µs", "starved s"),
)
_WIDTHS: Final = tuple(max(9, len(heading) + 2) for heading in _HEADINGS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; the exit status is 1 if our own server misses a bar."""
    parser = argparse.ArgumentParser(description="Offers servers ten times the calls that they admit.")
    parser.add_argument("--python", default=sys.executable, help="the CPython that every server runs on")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--targets", default="", help="only targets whose name contains this")
    parser.add_argument("--here", action="store_true", help="run our own server in this environment")
    options = parser.parse_args(arguments)
    environments, missed = Environments(options.python), False
    heading = f"overload: {LIMIT} calls/s allowed, {options.seconds:g} s"
    print(f"{heading:<26}" + "".join(f"{head:>{width}}" for head, width in zip(_HEADINGS, _WIDTHS, strict=True)))
    for name, (environment, script, variables) in TARGETS.items():
        if options.targets not in name:
            continue
        ours = name.startswith("trunkline")
        try:
            python = options.python if ours and options.here else str(environments.interpreter(environment))
            figures = measure([python, str(ROOT / "bench" / script)], variables, options.seconds)
        except (CannotInstall, OSError) as error:
            print(f"  {name:<24}not measured: {str(error).strip().rpartition(chr(10))[2][:120]}", flush=True)
            missed |= ours
            continue
        print(_line(name, figures), flush=True)
        for bar in figures.missed_bars() if ours else ():
            print(f"  FAIL {name}: {bar}", flush=True)
            missed = True
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
