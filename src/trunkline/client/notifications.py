"""Notifications from a server: passed to handlers, and to readers with `async for`.

Neither can harm the connection: exceptions of handlers are reported to observers, and a reader that is too slow loses
the oldest notifications.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import MisuseError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import ALIASES, METHODS, Side
from trunkline.rpc.connection import PeerConnection
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work

__all__ = ["NotificationHandlers", "NotificationReader", "ServerNotification"]

# The session delivers these to the requests that they are about.
_HANDLED_BY_CALLS: Final = frozenset({"notifications/cancelled", "notifications/progress"})
CLIENT_NOTIFICATIONS: Final = (
    frozenset(row.name for row in METHODS if not row.is_request and row.is_received_by(Side.CLIENT)) - _HANDLED_BY_CALLS
)
"""The notifications that a client can receive."""

Handler = Callable[[Any], Any]


class ServerNotification(Struct, frozen=True):
    """A notification: its method, and its decoded params."""

    method: str
    params: Any


class NotificationReader:
    """An async iterator over notifications. It ends when the client is closed."""

    def __init__(
        self, names: frozenset[str], max_queued: int, on_close: "Callable[[NotificationReader], None]"
    ) -> None:
        self.names = names
        self.dropped = 0  # notifications that were not read in time
        self._queue: deque[ServerNotification] = deque()
        self._max_queued = max_queued
        self._on_close = on_close
        self._wakeup: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, notification: ServerNotification) -> None:
        """Queue a notification; drop the oldest if the queue is full."""
        if len(self._queue) == self._max_queued:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(notification)
        self._wake()

    def close(self) -> None:
        """End the reader. Queued notifications can still be read."""
        self._closed = True
        self._on_close(self)
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def __aiter__(self) -> "NotificationReader":
        return self

    async def __anext__(self) -> ServerNotification:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        return self._queue.popleft()


class NotificationHandlers:
    """The handlers and readers of a client's notifications."""

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued  # per reader
        self.handlers: dict[str, list[Handler]] = {}
        self._internal: dict[str, list[Handler]] = {}  # of the client itself; they run first
        self._readers: dict[NotificationReader, None] = {}

    def on(self, name: str, handler: Handler) -> None:
        """Call a handler, async or plain and quick, with the params of each notification of that name."""
        self.handlers.setdefault(_resolve_name(name), []).append(handler)

    def on_internal(self, name: str, handler: Handler) -> None:
        """Register a handler of the client itself; these run before those of the user."""
        self._internal.setdefault(_resolve_name(name), []).append(handler)

    def off(self, name: str, handler: Handler) -> None:
        """Remove a handler."""
        self.handlers[_resolve_name(name)].remove(handler)

    def open_reader(self, *names: str) -> NotificationReader:
        """Return a reader of these notifications, or of all."""
        reader = NotificationReader(
            frozenset(map(_resolve_name, names)) or CLIENT_NOTIFICATIONS, self._max_queued, self._remove_reader
        )
        self._readers[reader] = None
        return reader

    def _remove_reader(self, reader: NotificationReader) -> None:
        self._readers.pop(reader, None)

    def close(self) -> None:
        """End all readers."""
        for reader in list(self._readers):
            reader.close()

    def feature(self) -> Feature:
        """Return the handlers of every notification that a client can receive."""
        return Feature("notices", {name: partial(self._dispatch, name) for name in CLIENT_NOTIFICATIONS})

    def _dispatch(self, name: str, connection: PeerConnection, call: IncomingRequest, params: Any) -> Work:
        for reader in list(self._readers):
            if name in reader.names:
                reader.put(ServerNotification(name, params))
        concerned = (*self._internal.get(name, ()), *self.handlers.get(name, ()))
        waiting = [self._call_handler(handler, connection, call, params) for handler in concerned]
        waiting = [awaitable for awaitable in waiting if awaitable is not None]
        return _await_all(waiting, connection, call) if waiting else None

    def _call_handler(self, handler: Handler, connection: PeerConnection, call: IncomingRequest, params: Any) -> Any:
        """Call a handler; return its awaitable, if it is async."""
        try:
            value = handler(params)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - an error of the handler
            connection.facts.report_failure(call, "-", error)
            return None
        return value if inspect.isawaitable(value) else None


async def _await_all(waiting: list[Any], connection: PeerConnection, call: IncomingRequest) -> None:
    """Await all handlers concurrently, so that a slow one does not delay the others."""
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            connection.facts.report_failure(call, "-", outcome)


def _resolve_name(name: str) -> str:
    whole = ALIASES.get(name, name)
    if whole not in CLIENT_NOTIFICATIONS:
        raise MisuseError(
            f"servers send no notification {name!r}; choose one of {', '.join(sorted(CLIENT_NOTIFICATIONS))}"
        )
    return whole
