"""A conversation with a server, held by the official Python SDK, and a record of what passed in it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage

PATIENCE = 5.0  # seconds that one probe may take; a good one takes milliseconds
CAPABILITIES = {"sampling": {}, "roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}}
ROOT = types.Root(uri="file:///workspace", name="workspace")


def equal(seen: Any, expected: Any) -> None:
    """Fails with a sentence unless both are equal."""
    if seen != expected:
        raise AssertionError(f"{seen!r} instead of {expected!r}")


def contains(seen: Any, expected: Any) -> None:
    """Fails with a sentence unless one is in the other."""
    if expected not in seen:
        raise AssertionError(f"{expected!r} is not among {seen!r}")


class Wire:
    """A message stream that keeps a copy of what passes."""

    def __init__(self, stream: Any, sender: str, kept: list[dict[str, Any]]) -> None:
        self._stream = stream
        self._sender = sender
        self._kept = kept

    def _keep(self, item: SessionMessage | Exception) -> None:
        if isinstance(item, SessionMessage):
            message = item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            self._kept.append({"sender": self._sender, "message": message})

    async def send(self, item: SessionMessage) -> None:
        self._keep(item)
        await self._stream.send(item)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._stream.receive()
        self._keep(item)
        return item

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


@dataclass
class Connection:
    """One conversation with the server, and what the server said in it on its own account."""

    session: ClientSession = field(init=False)
    handshake: types.InitializeResult = field(init=False)
    wire: list[dict[str, Any]] = field(default_factory=list)
    notices: list[Any] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)  # what the SDK could not read
    sampling_cancelled: anyio.Event = field(default_factory=anyio.Event)
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def on_message(self, message: Any) -> None:
        """Notes a notification; the SDK calls it with faults of the transport too."""
        (self.faults if isinstance(message, Exception) else self.notices).append(message)
        self._news.set()
        self._news = anyio.Event()

    async def heard(self, method: str) -> Any:
        """The params of the oldest such notification, once there is one. Each is given out once."""
        while True:
            for notice in self.notices:
                if notice.method == method:
                    self.notices.remove(notice)
                    return notice.params
            await self._news.wait()

    async def nothing_heard(self, method: str) -> None:
        """Fails if such a notification came. A ping first: whatever was sent before its answer has arrived."""
        await self.session.send_ping()
        equal([notice for notice in self.notices if notice.method == method], [])

    async def call(self, name: str, **arguments: Any) -> str:
        """The text that a tool returns; a failure of the tool is a failure of the probe."""
        result = await self.session.call_tool(name, arguments)
        text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
        if result.is_error:
            raise AssertionError(f"tool {name} failed: {text}")
        return text

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The requests of one kind that the server has made."""
        return [m["message"] for m in self.wire if m["sender"] == "server" and m["message"].get("method") == method]

    # --- what the host application would answer ------------------------------------------------

    async def on_sampling(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        """Echoes the prompt. Never answers "hang", and reports progress first where it is asked for."""
        content = params.messages[-1].content
        prompt = content.text if isinstance(content, types.TextContent) else ""
        if prompt == "hang":
            try:
                await anyio.sleep_forever()
            finally:
                self.sampling_cancelled.set()
        token = (context.meta or {}).get("progress_token")
        if token is not None:
            await self.session.send_progress_notification(token, 1, total=2)
        reply = types.TextContent(type="text", text=f"echo: {prompt}")
        return types.CreateMessageResult(role="assistant", content=reply, model="parrot", stop_reason="endTurn")

    async def on_elicitation(self, _: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Does what the message says: "accept", "decline" or "cancel"."""
        if params.message != "accept":
            return types.ElicitResult(action=params.message)
        content = None if isinstance(params, types.ElicitRequestURLParams) else {"name": "Ada", "age": 36}
        return types.ElicitResult(action="accept", content=content)

    async def on_roots(self, _: ClientRequestContext) -> types.ListRootsResult:
        """The one root there is."""
        return types.ListRootsResult(roots=[ROOT])


@asynccontextmanager
async def connected(argv: list[str], revision: str, capabilities: dict[str, Any]) -> AsyncIterator[Connection]:
    """Starts a server and shakes hands with it, in a revision and with capabilities of our choice."""
    connection = Connection()
    server = StdioServerParameters(command=argv[0], args=argv[1:], env=dict(os.environ))
    async with (
        stdio_client(server) as (incoming, outgoing),
        ClientSession(
            Wire(incoming, "server", connection.wire),
            Wire(outgoing, "client", connection.wire),
            sampling_callback=connection.on_sampling,
            elicitation_callback=connection.on_elicitation,
            list_roots_callback=connection.on_roots,
            message_handler=connection.on_message,
        ) as connection.session,
    ):
        # The SDK's own initialize() offers its newest revision only, so this is the same in three steps.
        params = types.InitializeRequestParams(
            protocol_version=revision,
            capabilities=types.ClientCapabilities.model_validate(capabilities),
            client_info=types.Implementation(name="official", version="1.0"),
        )
        request = types.InitializeRequest(params=params)
        connection.handshake = await connection.session.send_request(request, types.InitializeResult, PATIENCE)
        connection.session.adopt(connection.handshake)
        await connection.session.send_notification(types.InitializedNotification())
        yield connection
