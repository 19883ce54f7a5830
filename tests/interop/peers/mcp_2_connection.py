"""A connection by version 2.x of the official Python SDK."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
from mcp import Client, types
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.exceptions import MCPError as Refusal
from mcp.shared.message import SessionMessage
from mcp_connection import MODERN, PATIENCE, Connection, Wire, equal, plain

warnings.simplefilter("ignore", MCPDeprecationWarning)

__all__ = ["Modern", "Official", "Refusal"]


class Official(Connection):
    """The unmodified SDK."""

    async def shake_hands(self, params: types.InitializeRequestParams) -> None:
        request = types.InitializeRequest(params=params)
        answer = await self.session.send_request(request, types.InitializeResult, PATIENCE)
        self.handshake = plain(answer)
        self.session.adopt(answer)
        await self.session.send_notification(types.InitializedNotification())

    async def give_up(self, call: Callable[[], Awaitable[Any]], begun: anyio.Event) -> None:
        """The SDK cancels the call on the server when its task is cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await begun.wait()
            group.cancel_scope.cancel()

    async def hang(self) -> None:
        """The SDK cancels the callback."""
        try:
            await anyio.sleep_forever()
        finally:
            self.sampling_cancelled.set()

    def progress_token(self, context: Any) -> Any:
        return (context.meta or {}).get("progress_token")

    def notice(self, message: Any) -> dict[str, Any] | None:
        return plain(message)


class Modern(Official):
    """Without a handshake: the SDK's own client detects the server's revision, and listens to all changes."""

    level: str | None = None  # of the requested log messages

    def client(self, **callbacks: Any) -> Any:
        return Client(self._line(), **callbacks)

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[Any]:
        yield self.incoming, _Declaring(self.outgoing, self.capabilities)

    @asynccontextmanager
    async def begun(self, revision: str) -> AsyncIterator[Self]:
        every = {f"{kind}_list_changed": True for kind in ("tools", "resources", "prompts")}
        async with self.session, self.session.listen(**every):
            equal(self.session.protocol_version, revision)
            self.handshake = plain(self.session.session.discover_result)
            yield self

    @asynccontextmanager
    async def watching(self, uri: str) -> AsyncIterator[None]:
        async with self.session.listen(resource_subscriptions=[uri]):
            yield

    async def alive(self) -> None:
        await self.session.session.send_discover(MODERN)

    async def log_from(self, level: str) -> None:
        self.level = level

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        meta = None if self.level is None else {types.LOG_LEVEL_META_KEY: self.level}
        return await self.session.call_tool(name, arguments, meta=meta)

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The input requests that came within a result."""
        results = [message.get("result", {}) for message in self.sent_by("server")]
        asked = [question for result in results for question in result.get("inputRequests", {}).values()]
        return [question for question in asked if question["method"] == method]


class _Declaring:
    """A connection on which every request declares chosen capabilities, where the SDK declares all of its own."""

    def __init__(self, wire: Wire, capabilities: dict[str, Any]) -> None:
        self._wire = wire
        self._capabilities = capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._wire.aclose()

    async def send(self, item: SessionMessage) -> None:
        params: Any = getattr(item.message, "params", None) or {}
        if types.CLIENT_CAPABILITIES_META_KEY in params.get("_meta", {}):
            params["_meta"][types.CLIENT_CAPABILITIES_META_KEY] = self._capabilities
        await self._wire.send(item)
