"""A conversation that is held by version 2.x of the official Python SDK."""

import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp import types
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.exceptions import MCPError as Refusal
from mcp_connection import PATIENCE, Connection, plain

warnings.simplefilter("ignore", MCPDeprecationWarning)

__all__ = ["Official", "Refusal"]


class Official(Connection):
    """The SDK as it is."""

    async def shake_hands(self, params: types.InitializeRequestParams) -> None:
        request = types.InitializeRequest(params=params)
        answer = await self.session.send_request(request, types.InitializeResult, PATIENCE)
        self.handshake = plain(answer)
        self.session.adopt(answer)
        await self.session.send_notification(types.InitializedNotification())

    async def give_up(self, call: Callable[[], Awaitable[Any]], begun: anyio.Event) -> None:
        """The SDK tells the server when whoever waits is cancelled."""
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
