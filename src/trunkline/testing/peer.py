"""A client that a test drives by hand: it sends raw frames to a server, and records every frame that comes back.

    async with RawPeer(server) as peer:
        await peer.initialize()
        answer = await peer.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
        assert answer["result"]["structuredContent"] == {"result": 3}

It checks nothing that it sends, so a test can send invalid messages.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, ClassVar, Self, cast

from trunkline.server.connection import Connection
from trunkline.server.server import Server
from trunkline.transports.channel import ChannelClosed, MessageOrigin
from trunkline.transports.memory import MemoryChannel
from trunkline.wire import codec

__all__ = ["RawPeer", "Transcript"]

_read: Callable[[bytes], Any] = codec.decoder(cast("type[Any]", object))


class Transcript:
    """All frames of one connection, each with its sender, "client" or "server"."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes]] = []

    def said_by(self, who: str) -> list[Any]:
        """Return the decoded messages of one side."""
        return [_read(frame) for speaker, frame in self.frames if speaker == who]


class RawPeer:
    """The client end of an in-memory connection to a server."""

    taps: ClassVar[list[Callable[[Transcript], None]]] = []
    """Callbacks for the transcript of every closed peer; a test suite can check all of its connections here."""

    def __init__(self, server: Server, *, principal: object = None, patience: float = 10.0) -> None:
        self.server = server
        self.transcript = Transcript()
        self.closed: ChannelClosed | None = None
        self._principal = principal
        self._patience = patience  # seconds to wait for a message before the test fails
        self._ids = count(1)
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._channel: MemoryChannel | None = None
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        await self.server.start()
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def open(self) -> Connection:
        """Open the connection."""
        self._channel = MemoryChannel("raw peer", MessageOrigin(principal=self._principal))
        self._channel.connect_to(self)
        self._connection = self.server.connect(self._channel)
        self._channel.open(self._connection)
        return self._connection

    @property
    def connection(self) -> Connection:
        """The server's connection object."""
        if self._connection is None:
            raise RuntimeError("the peer is not connected; use `async with`")
        return self._connection

    # --- what the server says ------------------------------------------------------------------

    def put(self, frame: bytes) -> None:
        """Accept a frame from the server."""
        self.transcript.frames.append(("server", frame))
        self._inbox.put_nowait(_read(frame))

    @property
    def untaken(self) -> int:
        """Always 0: the peer consumes each frame immediately."""
        return 0

    async def eased(self) -> None:
        """Return at once, since nothing is left."""

    def end(self, closed: ChannelClosed) -> None:
        """Record that the server closed the connection."""
        self.closed = closed

    async def receive(self) -> Any:
        """Return the next unread message."""
        async with asyncio.timeout(self._patience):
            return await self._inbox.get()

    def waiting(self) -> list[Any]:
        """Return all unread messages."""
        return [self._inbox.get_nowait() for _ in range(self._inbox.qsize())]

    async def quiet(self) -> list[Any]:
        """Return all messages that the server sends before it answers a ping."""
        ident = f"quiet {next(self._ids)}"
        self.send({"jsonrpc": "2.0", "id": ident, "method": "ping"})
        messages: list[Any] = []
        while not _is_response_to(message := await self.receive(), ident):
            messages.append(message)
        return messages

    # --- what we say ---------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any] | list[Any] | str | bytes) -> None:
        """Send a message, or a frame as it is."""
        if self._channel is None:
            raise RuntimeError("the peer is not connected; use `async with`")
        frame = (
            message
            if isinstance(message, bytes)
            else message.encode()
            if isinstance(message, str)
            else codec.to_json(message)
        )
        self.transcript.frames.append(("client", frame))
        self._channel.put(frame)

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def call(self, method: str, params: Any = None, *, id: int | str | None = None) -> int | str:  # noqa: A002
        """Send a request without waiting; return its id."""
        ident = next(self._ids) if id is None else id
        self.send({"jsonrpc": "2.0", "id": ident, "method": method, **({} if params is None else {"params": params})})
        return ident

    async def answer_to(self, ident: int | str) -> Any:
        """Return the response to a request. Earlier messages stay unread, in order."""
        passed: list[Any] = []
        while not _is_response_to(message := await self.receive(), ident):
            passed.append(message)
        rest = self.waiting()
        for other in (*passed, *rest):
            self._inbox.put_nowait(other)
        return message

    async def request(self, method: str, params: Any = None, *, id: int | str | None = None) -> Any:  # noqa: A002
        """Send a request and return its response, result or error."""
        return await self.answer_to(self.call(method, params, id=id))

    async def result(self, method: str, params: Any = None) -> Any:
        """Send a request and return its result; fail on an error."""
        answer = await self.request(method, params)
        if "error" in answer:
            raise AssertionError(f"{method} was answered with {answer['error']}")
        return answer["result"]

    async def error(self, method: str, params: Any = None) -> Any:
        """Send a request and return its error; fail on a result."""
        answer = await self.request(method, params)
        if "error" not in answer:
            raise AssertionError(f"{method} was answered with {answer['result']}")
        return answer["error"]

    def reply(self, to: Mapping[str, Any], result: Any) -> None:
        """Answer a request of the server."""
        self.send({"jsonrpc": "2.0", "id": to["id"], "result": result})

    async def initialize(
        self,
        revision: str = "2025-11-25",
        capabilities: Mapping[str, Any] | None = None,
        *,
        confirm: bool = True,
    ) -> Any:
        """Perform the handshake; return the result of `initialize`. `confirm=False` does not send `initialized`."""
        params = {
            "protocolVersion": revision,
            "capabilities": dict(capabilities or {}),
            "clientInfo": {"name": "raw peer", "version": "1"},
        }
        result = await self.result("initialize", params)
        if confirm:
            self.notify("notifications/initialized")
        return result

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None and self.closed is None:
            await self._channel.close()
        for tap in self.taps:
            tap(self.transcript)


def _is_response_to(message: Any, ident: int | str) -> bool:
    if not isinstance(message, dict):
        return False
    answer = cast("dict[str, Any]", message)
    return answer.get("id") == ident and "method" not in answer
