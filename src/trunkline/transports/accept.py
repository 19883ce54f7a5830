"""Accept connections, for every transport that listens.

The listeners of asyncio and uvloop accept the whole backlog, a thousand connections, in one turn of the loop, before a
protocol can refuse any. When descriptors run out, asyncio logs a traceback and accepts again a second later, and uvloop
drops the pending connections. An `Acceptor` stops earlier: while the descriptor reserve is in use, connections stay in
the backlog, and the acceptor resumes when descriptors are free again. If a socket is shut down or closed from outside,
the acceptor drops it, logs one line and reports the loss to its supervisor, which has it opened again.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol

from trunkline.backlog import DescriptorsExhausted, ListenerClosed, accept_pending, is_listening
from trunkline.errors import TransportError
from trunkline.fdlimit import DescriptorReserve, LogThrottle
from trunkline.transports.listening import ListeningSockets
from trunkline.transports.tls import TlsOptions

__all__ = ["Acceptor", "ConnectionSource", "TransportOpener"]

_DESCRIPTOR_CHECK_INTERVAL: Final = 0.1  # seconds between two checks for free descriptors
_LISTENER_CHECK_INTERVAL: Final = 1.0  # seconds between two checks of the sockets
_INET_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})

_log: Final = logging.getLogger("trunkline")


class ConnectionSource(Protocol):
    """Source of accepted connections: an `Acceptor`, or the supervisor of this process."""

    def start(self, on_connection: Callable[[socket.socket], None], count_open: Callable[[], int], /) -> None:
        """Pass each connection to `on_connection`, from now on. `count_open` returns how many are open, for a source
        with several takers."""
        ...

    def stop(self) -> None:
        """Pass no more connections."""
        ...


class Acceptor:
    """Accepts connections from listening sockets, which it owns, while descriptors are free."""

    def __init__(self, opened: ListeningSockets, reserve: DescriptorReserve) -> None:
        self._opened = opened
        self._listening = dict(enumerate(opened.sockets))  # by number; the others are lost
        self._inodes = {number: _inode(listener) for number, listener in self._listening.items()}
        self._reserve = reserve
        self._log_throttle = LogThrottle()
        self._loop = asyncio.get_running_loop()
        self._on_connection: Callable[[socket.socket], None]
        self._stopped = False
        self._ended: asyncio.Future[None] = self._loop.create_future()  # done at a loss, or the end
        self._pause_timer: asyncio.TimerHandle | None = None  # set while accepting is paused
        self._check_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}  # used if the loop cannot watch sockets

    def start(self, on_connection: Callable[[socket.socket], None], _count_open: Callable[[], int], /) -> None:
        """Pass each connection to `on_connection`, from now on."""
        self._on_connection = on_connection
        for number in self._listening:
            self._watch(number)
        self._check_timer = self._loop.call_later(_LISTENER_CHECK_INTERVAL, self._check_listeners)

    def stop(self) -> None:
        """Stop accepting and close the sockets."""
        self._stopped = True
        for timer in (self._pause_timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        for number, listener in self._listening.items():
            self._unwatch(number)
            listener.close()
        self._listening = {}
        if not self._ended.done():
            self._ended.set_result(None)
        self._opened.remove_file()

    async def wait_lost(self) -> None:
        """Return when this acceptor was stopped; raise `TransportError` when a socket no longer listens."""
        await asyncio.shield(self._ended)
        if not self._stopped:
            raise TransportError("its socket was shut down or closed")

    def reopen(self) -> None:
        """Open the lost sockets again, and accept connections from them. Raises `TransportError`."""
        if self._stopped or not self._ended.done():
            return
        for number in range(len(self._opened.sockets)):
            if number not in self._listening:
                listener = self._listening[number] = self._opened.reopen(number)
                self._inodes[number] = _inode(listener)
                if self._pause_timer is None:
                    self._watch(number)
        self._ended = self._loop.create_future()

    def _watch(self, number: int) -> None:
        try:
            self._loop.add_reader(self._listening[number], self._accept, number)
        except NotImplementedError:  # Windows, which has no limit on descriptors
            self._tasks[number] = self._loop.create_task(self._accept_forever(number))

    def _unwatch(self, number: int) -> None:
        if (task := self._tasks.pop(number, None)) is not None:
            task.cancel()
        elif self._pause_timer is None:
            self._loop.remove_reader(self._listening[number])

    def _accept(self, number: int) -> None:
        try:
            for connection in accept_pending(self._listening[number], self._reserve):
                self._on_connection(connection)
        except DescriptorsExhausted:
            self._pause()
        except ListenerClosed as lost:
            self._drop(number, lost)

    def _drop(self, number: int, lost: ListenerClosed) -> None:
        """Close a socket that no longer listens; the other sockets continue."""
        _log.error("%s", lost)
        self._unwatch(number)
        listener = self._listening.pop(number)
        if _inode(listener) == self._inodes[number]:
            listener.close()
        else:
            listener.detach()  # its descriptor was closed, and may belong to something else by now
        if not self._ended.done():
            self._ended.set_result(None)

    async def _accept_forever(self, number: int) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listening[number])
            except ConnectionError:  # the peer has disconnected
                continue
            except OSError:
                self._drop(number, ListenerClosed(self._listening[number]))
                return
            self._on_connection(connection)

    def _check_listeners(self) -> None:
        """Notice sockets whose descriptor was closed: the loop reports no event for them."""
        for number, listener in list(self._listening.items()):
            if not is_listening(listener):
                self._drop(number, ListenerClosed(listener))
        self._check_timer = self._loop.call_later(_LISTENER_CHECK_INTERVAL, self._check_listeners)

    def _pause(self) -> None:
        """Leave connections in the backlog until descriptors are free."""
        for number in self._listening:
            self._unwatch(number)
        self._schedule_check()

    def _schedule_check(self) -> None:
        self._pause_timer = self._loop.call_later(_DESCRIPTOR_CHECK_INTERVAL, self._check_descriptors)
        if self._log_throttle.allow(self._loop.time()):
            _log.warning(self._reserve.shortage_message())

    def _check_descriptors(self) -> None:
        if self._reserve.has_room():
            self._pause_timer = None
            for number in self._listening:
                self._watch(number)
        else:
            self._schedule_check()


def _inode(listener: socket.socket) -> int | None:
    """Return the number that identifies a socket; None if its descriptor was closed, and on Windows."""
    try:
        return os.fstat(listener.fileno()).st_ino
    except OSError:
        return None


class TransportOpener:
    """Opens an asyncio transport with its own protocol for each connection of a source."""

    def __init__(
        self,
        source: ConnectionSource,
        factory: Callable[[], Any],
        tls_options: TlsOptions,
        count_open: Callable[[], int],
    ) -> None:
        """`count_open` returns how many of the protocols that `factory` made have a connection."""
        self._source = source
        self._count_open = count_open
        self._factory = factory
        self._tls_options = tls_options
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        tls_options.watch()
        source.start(self._take, self._count)

    def _count(self) -> int:
        return len(self._tasks) + self._count_open()

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
