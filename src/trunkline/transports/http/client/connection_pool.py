"""HTTP backend: connections to any origin, directly or through a proxy, used again while the server keeps them alive.

The pool has no policies of its own: no redirects, cookies, decompression, environment variables, limits on connections
or deadlines for responses. Only connecting has a timeout. The caller limits the number of requests.

A request is sent once, on one connection. If a connection that was used before turns out to be closed, and no byte of
the response has arrived, a request of an idempotent method is sent once more, on a new connection. A POST never is: the
server may have processed it.
"""

import asyncio
import ssl
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Final, TypeVar

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.http.client.dial import dial
from trunkline.transports.http.client.http1_connection import Http1Connection, NoResponse
from trunkline.transports.http.client.http1_request import (
    Origin,
    Target,
    encode_headers,
    encode_request,
    parse_target,
)
from trunkline.transports.http.client.http_backend import Cancel, OnOutcome, Reply, RequestNotSent, Resolve, Vet
from trunkline.transports.proxy import Proxy
from trunkline.transports.sockets import describe_connect_error
from trunkline.transports.start_tls import start_tls

__all__ = ["ConnectionPool"]

K = TypeVar("K")
V = TypeVar("V")
_READ_SIZE: Final = 256 * 1024
_IDLE_TIMEOUT: Final = 15.0  # seconds; less than servers use, so that they rarely close a connection first
_TRUSTED_FOR: Final = 0.5  # seconds; after that, a look at the socket tells whether the server has closed it
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "DELETE"})
_MAX_CACHED: Final = 64  # URLs and header blocks in encoded form


class ConnectionPool:
    """Sends requests on pooled connections. Requests may run concurrently, each on its own connection."""

    def __init__(
        self,
        settings: Settings,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        resolve: Resolve | None = None,
        vet: Vet | None = None,
        uds: str | None = None,
    ) -> None:
        """`resolve` replaces the system's name resolution. `vet` checks each address, once after resolution and again
        when its socket is created. Behind a proxy, both apply to the proxy. With `uds`, all connections are to this
        Unix socket, whatever the origin."""
        self._loop = asyncio.get_running_loop()
        self._connect_timeout = settings.connect_timeout
        self._tls = tls
        self._proxy = None if proxy is None else Proxy(proxy, tls=tls)
        self._uds = uds
        self._dial = partial(dial, resolve=resolve, vet=vet)
        self._read_buffer = memoryview(bytearray(_READ_SIZE))
        self._targets: dict[str, Target] = {}
        self._header_blocks: dict[tuple[Target, tuple[tuple[str, str], ...]], bytes] = {}
        self._idle: dict[Origin, list[Http1Connection]] = {}
        self._origins: dict[Http1Connection, Origin] = {}  # of all open connections
        self._reaper: asyncio.TimerHandle | None = None  # closes connections that were idle for too long
        self._closed = False

    # --- requests -------------------------------------------------------------------------------

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
        """Send a request and wait for the response headers."""
        target, request = self._encode(method, url, headers, body)
        connection = self._take_idle(target.origin)
        if connection is not None:
            try:
                return await self._exchange(connection, method, request)
            except NoResponse:
                if method not in _IDEMPOTENT:
                    raise
        return await self._exchange(await self._connect(target.origin), method, request)

    def start(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, on_outcome: OnOutcome
    ) -> Cancel | None:
        """Send a request at once if a connection is idle."""
        target, request = self._encode(method, url, headers, body)
        connection = self._take_idle(target.origin)
        if connection is None:
            return None
        connection.start(method, request, on_outcome)
        return connection.abort

    async def _exchange(self, connection: Http1Connection, method: str, request: bytes) -> Reply:
        outcome: asyncio.Future[Reply] = self._loop.create_future()
        connection.start(method, request, partial(_resolve, outcome))
        try:
            return await outcome
        except asyncio.CancelledError:
            if outcome.cancelled():
                connection.abort()
            elif outcome.exception() is None:
                outcome.result().close()  # of a complete response: the connection may carry another request by now
            raise

    def _encode(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> tuple[Target, bytes]:
        if self._closed:
            raise RequestNotSent("the client is closed")
        try:
            target = self._targets.get(url) or _remember(self._targets, url, parse_target(url))
            key = (target, tuple(headers.items()))
            block = self._header_blocks.get(key)
            if block is None:
                block = _remember(self._header_blocks, key, self._encode_headers(target, headers))
        except ValueError as error:
            raise RequestNotSent(str(error)) from error
        through_proxy = self._proxy is not None and not target.origin.secure
        return target, encode_request(method, target.absolute if through_proxy else target.path, block, body)

    def _encode_headers(self, target: Target, headers: Mapping[str, str]) -> bytes:
        if self._proxy is not None and not target.origin.secure and self._proxy.authorization is not None:
            headers = {**headers, "Proxy-Authorization": self._proxy.authorization}
        return encode_headers(target, headers)

    # --- idle connections -----------------------------------------------------------------------

    def _take_idle(self, origin: Origin) -> Http1Connection | None:
        """Return the connection that was used last, since it is the least likely to be closed by the server."""
        idle = self._idle.get(origin)
        now = self._loop.time()
        while idle:
            connection = idle.pop()
            seconds = now - connection.idle_since
            if seconds < _IDLE_TIMEOUT and connection.is_alive(check_socket=seconds > _TRUSTED_FOR):
                return connection
            connection.abort()
        return None

    def _on_idle(self, connection: Http1Connection) -> None:
        connection.idle_since = self._loop.time()
        self._idle.setdefault(self._origins[connection], []).append(connection)
        if self._reaper is None:
            self._reaper = self._loop.call_later(_IDLE_TIMEOUT, self._close_idle)

    def _on_lost(self, connection: Http1Connection) -> None:
        origin = self._origins.pop(connection, None)
        idle = None if origin is None else self._idle.get(origin)
        if idle and connection in idle:
            idle.remove(connection)

    def _close_idle(self) -> None:
        """Close the connections that were idle for too long, and come back for the others."""
        self._reaper = None
        now = self._loop.time()
        for connection in [each for idle in self._idle.values() for each in idle]:
            if now - connection.idle_since >= _IDLE_TIMEOUT:
                connection.abort()
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}
        if self._idle:
            oldest = min(each.idle_since for idle in self._idle.values() for each in idle)
            self._reaper = self._loop.call_at(oldest + _IDLE_TIMEOUT, self._close_idle)

    # --- new connections ------------------------------------------------------------------------

    async def _connect(self, origin: Origin) -> Http1Connection:
        """Open a connection. Raise `RequestNotSent`."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await (
                    self._connect_directly(origin)
                    if self._proxy is None
                    else self._connect_through(self._proxy, origin)
                )
        except RequestNotSent:
            raise
        except TimeoutError as error:
            raise RequestNotSent(f"no answer within {self._connect_timeout:g} s") from error
        except (TransportError, OSError) as error:
            raise RequestNotSent(_describe(error)) from error
        except ValueError as error:  # a name that cannot be resolved, such as one with an overlong label
            raise RequestNotSent("the URL is invalid") from error
        if self._closed:
            connection.abort()
            raise RequestNotSent("the client is closed")
        if not connection.is_alive(check_socket=False):  # its end would not be reported to a request that starts now
            connection.abort()
            raise RequestNotSent("the server closed the connection, or sent something, before the request")
        self._origins[connection] = origin
        return connection

    async def _connect_directly(self, origin: Origin) -> Http1Connection:
        if self._uds is not None:
            _, connection = await self._loop.create_unix_connection(self._new_connection, self._uds)
            return connection
        context = (self._tls or _default_context()) if origin.secure else None
        return await self._open(await self._dial(origin.host, origin.port), context, origin.host)

    async def _connect_through(self, proxy: Proxy, origin: Origin) -> Http1Connection:
        """Connect to the proxy; for a secure origin, open a tunnel to it."""
        try:
            socket = await self._dial(proxy.host, proxy.port)
        except OSError as error:
            raise RequestNotSent(f"the proxy cannot be reached: {describe_connect_error(error)}") from error
        if not origin.secure:
            return await self._open(socket, proxy.tls, proxy.host)
        transport = await proxy.tunnel(origin.host, origin.port, sock=socket)
        connection = self._new_connection()
        await start_tls(transport, connection, self._tls or _default_context(), origin.host)
        return connection

    async def _open(self, socket: Any, context: ssl.SSLContext | None, host: str) -> Http1Connection:
        transport, connection = await self._loop.create_connection(self._new_connection, sock=socket)
        if context is not None:
            await start_tls(transport, connection, context, host)
        return connection

    def _new_connection(self) -> Http1Connection:
        return Http1Connection(self._read_buffer, self._on_idle, self._on_lost)

    async def close_idle(self) -> None:
        """Close the connections that carry no request. Requests in progress continue, and the pool stays usable."""
        for connection in [each for idle in self._idle.values() for each in idle]:
            connection.abort()
        await asyncio.sleep(0)  # transports close on the next turn of the loop

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        for connection in list(self._origins):
            connection.fail(TransportError("the client was closed"))
        await asyncio.sleep(0)  # transports close on the next turn of the loop


@cache
def _default_context() -> ssl.SSLContext:
    """Return the context that trusts the system's certificate authorities."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _describe(error: Exception) -> str:
    return describe_connect_error(error) if isinstance(error, OSError) else str(error)


def _remember(cached: dict[K, V], key: K, value: V) -> V:
    if len(cached) >= _MAX_CACHED:
        cached.clear()
    cached[key] = value
    return value


def _resolve(outcome: "asyncio.Future[Reply]", result: Reply | TransportError) -> None:
    if outcome.done():  # cancelled; the connection is about to be closed
        return
    if isinstance(result, TransportError):
        outcome.set_exception(result)
    else:
        outcome.set_result(result)
