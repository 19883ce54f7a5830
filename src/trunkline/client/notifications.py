"""Notifications from a server: passed to handlers, and to readers with `async for`.

Neither can harm the connection: exceptions of handlers are reported to observers, and a reader that is too slow loses
the oldest notifications.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct

from trunkline.errors import MisuseError, RegistrationError
from trunkline.protocol.custom_methods import custom_method, find_name_fault, is_custom
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import ALIASES, METHODS, Side
from trunkline.registry import type_adapters
from trunkline.registry.methods import decode_params
from trunkline.registry.signatures import accepts_positional, hints_of, name_of
from trunkline.rpc.connection import PeerConnection
from trunkline.rpc.dispatch import CustomMethod, Feature
from trunkline.rpc.run_handler import Work
from trunkline.wire import codec

__all__ = ["NotificationHandlers", "NotificationReader", "ServerNotification"]

# The session delivers these to the requests that they are about.
_HANDLED_BY_CALLS: Final = frozenset({"notifications/cancelled", "notifications/progress"})
CLIENT_NOTIFICATIONS: Final = (
    frozenset(row.name for row in METHODS if not row.is_request and row.is_received_by(Side.CLIENT)) - _HANDLED_BY_CALLS
)
"""The notifications that a client can receive."""

Handler = Callable[[Any], Any] | Callable[[str, Any], Any]
"""Takes the params of a notification, or its method and its params."""

_Call = Callable[[str, Any], Any]  # takes the method and the params


class _Registered(NamedTuple):
    handler: Handler
    call: _Call


class ServerNotification(Struct, frozen=True):
    """A notification: its method, and its decoded params."""

    method: str
    params: Any


class NotificationReader:
    """An async iterator over notifications. It ends when the client is closed."""

    def __init__(
        self, names: frozenset[str], max_queued: int, on_close: "Callable[[NotificationReader], None]"
    ) -> None:
        """`names` are the notifications to read; empty for all."""
        self.names = names
        self.dropped = 0  # notifications that were not read in time
        self._queue: deque[ServerNotification] = deque()
        self._max_queued = max_queued
        self._on_close = on_close
        self._wakeup: asyncio.Future[None] | None = None
        self._closed = False

    def wants(self, name: str) -> bool:
        """Return whether the reader reads notifications of this name."""
        return not self.names or name in self.names

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
        self._registered: dict[str, list[_Registered]] = {}
        self._internal: dict[str, list[_Call]] = {}  # of the client itself; they run first
        self._readers: dict[NotificationReader, None] = {}

    @property
    def handlers(self) -> Mapping[str, tuple[Handler, ...]]:
        """The handlers of the user, by notification."""
        return {name: tuple(one.handler for one in some) for name, some in self._registered.items()}

    def on(self, name: str, handler: Handler) -> None:
        """Call a handler, async or plain and quick, with the params of each notification of that name; with the name
        before them if it takes two arguments."""
        whole = _resolve_name(name)
        self._registered.setdefault(whole, []).append(_Registered(handler, _adapt_handler(whole, handler)))

    def on_internal(self, name: str, handler: Callable[[Any], Any]) -> None:
        """Register a handler of the client itself; these run before those of the user."""
        self._internal.setdefault(_resolve_name(name), []).append(lambda _name, params: handler(params))

    def off(self, name: str, handler: Handler) -> None:
        """Remove a handler."""
        registered = self._registered[_resolve_name(name)]
        registered.remove(next(one for one in registered if one.handler == handler))

    def find_custom(self, name: str) -> CustomMethod | None:
        """Return a notification outside of the specification that a handler or a reader waits for."""
        if not self._registered.get(name) and not any(reader.wants(name) for reader in self._readers):
            return None
        return CustomMethod(custom_method(name, request=False), decode_params, partial(self._dispatch, name))

    def open_reader(self, *names: str) -> NotificationReader:
        """Return a reader of these notifications, or of all."""
        reader = NotificationReader(frozenset(map(_resolve_name, names)), self._max_queued, self._remove_reader)
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
            if reader.wants(name):
                reader.put(ServerNotification(name, params))
        registered = [one.call for one in self._registered.get(name, ())]
        concerned = (*self._internal.get(name, ()), *registered)
        waiting = [self._call_handler(handler, connection, call, params) for handler in concerned]
        waiting = [awaitable for awaitable in waiting if awaitable is not None]
        return _await_all(waiting, connection, call) if waiting else None

    def _call_handler(self, handler: _Call, connection: PeerConnection, call: IncomingRequest, params: Any) -> Any:
        """Call a handler; return its awaitable, if it is async."""
        try:
            value = handler(call.method.name, params)
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
    if whole not in CLIENT_NOTIFICATIONS and find_name_fault(whole) is not None:
        raise MisuseError(
            f"servers send no notification {name!r}; choose one of {', '.join(sorted(CLIENT_NOTIFICATIONS))}, or a "
            "name outside of the specification"
        )
    return whole


def _adapt_handler(name: str, handler: Handler) -> _Call:
    """Return a function that calls a handler with the arguments that it takes. The params of a notification outside of
    the specification are decoded to the type of its annotation, if it has one."""
    call = cast("Callable[..., Any]", handler)
    takes_name = accepts_positional(handler, 2) and not accepts_positional(handler, 1)
    decode = _find_decoder(handler) if is_custom(name) else None

    def run(method: str, params: Any) -> Any:
        decoded = params if decode is None else decode(codec.to_json(params))
        return call(method, decoded) if takes_name else call(decoded)

    return run


def _find_decoder(handler: Handler) -> Callable[[bytes], Any] | None:
    """Return the decoder for the last parameter's annotation; None without a useful one."""
    try:
        annotations = [hint for name, hint in hints_of(handler, name_of(handler)).items() if name != "return"]
    except RegistrationError:  # a builtin, for example
        return None
    wanted: Any = annotations[-1] if annotations else Any
    return None if wanted in {Any, dict, object} or wanted == dict[str, Any] else type_adapters.decoder(wanted)
