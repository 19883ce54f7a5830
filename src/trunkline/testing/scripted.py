"""A server that a test scripts: it records every frame of a client, and the test chooses the responses.

    server = ScriptedServer(tools=[{"name": "add", "inputSchema": {"type": "object"}}])
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("add"))
        request = await server.line.request("tools/call")
        server.line.reply(request, {"content": []})

Handshakes, pings and tool lists have automatic responses; other messages wait until the test reads them. A test can
close a connection at any time, and refuse the next one.

By default it speaks the handshake era: it rejects the client's era probe, and does not record it. With `modern=True` it
speaks the modern era, and the probe is a message like any other; `server/discover` and `subscriptions/listen` then have
automatic responses.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, cast

from trunkline.errors import MethodNotFound, TransportError
from trunkline.protocol.client_envelope import PROBE_ID
from trunkline.protocol.meta import SERVER_INFO, SUBSCRIPTION_ID
from trunkline.protocol.revisions import SUPPORTED_VERSIONS
from trunkline.testing.peer import Transcript
from trunkline.transports.channel import Accept, Channel, ChannelClosed
from trunkline.transports.memory import MemoryChannel
from trunkline.wire import codec

__all__ = ["ScriptedLine", "ScriptedServer"]

_read: Callable[[bytes], Any] = codec.decoder(cast("type[Any]", object))
_ALL_CAPABILITIES: Mapping[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "logging": {},
    "completions": {},
}
_INFO: Mapping[str, Any] = {"name": "scripted", "version": "1"}
_AUTO_ANSWERED = ("initialize", "ping", "tools/list")
_AUTO_ANSWERED_MODERN = ("server/discover", "tools/list", "subscriptions/listen")


class ScriptedServer:
    """Connector to a server that a test scripts."""

    name = "a scripted server"
    taps: ClassVar[list[Callable[[Transcript], None]]] = []
    """Callbacks for the transcript of every closed connection; a test suite can check all of its clients here."""

    def __init__(
        self,
        *,
        capabilities: Mapping[str, Any] = _ALL_CAPABILITIES,
        tools: Iterable[Mapping[str, Any]] = (),
        revision: str | None = None,
        modern: bool = False,
        answered: Iterable[str] | None = None,
        patience: float = 10.0,
    ) -> None:
        """`answered` are the methods with automatic responses; `revision` replaces the requested one; `modern` selects
        the modern era."""
        self.capabilities = dict(capabilities)
        self.tools = list(tools)
        self.revision = revision
        self.modern = modern
        self.answered = set((_AUTO_ANSWERED_MODERN if modern else _AUTO_ANSWERED) if answered is None else answered)
        self.lines: list[ScriptedLine] = []
        self.refusals: list[TransportError] = []  # errors for the next attempts to connect
        self.patience = patience
        self._connected = asyncio.Event()

    async def connect(self, accept: Accept) -> Channel:
        """Open a connection, or raise the next refusal."""
        if self.refusals:
            raise self.refusals.pop(0)
        line = ScriptedLine(self)
        self.lines.append(line)
        line.channel.open(accept(line.channel))
        self._connected.set()
        return line.channel

    @property
    def line(self) -> "ScriptedLine":
        """The latest connection."""
        return self.lines[-1]

    async def connected(self, times: int) -> "ScriptedLine":
        """Wait for a number of connections; return the last of them."""
        async with asyncio.timeout(self.patience):
            while len(self.lines) < times:
                self._connected.clear()
                await self._connected.wait()
        return self.lines[times - 1]


class ScriptedLine:
    """The server end of one connection."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self.transcript = Transcript()
        self.closed: ChannelClosed | None = None
        self.channel = MemoryChannel("scripted server")
        self.channel.connect_to(self)
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    # --- what the client says ------------------------------------------------------------------

    def put(self, frame: bytes) -> None:
        """Accept a frame from the client; answer it automatically, or queue it for the test."""
        decoded: Any = _read(frame)
        message = cast("dict[str, Any]", decoded if isinstance(decoded, dict) else {})
        method = message.get("method")
        if message.get("id") == PROBE_ID and not self._server.modern:
            self._reject_probe(message)
            return
        self.transcript.frames.append(("client", frame))
        if method not in self._server.answered or "id" not in message:
            self._inbox.put_nowait(decoded)
        elif method == "subscriptions/listen":
            self.acknowledge(message)
        else:
            self.reply(message, self._default_result(method, message.get("params") or {}))

    def _reject_probe(self, probe: Mapping[str, Any]) -> None:
        error = {"code": MethodNotFound.code, "message": "method not found: server/discover"}
        self.channel.put(codec.to_json({"jsonrpc": "2.0", "id": probe["id"], "error": error}))

    def _default_result(self, method: str, params: Mapping[str, Any]) -> Any:
        server = self._server
        match method:
            case "initialize":
                return {
                    "protocolVersion": server.revision or params["protocolVersion"],
                    "capabilities": server.capabilities,
                    "serverInfo": _INFO,
                }
            case "server/discover":
                return self.complete(
                    supportedVersions=list(SUPPORTED_VERSIONS),
                    capabilities=server.capabilities,
                    ttlMs=0,
                    cacheScope="private",
                )
            case "tools/list" if server.modern:
                return self.complete(tools=server.tools, ttlMs=0, cacheScope="private")
            case "tools/list":
                return {"tools": server.tools}
            case _:
                return {}

    @staticmethod
    def complete(**members: Any) -> dict[str, Any]:
        """Return a complete result of the modern era, with `serverInfo`."""
        return {"resultType": "complete", "_meta": {SERVER_INFO: _INFO}, **members}

    def acknowledge(self, listen: Mapping[str, Any]) -> None:
        """Acknowledge all notifications that a `subscriptions/listen` request wants; the request stays open."""
        params = {"notifications": listen["params"]["notifications"], "_meta": {SUBSCRIPTION_ID: listen["id"]}}
        self.notify("notifications/subscriptions/acknowledged", params)

    @property
    def untaken(self) -> int:
        """Always 0: the connection consumes each frame immediately."""
        return 0

    async def eased(self) -> None:
        """Return at once, since nothing is left."""

    def end(self, closed: ChannelClosed) -> None:
        """Record that the client closed the connection."""
        self._record_close(closed)

    def _record_close(self, closed: ChannelClosed) -> None:
        if self.closed is None:
            self.closed = closed
            for tap in self._server.taps:
                tap(self.transcript)

    async def receive(self) -> Any:
        """Return the next unread message."""
        async with asyncio.timeout(self._server.patience):
            return await self._inbox.get()

    async def request(self, method: str) -> Any:
        """Return the next message of a method; skip others."""
        while (message := await self.receive()).get("method") != method:
            pass
        return message

    def waiting(self) -> list[Any]:
        """Return all unread messages."""
        return [self._inbox.get_nowait() for _ in range(self._inbox.qsize())]

    # --- what we say ---------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any] | list[Any] | bytes) -> None:
        """Send a message, or a frame as it is."""
        frame = message if isinstance(message, bytes) else codec.to_json(message)
        self.transcript.frames.append(("server", frame))
        self.channel.put(frame)

    def reply(self, request: Mapping[str, Any], result: Any) -> None:
        """Answer a request."""
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def error(self, request: Mapping[str, Any], code: int, message: str, data: Any = None) -> None:
        """Answer a request with an error."""
        error_object = {"code": code, "message": message} | ({} if data is None else {"data": data})
        self.send({"jsonrpc": "2.0", "id": request["id"], "error": error_object})

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))

    async def call(self, method: str, params: Any = None, *, id: int | str = "s1") -> Any:  # noqa: A002
        """Send a request to the client and return its response."""
        self.send({"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params}))
        passed: list[Any] = []
        while (message := await self.receive()).get("id") != id or "method" in message:
            passed.append(message)
        for other in passed:
            self._inbox.put_nowait(other)
        return message

    def die(self, reason: str = "the server died", *, status: int | None = None, last_words: str = "") -> None:
        """Close the connection as a crashed server does."""
        closed = ChannelClosed(reason, status=status, last_words=last_words)
        self._record_close(closed)
        self.channel.end(closed)
