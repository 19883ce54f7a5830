"""A server process with a SQLite store that tests kill and restart, and a raw HTTP client."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
from tests.ports import HeldPort
from tests.processes import PATIENCE, pause_between_writes

from trunkline.wire.sse import SseDecoder

SCRIPT = textwrap.dedent(
    """
    import asyncio, sys
    from trunkline import Context, Server, Settings
    from trunkline.stores.sqlite.store import SqliteStore

    _, path, port, *more = sys.argv
    settings = Settings(stream_retry=0.05, **eval(more[0]) if more else {})
    server = Server("kept", store=SqliteStore(path), settings=settings)

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return name

    @server.tool
    def change(uri: str) -> None:
        server.notify_updated(uri)

    @server.tool
    async def say(ctx: Context) -> None:
        await ctx.info("of no interest")
        await ctx.warning("heard")

    @server.tool
    async def hang(ctx: Context) -> str:
        await ctx.progress(1)
        await ctx.progress(2)
        await asyncio.Event().wait()
        return "never"

    @server.tool
    async def steps(ctx: Context) -> str:
        for step in (1, 2, 3):
            await ctx.progress(step)
        return "done"

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.roots())[0].uri

    server.run("http", port=int(port))
    """
)


class ServerProcess:
    """A server process with a SQLite store; can be killed and restarted at the same address."""

    def __init__(self, path: Path, settings: str = "{}") -> None:
        self._path = path
        self._settings = settings
        self._held = HeldPort()
        self.url = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SCRIPT, str(self._path), str(self._held.number), self._settings]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert " listens at " in line, line + self._process.stderr.read()
        self.url = line.split()[-1]

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def pause(self) -> None:
        """Stop the process, but not within a transaction of its store."""
        await pause_between_writes(self._process.pid, self._path)

    def end(self, number: int = signal.SIGKILL) -> None:
        self.send(number)
        self._process.wait(PATIENCE)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def kill(self) -> None:
        """Kill the process without waiting for it."""
        self._process.kill()

    def restart(self, number: int = signal.SIGKILL) -> None:
        """End the process, by default with `kill -9`, and start it again."""
        self.end(number)
        self.start()


class Stream:
    """An open event stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self._decoder = SseDecoder(1 << 20)
        self._events: list[Any] = []

    async def event(self) -> tuple[str, Any]:
        """The next event: its id and its message; None if it has none, or the stream has ended."""
        async with asyncio.timeout(PATIENCE):
            while not self._events:
                data = await self.response.content.readany()
                if not data:
                    return "", None
                self._events += self._decoder.feed(data)
        event = self._events.pop(0)
        return event.id, json.loads(event.data) if event.data else None

    async def messages(self, count: int) -> list[Any]:
        """The next `count` messages."""
        found: list[Any] = []
        while len(found) < count:
            position, message = await self.event()
            assert (position, message) != ("", None), f"the stream has ended after {found}"
            if message is not None:
                found.append(message)
        return found


class SessionPeer:
    """A raw HTTP client."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._ids = iter(range(1, 1000))
        self.session: str | None = None

    def at(self, url: str) -> "SessionPeer":
        """The same client and session at another address."""
        other = SessionPeer(self._http, url)
        other.session, other._ids = self.session, self._ids
        return other

    def headers(self, **more: str) -> dict[str, str]:
        found = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
        if self.session is not None:
            found["mcp-session-id"] = self.session
        return found | {name.replace("_", "-"): value for name, value in more.items()}

    def post(self, method: str, params: Any = None, *, ident: int | None = None) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if not method.startswith("notifications/"):
            message["id"] = next(self._ids) if ident is None else ident
        return self._http.post(self._url, json=message, headers=self.headers())

    async def call(self, method: str, params: Any = None) -> Any:
        """Return the response to a request, from JSON or from an event stream."""
        async with self.post(method, params) as response:
            if response.content_type == "application/json":
                return await response.json()
            stream = Stream(response)
            while "result" not in (message := (await stream.messages(1))[0]) and "error" not in message:
                pass
            return message

    async def tool(self, name: str, **arguments: Any) -> Any:
        return await self.call("tools/call", {"name": name, "arguments": arguments})

    async def open(self, capabilities: Any = None) -> Self:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities or {},
            "clientInfo": {"name": "hand", "version": "1"},
        }
        async with self.post("initialize", params) as response:
            assert response.status == 200
            self.session = response.headers["mcp-session-id"]
        await self.ready()
        assert "result" in await self.call("ping")  # the server may evict a session that is never used
        return self

    async def ready(self) -> None:
        async with self.post("notifications/initialized") as response:
            assert response.status == 202

    @asynccontextmanager
    async def stream(self, last: str | None = None) -> AsyncIterator[Stream]:
        """Open the GET stream, or resume another one after the event where it broke off."""
        more = {} if last is None else {"last_event_id": last}
        async with self._http.get(self._url, headers=self.headers(**more)) as response:
            assert response.status == 200, await response.text()
            yield Stream(response)

    async def refusal(self, method: str = "ping") -> tuple[int, str]:
        """The status and the error kind of a rejected request."""
        async with self.post(method) as response:
            return response.status, (await response.json())["error"]["data"]["kind"]
