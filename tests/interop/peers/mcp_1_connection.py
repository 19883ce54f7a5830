"""A connection by version 1.x of the official Python SDK."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
from mcp import types
from mcp.shared.exceptions import McpError as Refusal
from mcp.shared.message import SessionMessage
from mcp_connection import PATIENCE, Connection, plain

__all__ = ["Official", "Refusal"]


class Official(Connection):
    """The SDK, with additions for what it does not do."""

    async def shake_hands(self, params: types.InitializeRequestParams) -> None:
        request = types.ClientRequest(types.InitializeRequest(params=params))
        answer = await self.session.send_request(request, types.InitializeResult, timedelta(seconds=PATIENCE))
        self.handshake = plain(answer)
        await self.session.send_notification(types.ClientNotification(types.InitializedNotification()))

    async def give_up(self, call: Callable[[], Awaitable[Any]], begun: anyio.Event) -> None:
        """The SDK does not cancel the call on the server."""
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await begun.wait()
            group.cancel_scope.cancel()
        sent = [entry["message"] for entry in self.wire if entry["sender"] == "client"]
        ident = next(message["id"] for message in reversed(sent) if message["method"] == "tools/call")
        told = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=ident))
        await self.session.send_notification(types.ClientNotification(told))

    async def hang(self) -> None:
        """The SDK reads nothing while a callback runs, so the callback reads; it responds late. The result of the call
        may come first, since a server of this SDK sends it on another stream."""
        others: list[SessionMessage | Exception] = []
        while not self.sampling_cancelled.is_set():
            item = await self.incoming.receive()
            if isinstance(item, SessionMessage) and _method_of(item) == "notifications/cancelled":
                self.sampling_cancelled.set()
            else:
                others.append(item)
        self.incoming.unread(others)

    def progress_token(self, context: Any) -> Any:
        return context.meta.progressToken if context.meta else None

    def notice(self, message: Any) -> dict[str, Any] | None:
        return plain(message) if isinstance(message, types.ServerNotification) else None


def _method_of(item: SessionMessage) -> str | None:
    """Return the method of a request or notification; None for a response."""
    return getattr(item.message.root, "method", None)
