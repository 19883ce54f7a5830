"""WebSocket, the side that calls: one message in each text frame, without compression.

The protocol is that of the library `websockets`, without its I/O: a read hands up all messages that it brought, and
what is sent meanwhile leaves in one write, with no task and no queue between. The server's pings are answered, and none
are sent, since MCP has its own.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, ConfigError, TransportError
from trunkline.transports.addresses import WEBSOCKET_PORTS, format_host_port, parse_address
from trunkline.transports.channel import Accept, Channel, ChannelClosed, ChannelInfo
from trunkline.transports.http.client.credentials import Auth, HttpExchange, credentials_for
from trunkline.transports.sockets import LINGER, AdmitConnection, SocketConnection, SocketConnectionFactory, dial
from trunkline.transports.stream import StreamChannel
from trunkline.transports.websocket.proxy import Proxy

try:
    from trunkline.transports.websocket.framing import ClientFraming, HandshakeRefused
except ModuleNotFoundError as error:
    raise ConfigError("WebSocket needs the package websockets: pip install 'trunkline[http]'") from error

__all__ = ["WebSocketConnector"]

_MAX_AUTH_ATTEMPTS: Final = 8  # with other credentials each; whoever has them stops long before


class WebSocketConnector:
    """Opens lines to a server at an address like `ws://127.0.0.1:8000/mcp` or `wss://example.org/mcp`."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        auth: Auth | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`headers` go with the request that opens a line. `tls` says whom to trust with `wss://`, by default whom the
        system trusts. `proxy` is the address of an HTTP proxy; the environment is not asked for one. `auth` proves who
        we are: a token, or a way to get some."""
        where = parse_address(url)
        if where.scheme not in WEBSOCKET_PORTS:
            raise ConfigError(f"{where.scheme}:// is no WebSocket; ws:// and wss:// are")
        if tls is not None and where.scheme != "wss":
            raise ConfigError("tls= is for wss:// addresses")
        self._host, self._port = where.host, where.port
        self._context = tls or (ssl.create_default_context() if where.scheme == "wss" else None)
        self._proxy = None if proxy is None else Proxy(proxy)
        peer = format_host_port(where.host, where.port)
        self._name = f"{where.scheme}://{peer}{where.path.partition('?')[0]}"
        self._url = f"{where.scheme}://{peer}{where.path}"
        self._headers = dict(headers or {})
        self._settings = settings or Settings()
        self._peer = peer
        self._http_url = f"http{self._url.removeprefix('ws')}"  # as the handshake is a request of HTTP
        self._credentials = credentials_for(auth, self._http_url, self._settings, tls)
        self.pending_authorizations = 0  # that have to be settled before there is a line: who we are, for one

    @property
    def name(self) -> str:
        """The server's address, without what may be a secret in it."""
        return self._name

    async def connect(self, accept: Accept) -> Channel:
        """Opens a line. If the server wants to know who we are, and that can be settled, it is asked once more."""
        credentials = self._credentials
        for _ in range(_MAX_AUTH_ATTEMPTS):
            proof: Mapping[str, str] = {} if credentials is None else await credentials.headers("GET", self._http_url)
            lines = _WebSocketConnectionFactory(self._url, {**self._headers, **proof}, self._settings, self._peer)
            try:
                return await dial(self.name, lines, accept, self._open)
            except HandshakeRefused as refused:
                heard = HttpExchange("GET", self._http_url, proof, refused.status, refused.headers)
                if credentials is None or not await credentials.handle_response(heard, self._on_authorizing):
                    raise
        raise AuthorizationFailed("the server is never content with who we are", hop="retry")

    def _on_authorizing(self, begun: bool) -> None:
        self.pending_authorizations += 1 if begun else -1

    async def _open(self, factory: Callable[[], Any]) -> tuple[Any, SocketConnection]:
        proxy = self._proxy
        try:
            transport, line = await (
                self._connect_directly(factory) if proxy is None else self._connect_through_proxy(proxy, factory)
            )
            await _wait_for_handshake(transport, line)
        except HandshakeRefused as error:
            raise HandshakeRefused(
                f"cannot reach {self.name}: {error}", error.status, error.headers
            ) from error.__cause__
        except TransportError as error:
            raise TransportError(f"cannot reach {self.name}: {error}") from error.__cause__
        return transport, line

    async def _connect_directly(
        self, factory: "Callable[[], _WebSocketClientConnection]"
    ) -> "tuple[asyncio.Transport, _WebSocketClientConnection]":
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {"ssl": self._context, "ssl_shutdown_timeout": LINGER} if self._context else {}
        return await loop.create_connection(factory, self._host, self._port, **secured)

    async def _connect_through_proxy(
        self, proxy: Proxy, factory: "Callable[[], _WebSocketClientConnection]"
    ) -> "tuple[asyncio.Transport, _WebSocketClientConnection]":
        loop, line = asyncio.get_running_loop(), factory()
        transport: Any = await proxy.tunnel(self._host, self._port)
        try:
            if self._context is None:
                transport.set_protocol(line)
            else:
                transport = await loop.start_tls(
                    transport, line, self._context, server_hostname=self._host, ssl_shutdown_timeout=LINGER
                )
        except BaseException:
            transport.abort()
            raise
        line.connection_made(transport)
        return transport, line


async def _wait_for_handshake(transport: asyncio.Transport, line: "_WebSocketClientConnection") -> None:
    """Waits until the server has agreed."""
    try:
        await line.opened
    except BaseException:
        transport.abort()
        raise


class _WebSocketConnectionFactory(SocketConnectionFactory):
    """What the lines to one server have in common."""

    def __init__(self, url: str, headers: Mapping[str, str], settings: Settings, peer: str) -> None:
        super().__init__("websocket", settings, peer=peer)
        self._url = url
        self._headers = headers
        self.info = ChannelInfo("websocket", peer, needs_keepalive=True)

    def new_connection(self, admit: AdmitConnection) -> SocketConnection:
        """A new line, with a handshake of its own."""
        return _WebSocketClientConnection(
            self, admit, ClientFraming(self._url, self._headers, self.settings.ws_message_size_limit)
        )


class _WebSocketClientConnection(SocketConnection):
    """A line over a socket that begins with a handshake, and ends with another."""

    def __init__(self, lines: _WebSocketConnectionFactory, admit: AdmitConnection, framing: ClientFraming) -> None:
        super().__init__(lines, admit)
        self._info = lines.info
        self._settings = lines.settings
        self._framing = framing
        self._handshake_done = False  # the server has agreed
        self.opened: asyncio.Future[None] = self._loop.create_future()

    def _new_channel(self) -> StreamChannel:
        limit = self._settings.ws_message_size_limit
        return StreamChannel(
            self._info, max_frame=limit, settings=self._settings, framing=self._framing, read_while_blocked=True
        )

    # --- the handshake ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection; the server is asked whether it wants it to be a WebSocket."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._framing.handshake_request())

    def _read_handshake(self, data: bytes) -> None:
        """Takes what the server answers to that."""
        try:
            if not self._framing.receive_handshake(data):
                return
        except TransportError as error:
            self._fail_handshake(error)
            return
        self._handshake_done = True
        super().connection_made(self._transport)
        self.opened.set_result(None)
        if not self._closing:
            self._feed(b"")  # what came along with the answer
            self._handle_control_frames()

    def _fail_handshake(self, error: TransportError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # who waited for it may have gone
        self._transport.abort()

    # --- what the loop tells ---------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        """Takes what was read."""
        if self._handshake_done:
            super().buffer_updated(nbytes)
            self._handle_control_frames()
        elif not self.opened.done():
            self._read_handshake(self._read_buffer[:nbytes].tobytes())

    def _handle_control_frames(self) -> None:
        """Says what the protocol wants said, and ends where it ends."""
        if self._closing:
            return
        if due := self._framing.pending_output():
            self._transport.write(due)
        if (why := self._framing.closed_by_peer) is not None:
            self._peer_closed = True
            self.channel.receive_eof(ChannelClosed(why))
        elif (why := self._framing.failure_reason) is not None:
            self.channel.receive_eof(ChannelClosed(why, too_large=self._framing.too_large))

    def eof_received(self) -> None:
        """The server says no more."""
        if self._handshake_done:
            super().eof_received()
        elif not self.opened.done():
            self._read_handshake(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is gone."""
        if self._handshake_done:
            super().connection_lost(exc)
        else:
            self._fail_handshake(
                TransportError("the connection broke" if exc is None else f"the connection broke: {exc}")
            )
            self._disconnected.set_result(None)

    # --- what the channel asks for ---------------------------------------------------------------

    def close(self) -> None:
        """Begins the end."""
        if not self._closing and not self._peer_closed and not self.unsent:
            self._transport.write(self._framing.close_frame())
        super().close()
