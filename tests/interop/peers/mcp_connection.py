"""A connection to a server by the official Python SDK, and a record of its messages.

Each version of the SDK has a subclass for its differences. The server's messages are plain JSON here, as they were
on the wire, whichever version has decoded them.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
from mcp import types
from mcp.client.session import ClientSession
from mcp.shared.message import SessionMessage

PATIENCE = 30.0  # seconds for one probe; a good one takes milliseconds
MODERN = "2026-07-28"
ROOT = {"uri": "file:///workspace", "name": "workspace"}


def capabilities_in(revision: str) -> dict[str, Any]:
    """All capabilities that a client can declare in a revision."""
    roots = {} if revision >= MODERN else {"listChanged": True}
    return {"sampling": {}, "roots": roots, "elicitation": {"form": {}, "url": {}}}


def equal(seen: Any, expected: Any) -> None:
    """Fail with a message unless both are equal."""
    if seen != expected:
        raise AssertionError(f"{seen!r} instead of {expected!r}")


def contains(seen: Any, expected: Any) -> None:
    """Fail with a message unless one contains the other."""
    if expected not in seen:
        raise AssertionError(f"{expected!r} is not among {seen!r}")


def plain(model: Any) -> dict[str, Any]:
    """A value of the SDK, as it was on the wire."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class Wire:
    """A message stream that records its messages."""

    def __init__(self, stream: Any, sender: str, kept: list[dict[str, Any]]) -> None:
        self._stream = stream
        self._sender = sender
        self._kept = kept
        self._unread: list[SessionMessage | Exception] = []

    def _keep(self, item: SessionMessage | Exception) -> None:
        if isinstance(item, SessionMessage):
            message = item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            self._kept.append({"sender": self._sender, "message": message})

    async def send(self, item: SessionMessage) -> None:
        self._keep(item)
        await self._stream.send(item)

    async def receive(self) -> SessionMessage | Exception:
        if self._unread:
            return self._unread.pop(0)
        item = await self._stream.receive()
        self._keep(item)
        return item

    def unread(self, items: list[SessionMessage | Exception]) -> None:
        """Leave messages to the next reader."""
        self._unread = items + self._unread

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Connection(ABC):
    """One connection to the server, and the messages that the server sent unasked."""

    def __init__(self, incoming: Any, outgoing: Any, capabilities: dict[str, Any]) -> None:
        self.capabilities = capabilities
        self.wire: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.faults: list[Exception] = []  # what the SDK could not decode
        self.sampling_cancelled = anyio.Event()
        self.handshake: dict[str, Any] = {}
        self.incoming = Wire(incoming, "server", self.wire)
        self._news = anyio.Event()
        self.outgoing = Wire(outgoing, "client", self.wire)
        self.session: Any = self.client(
            sampling_callback=self.on_sampling,
            elicitation_callback=self.on_elicitation,
            list_roots_callback=self.on_roots,
            message_handler=self.on_message,
        )

    # --- differences between eras ----------------------------------------------------------------

    def client(self, **callbacks: Any) -> Any:
        """The SDK's side of the connection."""
        return ClientSession(self.incoming, self.outgoing, **callbacks)

    @asynccontextmanager
    async def begun(self, revision: str) -> AsyncIterator[Self]:
        """Perform the handshake, in a revision and with chosen capabilities."""
        client = {"name": "official", "version": "1.0"}
        params = {"protocolVersion": revision, "capabilities": self.capabilities, "clientInfo": client}
        async with self.session:
            await self.shake_hands(types.InitializeRequestParams.model_validate(params))
            yield self

    @asynccontextmanager
    async def watching(self, uri: str) -> AsyncIterator[None]:
        """Subscribe to a resource for a while."""
        await self.session.subscribe_resource(uri)
        yield
        await self.session.unsubscribe_resource(uri)

    async def alive(self) -> None:
        """Check that the server responds."""
        await self.session.send_ping()

    async def log_from(self, level: str) -> None:
        """Request log messages of that level and above."""
        await self.session.set_logging_level(level)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """The result of a tool."""
        return await self.session.call_tool(name, arguments)

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The requests of one kind that the server has sent."""
        return [message for message in self.sent_by("server") if message.get("method") == method]

    # --- differences between versions ------------------------------------------------------------

    @abstractmethod
    async def shake_hands(self, params: types.InitializeRequestParams) -> None:
        """The SDK's own initialize() offers its newest revision only, so this does the same in steps."""

    @abstractmethod
    async def give_up(self, call: Callable[[], Awaitable[Any]], begun: anyio.Event) -> None:
        """Start a call, and cancel it on the server once it has begun."""

    @abstractmethod
    async def hang(self) -> None:
        """Work on a sampling request until the server cancels it."""

    @abstractmethod
    def progress_token(self, context: Any) -> Any:
        """The server's progress token; None without one."""

    @abstractmethod
    def notice(self, message: Any) -> dict[str, Any] | None:
        """A notification as it was on the wire; None if it is none."""

    # --- messages of the server ------------------------------------------------------------------

    async def on_message(self, message: Any) -> None:
        """Record a notification; the SDK also passes faults of the transport."""
        if isinstance(message, Exception):
            self.faults.append(message)
        elif (notice := self.notice(message)) is not None:
            self.notices.append(notice)
        self._news.set()
        self._news = anyio.Event()

    async def heard(self, method: str) -> Any:
        """The params of the oldest such notification, once there is one. Each is returned once."""
        while True:
            for notice in self.notices:
                if notice["method"] == method:
                    self.notices.remove(notice)
                    return notice.get("params")
            await self._news.wait()

    async def nothing_heard(self, method: str) -> None:
        """Fail if such a notification came. Check liveness first: all earlier messages have arrived then."""
        await self.alive()
        equal([notice for notice in self.notices if notice["method"] == method], [])

    async def call(self, name: str, **arguments: Any) -> str:
        """The text result of a tool; a failure of the tool is a failure of the probe."""
        result = plain(await self.call_tool(name, arguments))
        text = "".join(block["text"] for block in result["content"] if block["type"] == "text")
        if result.get("isError"):
            raise AssertionError(f"tool {name} failed: {text}")
        return text

    def sent_by(self, sender: str) -> list[dict[str, Any]]:
        """The messages of one side so far."""
        return [entry["message"] for entry in self.wire if entry["sender"] == sender]

    # --- callbacks of the host application -----------------------------------------------------

    async def on_sampling(
        self, context: Any, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Echo the prompt. Block on "hang", and report progress first if requested."""
        content = params.messages[-1].content
        prompt = content.text if isinstance(content, types.TextContent) else ""
        if prompt == "hang":
            await self.hang()
        token = self.progress_token(context)
        if token is not None:
            await self.session.send_progress_notification(token, 1, total=2)
        return types.CreateMessageResult.model_validate(
            {
                "role": "assistant",
                "content": {"type": "text", "text": f"echo: {prompt}"},
                "model": "parrot",
                "stopReason": "endTurn",
            }
        )

    async def on_elicitation(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Do what the message says: "accept", "decline" or "cancel"."""
        if params.message != "accept":
            return types.ElicitResult(action=params.message)
        content = None if isinstance(params, types.ElicitRequestURLParams) else {"name": "Ada", "age": 36}
        return types.ElicitResult(action="accept", content=content)

    async def on_roots(self, _: Any) -> types.ListRootsResult:
        """The one root there is."""
        return types.ListRootsResult.model_validate({"roots": [ROOT]})
