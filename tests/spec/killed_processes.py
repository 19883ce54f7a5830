"""Server processes to be killed. They are forked from one process that has imported everything, so each starts fast.

async with forked_servers(store, process_lease=1.0) as servers:
    [process] = await servers.start(1)      # it runs a task, and has a session
    process.kill()
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import aiohttp
from tests.limits import PATIENCE
from tests.ports import HeldPort

__all__ = ["REVISION", "ForkedServers", "KilledProcess", "forked_servers", "headers", "posted"]

PROGRAM = """
import asyncio, os, signal, sys
from trunkline import Server, Settings, TaskPolicy
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore

def serve(port):
    place, prefix, lease = sys.argv[1], sys.argv[2], float(sys.argv[3])
    store = RedisStore(place, prefix=prefix) if prefix else SqliteStore(place)
    server = Server("takeover", store=store, settings=Settings(process_lease=lease, task_lease=1000), observers=[])

    @server.tool(task=TaskPolicy(recovery="restart", attempts=100))
    async def work(number: int) -> None:
        os.write(1, b"begun %d %d\\n" % (number, os.getpid()))
        await asyncio.Event().wait()

    server.run("http", port=port)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if (pid := os.fork()) == 0:
        serve(int(line))
        os._exit(0)
    os.write(1, b"forked %d %d\\n" % (int(line), pid))
"""
"""The tool has many attempts: of several processes that are killed together, one may have taken over the task of
another, and each takeover counts."""
REVISION = "2025-11-25"


def headers(session: str = "") -> dict[str, str]:
    """The headers of a request."""
    return {"accept": "application/json, text/event-stream"} | (
        {"mcp-session-id": session, "mcp-protocol-version": REVISION} if session else {}
    )


async def posted(
    http: aiohttp.ClientSession, url: str, method: str, params: Any, session: str = "", *, ident: int = 1
) -> tuple[int, Any, str]:
    """Post a request; return the status, the response, and the id of the session."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if not method.startswith("notifications/"):
        message["id"] = ident
    async with http.post(url, json=message, headers=headers(session)) as answer:
        body = await answer.json() if answer.content_type == "application/json" else {}
        return answer.status, body, answer.headers.get("mcp-session-id", "")


class KilledProcess(NamedTuple):
    """A process that runs a task and holds a session."""

    number: int  # an argument of its task
    pid: int
    session: str

    def kill(self) -> None:
        """Kill it, like the kernel or an operator."""
        os.kill(self.pid, signal.SIGKILL)


class ForkedServers:
    """Starts server processes, one after another or several at once."""

    def __init__(self, process: asyncio.subprocess.Process, http: aiohttp.ClientSession) -> None:
        self._process = process
        self._http = http
        self._told: dict[tuple[str, int], asyncio.Future[int]] = {}  # by event and its number, a process
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            what, number, pid = line.decode().split()
            told = self._told.get((what, int(number)))
            if told is not None and not told.done():
                told.set_result(int(pid))

    def _next(self, what: str, number: int) -> "asyncio.Future[int]":
        told = self._told[what, number] = asyncio.get_running_loop().create_future()
        return told

    async def start(self, *numbers: int) -> list[KilledProcess]:
        """Start a process for each number."""
        async with asyncio.timeout(len(numbers) * PATIENCE):
            return await asyncio.gather(*map(self._start, numbers))

    async def _start(self, number: int) -> KilledProcess:
        """Start a process, or another one if it was evicted before its task began, as on a busy machine."""
        assert self._process.stdin is not None
        while True:
            held = HeldPort()
            forked, begun = self._next("forked", held.number), self._next("begun", number)
            self._process.stdin.write(b"%d\n" % held.number)
            url = f"http://127.0.0.1:{held.number}/mcp"
            session = await self._session(url)
            call = {"name": "work", "arguments": {"number": number}, "task": {"ttl": 600_000}}
            _, created, _ = await posted(self._http, url, "tools/call", call, session)
            if "result" in created:
                await begun
                return KilledProcess(number, await forked, session)
            os.kill(await forked, signal.SIGKILL)

    async def _session(self, url: str) -> str:
        hello = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        while True:
            with suppress(aiohttp.ClientConnectionError):
                _, answer, session = await posted(self._http, url, "initialize", hello)
                if session:
                    await posted(self._http, url, "notifications/initialized", {}, session)
                    return session
                assert answer["error"]["data"]["kind"] == "temporarily_unavailable", answer
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """End the process that forks, and all that it has forked."""
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def forked_servers(
    place: str, prefix: str, process_lease: float, http: aiohttp.ClientSession
) -> AsyncIterator[ForkedServers]:
    """Servers on the store at a path, or at the URL of a Redis with a prefix."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM, place, prefix, str(process_lease)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    servers = ForkedServers(process, http)
    try:
        yield servers
    finally:
        await servers.close()
