"""Abandoned sessions use memory, and space in a file, only until they expire."""

import contextlib
import json
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.processes import eventually

from trunkline.transports.addresses import parse_address

SCRIPT = """
import asyncio, gc, os, sys, time
from trunkline import Server, Settings
from trunkline.stores.sqlite.store import SqliteStore

class Clock:
    ahead = 0.0
    def now(self):
        return time.monotonic() + self.ahead  # from whichever thread
    def call_at(self, when, action):
        return asyncio.get_running_loop().call_at(when - self.ahead, action)

clock = Clock()
settings = Settings(session_ttl=1000.0, session_sweep=0.5, max_sessions=30_000, max_sessions_per_address=None)
store = SqliteStore(sys.argv[2], clock=clock, synchronous="NORMAL") if sys.argv[2:] else None
server = Server("memory", settings=settings, clock=clock, store=store)

@server.tool
async def skip(seconds: float) -> str:
    "Let time pass."
    clock.ahead += seconds
    return "ok"

@server.tool
async def sessions() -> dict[str, int]:
    "How many there are."
    return {"sessions": len(server.connections)}

@server.tool
async def state() -> dict[str, int]:
    "What the process holds, but for the request that asks, which may have waited for something or not."
    tasks = [task for task in asyncio.all_tasks() if task.get_coro().__name__ != "_resumed"]
    gc.collect()
    with open("/proc/self/statm") as figures:
        memory = int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "sessions": len(server.connections),
        "tasks": len(tasks),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "blocks": sys.getallocatedblocks(),
        "memory": memory,
    }

server.run("http", port=int(sys.argv[1]))
"""
TTL = 1001.0
SESSIONS = 10_000
KEPT_SESSIONS = 400  # one after another, each with a commit
FEWER_SESSIONS = 1_000
COUNTED = ("sessions", "tasks", "descriptors")
"""`blocks` are those in use, which a leak would show in. `memory` is what the system gives: Python gives it back by the
megabyte, so that one object that lives on holds it, and how much that is differs from one round to the next."""
BLOCK = 200  # requests that are sent at once
INITIALIZE = {
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}},
}
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
SESSION = re.compile(rb"\r\nmcp-session-id: ([^\r]+)\r\n")


class HttpConnection:
    """One connection. Requests go in blocks, without waiting for each response."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def post(self, requests: Sequence[tuple[dict, str]]) -> list[tuple[bytes, bytes]]:
        """Post messages, each with a session or without; return heads and bodies of the responses."""
        self._socket.sendall(b"".join(self._request(message, session) for message, session in requests))
        return [self._answer() for _ in requests]

    def _request(self, message: dict, session: str) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        named = f"Mcp-Session-Id: {session}\r\n" if session else ""
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{named}"
            f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _answer(self) -> tuple[bytes, bytes]:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            assert line, "the server hung up"
            head += line
        length = LENGTH.search(head)
        assert length is not None
        return head, self._file.read(int(length[1]))

    def open_sessions(self, count: int) -> list[str]:
        answers = self.post([({"id": 1, **INITIALIZE}, "")] * count)
        found = [SESSION.search(head) for head, _ in answers]
        assert all(found), answers[0]
        return [match[1].decode() for match in found if match]

    def call(self, session: str, tool: str, arguments: dict) -> dict:
        message = {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        [(_, body)] = self.post([(message, session)])
        return json.loads(body)["result"]["structuredContent"]


@contextlib.contextmanager
def line_to(port: int) -> Iterator[HttpConnection]:
    line = HttpConnection(port)
    try:
        yield line
    finally:
        line.close()


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[int]:
    """Start a server in a child process; return its port."""
    command = [sys.executable, "-c", SCRIPT, "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stderr.readline()
        assert "listens at" in said, said + process.stderr.read()
        yield parse_address(said.split()[-1]).port
    finally:
        process.kill()
        process.communicate()


def open_and_abandon(port: int, count: int) -> None:
    with line_to(port) as line:
        opened = [session for _ in range(count // BLOCK) for session in line.open_sessions(BLOCK)]
        assert len(set(opened)) == count
        (last,) = line.open_sessions(1)
        assert line.call(last, "state", {})["sessions"] >= count  # all of them at once
        line.call(last, "skip", {"seconds": TTL})


def settled(port: int, before: dict | None = None) -> dict:
    """Wait until all other sessions and their connections have ended: no more sessions, tasks and descriptors than
    before.
    """

    def at_rest() -> dict | None:
        if line.call(asking, "sessions", {})["sessions"] != 1:
            return None
        state = line.call(asking, "state", {})
        return None if before and any(state[kind] > before[kind] for kind in COUNTED) else state

    with line_to(port) as line:
        (asking,) = line.open_sessions(1)
        return eventually(at_rest)


def abandoned(port: int, count: int) -> list[dict]:
    """Assert that three rounds of many sessions leave no more memory than a few sessions."""
    open_and_abandon(port, BLOCK)  # one-time allocations happen now
    before = settled(port)
    after = []
    for _ in range(3):
        open_and_abandon(port, count)
        after.append(settled(port, before))
    return after


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
def test_abandoned_sessions_are_freed() -> None:
    with serving() as port:
        abandoned(port, FEWER_SESSIONS)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
def test_thirty_thousand_abandoned_sessions_leak_no_memory() -> None:
    with serving() as port:
        after = abandoned(port, SESSIONS)
    assert after[2]["blocks"] <= 1.05 * after[0]["blocks"]
    assert after[2]["memory"] <= 1.25 * after[0]["memory"]  # Python keeps a part of the memory it frees, see COUNTED


@pytest.mark.row("D06")
@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
def test_abandoned_durable_sessions_are_freed(tmp_path: Path) -> None:
    file = tmp_path / "kept.db"
    with serving(str(file)) as port:
        after = abandoned(port, KEPT_SESSIONS)
    assert after[2]["blocks"] <= 1.01 * after[0]["blocks"]
    with contextlib.closing(sqlite3.connect(file)) as kept:
        expiring = "SELECT count(*), sum(expires IS NULL) FROM items WHERE key LIKE 'session/%'"
        there, for_ever = kept.execute(expiring).fetchone()
    assert there <= 3 * KEPT_SESSIONS + BLOCK + 8  # until the store sweeps them
    assert not for_ever
