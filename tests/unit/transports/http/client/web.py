"""A web server played by hand, byte by byte: for answers that no proper server would give, and for lines that break.

It speaks enough of MCP to get a client going; what a test has to say about a method, or about GET and DELETE, comes first.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.limits import PATIENCE

from trunkline.testing import ScriptedServer, Transcript
from trunkline.wire import sse

SESSION = "session-1"
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}


class Visit:
    """One request, and the connection that it came on."""

    def __init__(
        self, web: "Web", head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.web = web
        self.verb, self.path, _ = first.split(" ")
        self.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
        }
        self.body = body
        self.message: Any = json.loads(body) if body else {}
        self.method: str = self.message.get("method", "") if isinstance(self.message, dict) else ""
        self.at = asyncio.get_running_loop().time()
        self._reader = reader
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Says something, as it stands."""
        self._writer.write(data)

    def respond(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        """A whole answer."""
        told = {"Content-Type": kind} if body else {}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        self.write(f"HTTP/1.1 {status} Said\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def reply(self, result: Any, **headers: str) -> None:
        """A result, as JSON."""
        self.respond(200, self.answer(result), **headers)

    def answer(self, result: Any) -> bytes:
        """The message that answers this one."""
        return json.dumps({"jsonrpc": "2.0", "id": self.message["id"], "result": result}).encode()

    def stream(self, data: bytes = b"", **headers: str) -> None:
        """The beginning of a stream of events, which ends with its connection."""
        told = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n{told}\r\n".encode())
        self.write(data)

    def chunked(self) -> None:
        """The beginning of a stream in chunks, as servers write them."""
        self.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        """One of them; the last has nothing in it."""
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """Closes this direction only."""
        self._writer.write_eof()

    def hang_up(self) -> None:
        """Ends the connection in good order."""
        self._writer.close()

    def reset(self) -> None:
        """Ends it in none."""
        self._writer.transport.abort()

    async def left(self) -> None:
        """Waits until the client has gone."""
        with contextlib.suppress(ConnectionError):
            await self._reader.read()


Handler = Callable[[Visit], Awaitable[None] | None]


class Web:
    """A server, and everything that it was asked."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.visits: list[Visit] = []
        self.session: str | None = SESSION
        self.revision = "2025-11-25"
        self.connections = 0
        self.open = 0
        self.transcript = Transcript()
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._tls = tls
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def on(self, what: str, handler: Handler) -> None:
        """What to do about a method, "GET", "DELETE" or "POST" for any message."""
        self._handlers[what] = handler

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self._tls)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/mcp"

    def seen(self, what: str) -> list[Visit]:
        """The visits of a method or a verb."""
        return [visit for visit in self.visits if what in {visit.method, visit.verb}]

    async def visited(self, what: str, times: int = 1) -> Visit:
        """Waits until something has been asked so often."""
        async with asyncio.timeout(PATIENCE):
            while len(self.seen(what)) < times:
                self._news.clear()
                await self._news.wait()
        return self.seen(what)[times - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while not writer.is_closing():
                    head = await reader.readuntil(b"\r\n\r\n")
                    await self._one(head, reader, writer)
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        visit = Visit(self, head, await reader.readexactly(length), reader, writer)
        self.visits.append(visit)
        self._news.set()
        if visit.body:
            self.transcript.frames.append(("client", visit.body))
        handler = self._handlers.get(visit.method) or self._handlers.get(visit.verb) or self.usual
        outcome = handler(visit)
        if outcome is not None:
            await outcome

    def usual(self, visit: Visit) -> None:
        """What a plain server answers."""
        match visit.verb, visit.method:
            case "GET", _:
                visit.respond(405)
            case "DELETE", _:
                visit.respond(204)
            case _, "initialize":
                self.greet(visit)
            case _, "tools/list":
                visit.reply({"tools": [{"name": "act", "inputSchema": {"type": "object"}}]})
            case _, "tools/call":
                visit.reply({"content": [{"type": "text", "text": visit.message["params"]["name"]}]})
            case _ if "id" in visit.message and visit.method:
                visit.reply({})
            case _:
                visit.respond(202)

    def greeting(self) -> dict[str, Any]:
        return {
            "protocolVersion": self.revision,
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": "web", "version": "1"},
        }

    def greet(self, visit: Visit) -> None:
        answer = visit.answer(self.greeting())
        self.transcript.frames.append(("server", answer))
        visit.respond(200, answer, **({"Mcp_Session_Id": self.session} if self.session else {}))


@contextlib.asynccontextmanager
async def web(tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    """A server for a while. What clients said to it is judged, as if it had been said to a scripted one."""
    made = Web(tls)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
        for tap in ScriptedServer.taps:
            tap(made.transcript)


def event(data: bytes, **members: Any) -> bytes:
    """The bytes of an event."""
    return sse.encode_event(data, **members)
