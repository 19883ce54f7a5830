"""Thousands of peers that read or write slowly cost bounded memory, and delay no other client."""

import asyncio
import json
import os
import random
import re
import resource
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.http1.corpus import GET, POST, post
from tests.limits import PATIENCE
from tests.processes import command, eventually

READERS: Final = 300  # more would use up the system's memory for TCP, and slow down all connections
WRITERS: Final = 1_700
DESCRIPTORS: Final = 10_000
SECONDS: Final = 60.0
PACE: Final = 1.0  # seconds between two steps of a slow peer
START: Final = 10.0  # seconds in which they connect first
OPENING: Final = 100  # connections that are opened at once
SIZE: Final = 256 << 10  # bytes of a response that a slow reader asks for
PIPELINED: Final = 32  # such requests on one connection: more than the system buffers
WRITE_TIMEOUT: Final = 30.0  # seconds; the server's default
SMALL_BUFFER: Final = 4 << 10  # of a reader's socket, so that a response does not fit
MOST_BYTES: Final = READERS * 4 * SIZE + (READERS + WRITERS) * (32 << 10)  # an eighth of the responses asked for
NORMAL: Final = 0.25  # seconds; the median of other clients' calls

SERVER: Final = """
    import sys
    if sys.argv[1] == "asyncio":
        sys.modules["uvloop"] = None
    from trunkline import Server, Settings

    server = Server("patient", settings=Settings(http_sessions=False, max_connections=5000))

    @server.tool
    def much(size: int) -> str:
        return "x" * size

    server.run("http", port=0)
"""
CALLER: Final = """
    import http.client, json, sys, threading, time

    port, took = int(sys.argv[1]), []
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not stopped.wait(0.02):
        if len(took) % 10 == 0:
            connection.close()  # every tenth call opens a connection
        start = time.monotonic()
        connection.request("POST", "/mcp", body, headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["result"]) == (200, {}), answer.status
        took.append(time.monotonic() - start)
    connection.close()
    print(json.dumps(took))
"""


class Process(NamedTuple):
    """A server process."""

    pid: int
    port: int

    @property
    def resident(self) -> int:
        """Bytes of memory in use."""
        status = Path(f"/proc/{self.pid}/status").read_text("ascii")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10

    @property
    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@contextmanager
def server_process(loop: str) -> Iterator[Process]:
    """Run a server in a process of its own, which must log no error."""
    with tempfile.TemporaryFile() as log:

        def said() -> str:
            return os.pread(log.fileno(), 1 << 22, 0).decode()

        with subprocess.Popen([*command(SERVER), loop], stderr=log) as process:
            try:
                eventually(lambda: process.poll() is not None or " listens at " in said(), every=0.02)
                found = re.search(r"listens at http://127\.0\.0\.1:(\d+)/", said())
                assert found is not None, said()
                yield Process(process.pid, int(found[1]))
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0, said()
                assert "Traceback" not in said()
            finally:
                process.kill()


@contextmanager
def calling(port: int) -> Iterator[list[float]]:
    """Call the server all the time from another process; fill in how many seconds each call took."""
    took: list[float] = []
    with subprocess.Popen([*command(CALLER), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield took
            took += json.loads(process.communicate(timeout=PATIENCE)[0])
        finally:
            process.kill()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise the descriptor limit of this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS:
        pytest.skip(f"needs {DESCRIPTORS} descriptors, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class SlowPeers:
    """Connections that are opened again whenever the server closes them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opening = asyncio.Semaphore(OPENING)
        self._loop = asyncio.get_running_loop()
        self.connected = 0  # now
        self.ends: Counter[str] = Counter()  # of connections that the server has ended

    async def keep(self, behave: "Callable[[SlowPeers, socket.socket], Awaitable[str]]", delay: float) -> None:
        """Be a slow peer until cancelled, after a delay that spreads the work of the server."""
        await asyncio.sleep(delay)
        while True:
            with socket.socket() as peer:
                peer.setblocking(False)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
                async with self._opening:
                    await self._loop.sock_connect(peer, ("127.0.0.1", self._port))
                self.connected += 1
                try:
                    self.ends[await behave(self, peer)] += 1
                except OSError:
                    self.ends[f"{behave.__name__}: reset"] += 1
                finally:
                    self.connected -= 1

    async def read_slowly(self, peer: socket.socket) -> str:
        """Ask for large responses, and read a few bytes at a time for longer than the server waits; then read the rest.

        A connection that the server has given up looks open until all that was sent before has been read.
        """
        arguments = {"name": "much", "arguments": {"size": SIZE}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}
        await self._loop.sock_sendall(peer, post(json.dumps(call).encode()) * PIPELINED)
        received, end = 0, time.monotonic() + 1.25 * WRITE_TIMEOUT
        while time.monotonic() < end:
            received += len(await self._loop.sock_recv(peer, 100))
            await asyncio.sleep(PACE)
        while received < PIPELINED * SIZE:
            data = await self._loop.sock_recv(peer, 1 << 20)
            if not data:
                return "read_slowly: given up"
            received += len(data)
        return "read_slowly: served"

    async def write_head_slowly(self, peer: socket.socket) -> str:
        """Send the head of a request byte by byte."""
        return await self._write_slowly(peer, GET + b"X-A: " + b"x" * 1000, "write_head_slowly")

    async def write_body_slowly(self, peer: socket.socket) -> str:
        """Send a body byte by byte."""
        await self._loop.sock_sendall(peer, POST + b"Content-Length: 10000\r\n\r\n")
        return await self._write_slowly(peer, b" " * 10_000, "write_body_slowly")

    async def _write_slowly(self, peer: socket.socket, data: bytes, what: str) -> str:
        for byte in data:
            await self._loop.sock_sendall(peer, bytes([byte]))
            await asyncio.sleep(PACE)
            with suppress(BlockingIOError):
                return f"{what}: {peer.recv(1000)[9:12].decode()}"
        return f"{what}: written"


class Observation(NamedTuple):
    """Slow peers and the memory of their server, second by second."""

    connected: list[int]
    resident: list[int]  # bytes
    ends: Counter[str]  # of connections


async def _run_slow_peers(process: Process) -> Observation:
    """Run all slow peers for a while, or until the server uses far too much memory."""
    peers = SlowPeers(process.port)
    kinds = [SlowPeers.read_slowly] * READERS
    kinds += [SlowPeers.write_head_slowly, SlowPeers.write_body_slowly] * (WRITERS // 2)
    delays = [START * number / len(kinds) for number in range(len(kinds))]
    random.Random(len(kinds)).shuffle(delays)
    tasks = [asyncio.create_task(peers.keep(kind, delay)) for kind, delay in zip(kinds, delays, strict=True)]
    seen = Observation([], [], peers.ends)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and max(seen.resident, default=0) < 2 * MOST_BYTES:
        await asyncio.sleep(PACE)
        seen.connected.append(peers.connected)
        seen.resident.append(process.resident)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [error for error in ended if not isinstance(error, asyncio.CancelledError)] == []
    return seen


def _summary(took: list[float]) -> str:
    cuts = statistics.quantiles(took, n=100)
    return f"{len(took)} calls, median {cuts[49] * 1e3:.1f} ms, 99 % {cuts[98] * 1e3:.1f} ms, most {max(took) * 1e3:.1f} ms"


@pytest.mark.long
@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_slow_peers_cost_bounded_memory_and_delay_no_other_client(loop: str) -> None:
    with server_process(loop) as process:
        with calling(process.port) as alone:
            time.sleep(5.0)
        resident, descriptors = process.resident, process.descriptors
        with calling(process.port) as beside:
            seen = asyncio.run(_run_slow_peers(process))
        eventually(lambda: process.descriptors <= descriptors)
        after = process.resident
    connected, most = statistics.median(seen.connected), max(seen.resident)
    print(f"\n{loop}, {connected:g} slow peers at a time; ends of their connections: {dict(sorted(seen.ends.items()))}")
    print(f"memory: {resident >> 20} MiB before, {most >> 20} MiB at most, {after >> 20} MiB afterwards")
    print(f"alone: {_summary(alone)}\nbeside: {_summary(beside)}")
    assert most - resident <= MOST_BYTES
    assert statistics.median(beside) < NORMAL
    assert connected > 0.9 * (READERS + WRITERS)
    assert seen.ends["write_head_slowly: 408"] > 0
    assert seen.ends["write_body_slowly: 408"] > 0
    assert seen.ends["read_slowly: given up"] + seen.ends["read_slowly: reset"] > 0
