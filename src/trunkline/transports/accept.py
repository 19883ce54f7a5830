"""Accept connections, for every transport that listens.

The listeners of asyncio and uvloop accept the whole backlog, a thousand connections, in one turn of the loop, before a
protocol can refuse any. When descriptors run out, asyncio logs a traceback and accepts again a second later, and uvloop
drops the pending connections. An `Acceptor` stops earlier: while the descriptor reserve is in use, connections stay in
the backlog, and the acceptor resumes when descriptors are free again. If a socket is shut down from outside, the
acceptor closes it and logs one line.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from trunkline.backlog import DescriptorsExhausted, ListenerClosed, accept_pending
from trunkline.fdlimit import DescriptorReserve, LogThrottle
from trunkline.transports.tls import TlsOptions

__all__ = ["Acceptor", "ConnectionSource", "TransportOpener"]

_DESCRIPTOR_CHECK_INTERVAL: Final = 0.1  # seconds between two checks for free descriptors
_INET_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})

_log: Final = logging.getLogger("trunkline")


class ConnectionSource(Protocol):
    """Source of accepted connections: an `Acceptor`, or the supervisor of this process."""

    def start(self, on_connection: Callable[[socket.socket], None]) -> None:
        """Pass each connection to `on_connection`, from now on."""
        ...

    def stop(self) -> None:
        """Pass no more connections."""
        ...


class Acceptor:
    """Accepts connections from listening sockets, which it owns, while descriptors are free."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        reserve: DescriptorReserve,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_stop` is called when the sockets are closed, for example to remove a socket file."""
        self._listeners = list(listeners)
        self._on_stop = on_stop
        self._reserve = reserve
        self._log_throttle = LogThrottle()
        self._loop = asyncio.get_running_loop()
        self._on_connection: Callable[[socket.socket], None]
        self._timer: asyncio.TimerHandle | None = None  # set while accepting is paused
        self._tasks: list[asyncio.Task[None]] = []  # used if the loop cannot watch sockets

    def start(self, on_connection: Callable[[socket.socket], None]) -> None:
        """Pass each connection to `on_connection`, from now on."""
        self._on_connection = on_connection
        try:
            self._watch()
        except NotImplementedError:  # Windows, which has no limit on descriptors
            self._tasks = [self._loop.create_task(self._accept_forever(listener)) for listener in self._listeners]

    def stop(self) -> None:
        """Stop accepting and close the sockets."""
        if self._tasks:
            for task in self._tasks:
                task.cancel()
        elif self._timer is not None:
            self._timer.cancel()
        else:
            self._unwatch()
        for listener in self._listeners:
            listener.close()
        self._listeners, self._tasks = [], []
        self._on_stop()

    def _watch(self) -> None:
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _unwatch(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            for connection in accept_pending(listener, self._reserve):
                self._on_connection(connection)
        except DescriptorsExhausted:
            self._pause()
        except ListenerClosed as ended:
            self._loop.remove_reader(listener)
            self._drop_listener(listener, ended)

    def _drop_listener(self, listener: socket.socket, ended: ListenerClosed) -> None:
        """Close a socket that no longer listens; the other sockets continue."""
        _log.error("%s", ended)
        self._listeners.remove(listener)
        listener.close()

    async def _accept_forever(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except ConnectionError:  # the peer has disconnected
                continue
            except OSError:
                self._drop_listener(listener, ListenerClosed(listener))
                return
            self._on_connection(connection)

    def _pause(self) -> None:
        """Leave connections in the backlog until descriptors are free."""
        self._unwatch()
        self._schedule_check()

    def _schedule_check(self) -> None:
        self._timer = self._loop.call_later(_DESCRIPTOR_CHECK_INTERVAL, self._check_descriptors)
        if self._log_throttle.allow(self._loop.time()):
            _log.warning(self._reserve.shortage_message())

    def _check_descriptors(self) -> None:
        if self._reserve.has_room():
            self._timer = None
            self._watch()
        else:
            self._schedule_check()


class TransportOpener:
    """Opens an asyncio transport with its own protocol for each connection of a source."""

    def __init__(self, source: ConnectionSource, factory: Callable[[], Any], tls_options: TlsOptions) -> None:
        self._source = source
        self._factory = factory
        self._tls_options = tls_options
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        tls_options.watch()
        source.start(self._take)

    def _take(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._open(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            if connection.family in _INET_FAMILIES:
                connection.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )  # as asyncio does for sockets that it accepts
            await self._loop.connect_accepted_socket(self._factory, connection, **self._tls_options.arguments())
        except OSError:  # the peer has disconnected, or the TLS handshake failed
            connection.close()

    def close(self) -> None:
        """Accept no more connections."""
        self._source.stop()
        self._tls_options.close()
