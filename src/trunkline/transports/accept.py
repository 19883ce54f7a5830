"""Accept connections, for every transport that listens.

The listeners of asyncio and uvloop accept the whole backlog, a thousand connections, in one turn of the loop, before a
protocol can refuse any. When descriptors run out, asyncio logs a traceback and accepts again a second later, and uvloop
drops the pending connections. An `Acceptor` stops earlier: while the descriptor reserve is in use, connections stay in
the backlog, and the acceptor resumes when descriptors are free again. If a socket is shut down from outside, the
acceptor closes it and logs one line.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from trunkline.backlog import DescriptorsExhausted, ListenerClosed, accept_pending
from trunkline.errors import TransportError
from trunkline.fdlimit import DescriptorReserve, LogThrottle
from trunkline.transports.addresses import format_host_port

__all__ = ["BACKLOG", "Acceptor", "ConnectionSource", "TransportOpener", "bind", "resolve", "tls_arguments"]

BACKLOG: Final = 1024  # pending connections per listening socket
_DESCRIPTOR_CHECK_INTERVAL: Final = 0.1  # seconds between two checks for free descriptors
_INET_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
_ADDRESS_UNAVAILABLE: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
)  # a host name may resolve to addresses of other machines
_ADVICE: Final = {
    errno.EADDRINUSE: "; stop the other program or choose another port",
    errno.EACCES: "; choose a port above 1023, or run with the right to use this one",
    errno.EADDRNOTAVAIL: "; choose an address of this machine",
}

_log: Final = logging.getLogger("trunkline")

AddressInfo = tuple[Any, ...]
"""One entry of the result of `getaddrinfo`."""


class ConnectionSource(Protocol):
    """Source of accepted connections: an `Acceptor`, or the supervisor of this process."""

    def start(self, on_connection: Callable[[socket.socket], None]) -> None:
        """Pass each connection to `on_connection`, from now on."""
        ...

    def stop(self) -> None:
        """Pass no more connections."""
        ...


async def resolve(host: str, port: int) -> Sequence[AddressInfo]:
    """Return the addresses of a host to listen on; a numeric address is resolved without a thread."""
    flags = socket.AI_PASSIVE
    try:
        return socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST if host else flags
        )
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        try:
            return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error


def bind(host: str, port: int, addresses: Sequence[AddressInfo] | None = None) -> list[socket.socket]:
    """Open a listening socket for each address of a host. If the port is 0, all sockets share the port that the
    system chose."""
    listeners: list[socket.socket] = []
    chosen, unavailable = port, OSError("it has no address")
    try:
        if addresses is None:
            addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            try:
                listeners.append(_open_listener(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in _ADDRESS_UNAVAILABLE:
                    raise
                unavailable = error
            else:
                chosen = listeners[-1].getsockname()[1]
        if not listeners:
            raise unavailable
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise _cannot_listen(host, port, error) from error
    return listeners


def _open_listener(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> TransportError:
    reason = f"{error.strerror or error}"
    if isinstance(error, socket.gaierror):
        advice = "; choose a name or an address of this machine"
    else:
        advice = _ADVICE.get(error.errno or 0, "")
    return TransportError(f"cannot listen on {format_host_port(host, port)}: {reason}{advice}")


class Acceptor:
    """Accepts connections from listening sockets, which it owns, while descriptors are free."""

    def __init__(self, listener: Sequence[socket.socket], reserve: DescriptorReserve) -> None:
        self._listeners = list(listener)
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

    def __init__(self, source: ConnectionSource, factory: Callable[[], Any], tls_options: dict[str, Any]) -> None:
        """`tls_options` holds the TLS arguments of `connect_accepted_socket`; empty means no TLS."""
        self._source = source
        self._factory = factory
        self._tls_options = tls_options
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
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
            await self._loop.connect_accepted_socket(self._factory, connection, **self._tls_options)
        except OSError:  # the peer has disconnected, or the TLS handshake failed
            connection.close()

    def close(self) -> None:
        """Accept no more connections."""
        self._source.stop()


def tls_arguments(context: ssl.SSLContext | None, handshake_timeout: float | None, **others: Any) -> dict[str, Any]:
    """Return the TLS options of a `TransportOpener`.

    `handshake_timeout` limits the TLS handshake, in seconds; None means asyncio's default of one minute.
    """
    if context is None:
        return {}
    return {
        "ssl": context,
        **others,
        **({} if handshake_timeout is None else {"ssl_handshake_timeout": handshake_timeout}),
    }
