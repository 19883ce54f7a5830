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
from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import ALIASES, METHODS, Side
from trunkline.rpc.connection import Connection
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work

__all__ = ["Notice", "Notices", "Reader"]

_TAKEN: Final = frozenset({"notifications/cancelled", "notifications/progress"})  # by the calls that they are about
HEARD: Final = frozenset(row.name for row in METHODS if not row.request and row.reaches(Side.CLIENT)) - _TAKEN
"""What a client can hear of."""

Handler = Callable[[Any], Any]


class Notice(Struct, frozen=True):
    """A notification: its method, and its params in their type."""

    method: str
    params: Any


class Reader:
    """Notifications, to be read with `async for`. It ends when the client is closed."""

    def __init__(self, names: frozenset[str], most: int, left: "Callable[[Reader], None]") -> None:
        self.names = names
        self.dropped = 0  # that were not read in time
        self._waiting: deque[Notice] = deque()
        self._most = most
        self._left = left
        self._turn: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, notice: Notice) -> None:
        """One more to read."""
        if len(self._waiting) == self._most:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(notice)
        self._wake()

    def close(self) -> None:
        """Lets the reader go: what waits can still be read."""
        self._closed = True
        self._left(self)
        self._wake()

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def __aiter__(self) -> "Reader":
        return self

    async def __anext__(self) -> Notice:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        return self._waiting.popleft()


class Notices:
    """Who is told of what."""

    def __init__(self, most: int) -> None:
        self._most = most  # that wait for one reader
        self.handlers: dict[str, list[Handler]] = {}
        self._own: dict[str, list[Handler]] = {}  # of the client itself, told first
        self._readers: dict[Reader, None] = {}

    def on(self, name: str, handler: Handler) -> None:
        """Calls a function, async or plain and quick, with the params of each notification of that name."""
        self.handlers.setdefault(_known(name), []).append(handler)

    def on_own(self, name: str, handler: Handler) -> None:
        """The same, for the client itself."""
        self._own.setdefault(_known(name), []).append(handler)

    def off(self, name: str, handler: Handler) -> None:
        """Calls it no more."""
        self.handlers[_known(name)].remove(handler)

    def reader(self, *names: str) -> Reader:
        """Whoever reads these notifications, or all of them."""
        reader = Reader(frozenset(map(_known, names)) or HEARD, self._most, self._forget)
        self._readers[reader] = None
        return reader

    def _forget(self, reader: Reader) -> None:
        self._readers.pop(reader, None)

    def close(self) -> None:
        """Ends all readers."""
        for reader in list(self._readers):
            reader.close()

    def feature(self) -> Feature:
        """Hears every notification that a client can hear."""
        return Feature("notices", {name: partial(self._heard, name) for name in HEARD})

    def _heard(self, name: str, connection: Connection, call: Running, params: Any) -> Work:
        for reader in list(self._readers):
            if name in reader.names:
                reader.put(Notice(name, params))
        concerned = (*self._own.get(name, ()), *self.handlers.get(name, ()))
        waiting = [self._told(handler, connection, call, params) for handler in concerned]
        waiting = [told for told in waiting if told is not None]
        return _all(waiting, connection, call) if waiting else None

    def _told(self, handler: Handler, connection: Connection, call: Running, params: Any) -> Any:
        """Tells one function; gives what has to be awaited."""
        try:
            value = handler(params)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - its own fault
            connection.report_failure(call, "-", error)
            return None
        return value if inspect.isawaitable(value) else None


async def _all(waiting: list[Any], connection: Connection, call: Running) -> None:
    """All of them at once: one that takes its time does not keep the others."""
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            connection.report_failure(call, "-", outcome)


def _known(name: str) -> str:
    whole = ALIASES.get(name, name)
    if whole not in HEARD:
        raise MisuseError(f"servers send no notification {name!r}; there are {', '.join(sorted(HEARD))}")
    return whole
