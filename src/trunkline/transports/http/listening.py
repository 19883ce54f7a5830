"""Waiting for clients over HTTP, with uvicorn and httptools, on the loop that is running."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

from uvicorn.config import Config

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.addresses import spelt
from trunkline.transports.channel import Listener
from trunkline.transports.door import IP
from trunkline.transports.guard import Guard
from trunkline.transports.http.asgi import App
from trunkline.transports.http.connections import Connections
from trunkline.transports.http.gate import Gate
from trunkline.transports.http.health import Health
from trunkline.transports.http.keeper import SessionKeeper
from trunkline.transports.http.relaying import Relay
from trunkline.transports.tcp import BACKLOG, LOOPBACK, warn_if_open
from trunkline.transports.websocket.connections import WebSocketConnection

__all__ = ["Source", "bind", "listen_http", "names_of"]

_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})  # a name may have more than the machine
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - to be told from the others


def names_of(host: str) -> tuple[str, ...]:
    """The names that a server is known by if it is bound to a host, beside those of its own machine."""
    if host in _WILDCARDS:
        return (socket.gethostname(), IP)
    return (f"[{host}]" if ":" in host else host,)


class Source(Protocol):
    """Where connections come from that somebody else takes in."""

    def begin(self, take: Callable[[socket.socket], None]) -> None:
        """Hands each over, from now on."""
        ...

    def stop(self) -> None:
        """Hands no more over."""
        ...


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at a host, at each address that it has, for somebody who takes connections in without a
    loop. A port that is left open is the same at all of them."""
    made: list[socket.socket] = []
    chosen, missing = port, OSError("it has no address")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                made.append(_bound(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
            else:
                chosen = made[-1].getsockname()[1]
        if not made:
            raise missing
    except OSError as error:
        for place in made:
            place.close()
        raise _cannot_listen(host, port, error) from error
    return made


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    place = socket.socket(family, socket.SOCK_STREAM)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        place.bind(address)
        place.listen(BACKLOG)
        place.setblocking(False)
    except BaseException:
        place.close()
        raise
    return place


def _cannot_listen(host: str, port: int, error: OSError) -> TransportError:
    return TransportError(f"cannot listen at {spelt(host, port)}: {error.strerror or error}")


async def listen_http(
    guard: Guard,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    path: str = "/",
    tls: ssl.SSLContext | None = None,
    gate: Gate | None = None,
    keeper: SessionKeeper | None = None,
    relay: Relay | None = None,
    health: Health | None = None,
    source: Source | None = None,
) -> Listener:
    """Waits for clients at a host and port: Streamable HTTP and WebSocket at a path, HTTP+SSE beside it. Sessions
    outlive this process if there is a keeper; `relay` carries requests to where others are held. Where there is a
    source of connections, somebody else listens there."""

    async def guarded() -> Guard:
        return guard

    async def nothing() -> None:
        pass

    app = App(guarded, nothing, path=path, gate=gate, keeper=lambda: keeper, relay=lambda: relay, health=health)
    connections = Connections(guard, _config(app, guard.settings))
    secured: dict[str, Any] = {"ssl": tls} if tls else {}
    scheme = "https" if tls else "http"
    if source is not None:
        handed = _Handed(source, connections, secured)
        return _HttpListener(app, handed, connections, f"{scheme}://{spelt(host, port)}{path}")
    try:
        server = await asyncio.get_running_loop().create_server(
            connections.make, host, port, backlog=BACKLOG, **secured
        )
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    bound = [place.getsockname()[:2] for place in server.sockets]
    address = f"{scheme}://{spelt(*bound[0])}{path}"
    warn_if_open(address, [place[0] for place in bound], tls)
    return _HttpListener(app, server, connections, address)


def _config(app: App, settings: Settings) -> Config:
    """uvicorn's settings: everything that is ours to do is off."""
    config = Config(
        app,  # pyright: ignore[reportArgumentType] - ASGI as we have it is less exact
        loop="none",
        http="httptools",
        ws=WebSocketConnection,
        ws_max_size=settings.ws_message_size_limit,
        ws_ping_interval=None,
        ws_ping_timeout=None,
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.idle_timeout,  # pyright: ignore[reportArgumentType] - it is only added to a time
    )
    config.load()
    return config


class _Handed:
    """Connections that come from a source, each made a protocol of."""

    def __init__(self, source: Source, connections: Connections, secured: dict[str, Any]) -> None:
        self._source = source
        self._make = connections.make
        self._secured = secured
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        source.begin(self._take)

    def _take(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as where loops take connections in
            await self._loop.connect_accepted_socket(self._make, connection, **self._secured)
        except OSError:  # the peer has gone, or speaks no TLS
            connection.close()

    def close(self) -> None:
        """Takes no more."""
        self._source.stop()


class _HttpListener:
    """A place where clients are waited for."""

    def __init__(
        self, app: App, server: asyncio.AbstractServer | _Handed, connections: Connections, address: str
    ) -> None:
        self._app = app
        self._server = server
        self._connections = connections
        self._address = address

    @property
    def address(self) -> str:
        """Where it is; the port that was chosen, if it was left open."""
        return self._address

    async def close(self) -> None:
        """Takes no more clients, and lets those go who wait for nothing in particular."""
        self._server.close()
        self._app.release()
        await asyncio.sleep(0)  # uvloop closes on the next turn

    async def gone(self) -> None:
        """Ends what is left: answers that are being written have a moment, what waits for a request has none."""
        await self._app.aclose()
        state = self._connections.state
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=1.0)
        for connection in list(state.connections):
            with contextlib.suppress(AttributeError):
                connection.transport.abort()  # pyright: ignore[reportOptionalMemberAccess]
        self._connections.close()
