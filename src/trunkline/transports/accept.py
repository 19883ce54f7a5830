"""Accepting connections, for every transport that listens.

The listeners of asyncio and uvloop accept all of the backlog, a thousand connections, in one turn of the loop, before a
protocol can refuse any. Out of descriptors, asyncio logs a traceback and accepts again a second later, and
uvloop drops what waits. An `Acceptor` stops before: while the reserve of descriptors is in use, connections stay in the
backlog, and are accepted when descriptors are free again. A socket that was shut down from outside is closed, with one
line in the log.
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

BACKLOG: Final = 1024  # connections that wait to be accepted
_DESCRIPTOR_CHECK_INTERVAL: Final = 0.1  # seconds until the descriptors are looked at again
_INET_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
_ADDRESS_UNAVAILABLE: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
)  # a name may have more than the machine
_ADVICE: Final = {
    errno.EADDRINUSE: "; stop the other program or choose another port",
    errno.EACCES: "; choose a port above 1023, or run with the right to use this one",
    errno.EADDRNOTAVAIL: "; choose an address of this machine",
}

_log: Final = logging.getLogger("trunkline")

AddressInfo = tuple[Any, ...]
"""An entry of what `getaddrinfo` returns."""


class ConnectionSource(Protocol):
    """Where accepted connections come from: an `Acceptor`, or the supervisor of this process."""

    def start(self, on_connection: Callable[[socket.socket], None]) -> None:
        """Pass each connection to `take`, from now on."""
        ...

    def stop(self) -> None:
        """Pass no more."""
        ...


async def resolve(host: str, port: int) -> Sequence[AddressInfo]:
    """The addresses of a host to listen at; without a thread if it is a number."""
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
    """Sockets that listen at each address of a host. A port that is left open is the same at all of them."""
    made: list[socket.socket] = []
    chosen, missing = port, OSError("it has no address")
    try:
        if addresses is None:
            addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            try:
                made.append(_open_listener(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in _ADDRESS_UNAVAILABLE:
                    raise
                missing = error
            else:
                chosen = made[-1].getsockname()[1]
        if not made:
            raise missing
    except OSError as error:
        for listening in made:
            listening.close()
        raise _cannot_listen(host, port, error) from error
    return made


def _open_listener(family: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _cannot_listen(host: str, port: int, error: OSError) -> TransportError:
    why = f"{error.strerror or error}"
    if isinstance(error, socket.gaierror):
        advice = "; choose a name or an address of this machine"
    else:
        advice = _ADVICE.get(error.errno or 0, "")
    return TransportError(f"cannot listen at {format_host_port(host, port)}: {why}{advice}")


class Acceptor:
    """Accept connections from listening sockets, which belong to it, for as long as descriptors last."""

    def __init__(self, listening: Sequence[socket.socket], reserve: DescriptorReserve) -> None:
        self._listeners = list(listening)
        self._reserve = reserve
        self._log_throttle = LogThrottle()
        self._loop = asyncio.get_running_loop()
        self._on_connection: Callable[[socket.socket], None]
        self._timer: asyncio.TimerHandle | None = None  # while accepting pauses
        self._tasks: list[asyncio.Task[None]] = []  # where the loop cannot watch sockets

    def start(self, on_connection: Callable[[socket.socket], None]) -> None:
        """Pass each connection to `take`, from now on."""
        self._on_connection = on_connection
        try:
            self._watch()
        except NotImplementedError:  # Windows, where there is no limit on descriptors
            self._tasks = [self._loop.create_task(self._accept_forever(listening)) for listening in self._listeners]

    def stop(self) -> None:
        """Accept no more, and close the sockets."""
        if self._tasks:
            for task in self._tasks:
                task.cancel()
        elif self._timer is not None:
            self._timer.cancel()
        else:
            self._unwatch()
        for listening in self._listeners:
            listening.close()
        self._listeners, self._tasks = [], []

    def _watch(self) -> None:
        for listening in self._listeners:
            self._loop.add_reader(listening, self._accept, listening)

    def _unwatch(self) -> None:
        for listening in self._listeners:
            self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            for connection in accept_pending(listening, self._reserve):
                self._on_connection(connection)
        except DescriptorsExhausted:
            self._pause()
        except ListenerClosed as ended:
            self._loop.remove_reader(listening)
            self._drop_listener(listening, ended)

    def _drop_listener(self, listening: socket.socket, ended: ListenerClosed) -> None:
        """Close a socket that does not listen any more; the others go on."""
        _log.error("%s", ended)
        self._listeners.remove(listening)
        listening.close()

    async def _accept_forever(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listening)
            except ConnectionError:  # the peer has gone
                continue
            except OSError:
                self._drop_listener(listening, ListenerClosed(listening))
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
    """Make transports of the loop from the connections of a source, each with a protocol of its own."""

    def __init__(self, source: ConnectionSource, factory: Callable[[], Any], tls_options: dict[str, Any]) -> None:
        """`secured` holds the TLS arguments of `connect_accepted_socket`; none of them means no TLS."""
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
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as where a loop accepts
            await self._loop.connect_accepted_socket(self._factory, connection, **self._tls_options)
        except OSError:  # the peer has gone, or speaks no TLS
            connection.close()

    def close(self) -> None:
        """Take no more connections."""
        self._source.stop()


def tls_arguments(context: ssl.SSLContext | None, handshake_timeout: float | None, **others: Any) -> dict[str, Any]:
    """The TLS arguments of an `Opener`. A peer has `handshake` seconds to complete the handshake; None leaves that to
    the loop, which waits for a minute."""
    if context is None:
        return {}
    return {
        "ssl": context,
        **others,
        **({} if handshake_timeout is None else {"ssl_handshake_timeout": handshake_timeout}),
    }
