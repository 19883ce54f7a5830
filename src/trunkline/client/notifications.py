"""What servers tell without being asked: handed to functions, and to whoever reads it with `async for`.

Neither can hurt the connection: what a function raises is reported, and a reader that does not keep up loses the
oldest.
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
from trunkline.rpc.connection import Connection
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work

__all__ = ["NotificationHandlers", "NotificationReader", "ServerNotification"]

_HANDLED_BY_CALLS: Final = frozenset(
    {"notifications/cancelled", "notifications/progress"}
)  # by the calls that they are about
CLIENT_NOTIFICATIONS: Final = (
    frozenset(row.name for row in METHODS if not row.is_request and row.is_received_by(Side.CLIENT)) - _HANDLED_BY_CALLS
)
"""What a client can hear of."""

Handler = Callable[[Any], Any]


class ServerNotification(Struct, frozen=True):
    """A notification: its method, and its params in their type."""

    method: str
    params: Any


class NotificationReader:
    """Notifications, to be read with `async for`. It ends when the client is closed."""

    def __init__(
        self, names: frozenset[str], max_queued: int, on_close: "Callable[[NotificationReader], None]"
    ) -> None:
        self.names = names
        self.dropped = 0  # that were not read in time
        self._queue: deque[ServerNotification] = deque()
        self._max_queued = max_queued
        self._on_close = on_close
        self._wakeup: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, notification: ServerNotification) -> None:
        """One more to read."""
        if len(self._queue) == self._max_queued:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(notification)
        self._wake()

    def close(self) -> None:
        """Lets the reader go: what waits can still be read."""
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
    """Who is told of what."""

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued  # that wait for one reader
        self.handlers: dict[str, list[Handler]] = {}
        self._internal: dict[str, list[Handler]] = {}  # of the client itself, told first
        self._readers: dict[NotificationReader, None] = {}

    def on(self, name: str, handler: Handler) -> None:
        """Calls a function, async or plain and quick, with the params of each notification of that name."""
        self.handlers.setdefault(_resolve_name(name), []).append(handler)

    def on_internal(self, name: str, handler: Handler) -> None:
        """The same, for the client itself."""
        self._internal.setdefault(_resolve_name(name), []).append(handler)

    def off(self, name: str, handler: Handler) -> None:
        """Calls it no more."""
        self.handlers[_resolve_name(name)].remove(handler)

    def open_reader(self, *names: str) -> NotificationReader:
        """Whoever reads these notifications, or all of them."""
        reader = NotificationReader(
            frozenset(map(_resolve_name, names)) or CLIENT_NOTIFICATIONS, self._max_queued, self._remove_reader
        )
        self._readers[reader] = None
        return reader

    def _remove_reader(self, reader: NotificationReader) -> None:
        self._readers.pop(reader, None)

    def close(self) -> None:
        """Ends all readers."""
        for reader in list(self._readers):
            reader.close()

    def feature(self) -> Feature:
        """Hears every notification that a client can hear."""
        return Feature("notices", {name: partial(self._dispatch, name) for name in CLIENT_NOTIFICATIONS})

    def _dispatch(self, name: str, connection: Connection, call: IncomingRequest, params: Any) -> Work:
        for reader in list(self._readers):
            if name in reader.names:
                reader.put(ServerNotification(name, params))
        concerned = (*self._internal.get(name, ()), *self.handlers.get(name, ()))
        waiting = [self._call_handler(handler, connection, call, params) for handler in concerned]
        waiting = [told for told in waiting if told is not None]
        return _await_all(waiting, connection, call) if waiting else None

    def _call_handler(self, handler: Handler, connection: Connection, call: IncomingRequest, params: Any) -> Any:
        """Tells one function; gives what has to be awaited."""
        try:
            value = handler(params)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - its own fault
            connection.facts.report_failure(call, "-", error)
            return None
        return value if inspect.isawaitable(value) else None


async def _await_all(waiting: list[Any], connection: Connection, call: IncomingRequest) -> None:
    """All of them at once: one that takes its time does not keep the others."""
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            connection.facts.report_failure(call, "-", outcome)


def _resolve_name(name: str) -> str:
    whole = ALIASES.get(name, name)
    if whole not in CLIENT_NOTIFICATIONS:
        raise MisuseError(f"servers send no notification {name!r}; there are {', '.join(sorted(CLIENT_NOTIFICATIONS))}")
    return whole
