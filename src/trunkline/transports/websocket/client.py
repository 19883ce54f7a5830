"""WebSocket transport, client side: one message per text frame, without compression.

The protocol is the sans-I/O part of the library `websockets`: each read delivers all of its messages, and replies leave
in one write, without tasks and queues. The client answers the server's pings and sends none, since MCP has its own.
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
from trunkline.transports.proxy import Proxy
from trunkline.transports.sockets import LINGER, AdmitConnection, SocketConnection, SocketConnectionFactory, dial
from trunkline.transports.start_tls import start_tls
from trunkline.transports.stream import StreamChannel

try:
    from trunkline.transports.websocket.framing import ClientFraming, HandshakeRefused
except ModuleNotFoundError as error:
    raise ConfigError("WebSocket needs the package websockets: pip install 'trunkline[http]'") from error

__all__ = ["WebSocketConnector"]

_MAX_AUTH_ATTEMPTS: Final = 8  # a limit for faulty credentials, which ask for a retry every time


class WebSocketConnector:
    """Connects to a server at an address like `ws://127.0.0.1:8000/mcp` or `wss://example.org/mcp`."""

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
        """`headers` are sent with the opening handshake. `tls` is a context for `wss://`, by default with the
        system's certificate authorities. `proxy` is the address of an HTTP proxy; proxy variables of the environment
        are ignored. `auth` is a token or an authorizer."""
        address = parse_address(url)
        if address.scheme not in WEBSOCKET_PORTS:
            raise ConfigError(f"{address.scheme}:// is not a WebSocket scheme; use ws:// or wss://")
        if tls is not None and address.scheme != "wss":
            raise ConfigError("tls= is for wss:// addresses")
        self._host, self._port = address.host, address.port
        self._context = tls or (ssl.create_default_context() if address.scheme == "wss" else None)
        self._proxy = None if proxy is None else Proxy(proxy)
        peer = format_host_port(address.host, address.port)
        self._name = f"{address.scheme}://{peer}{address.path.partition('?')[0]}"
        self._url = f"{address.scheme}://{peer}{address.path}"
        self._headers = dict(headers or {})
        self._settings = settings or Settings()
        self._peer = peer
        self._http_url = f"http{self._url.removeprefix('ws')}"  # the handshake is an HTTP request
        self._credentials = credentials_for(auth, self._http_url, self._settings, tls)
        self.pending_authorizations = 0  # authorizations in progress

    @property
    def name(self) -> str:
        """The server's address without its query, which may contain secrets."""
        return self._name

    async def connect(self, accept: Accept) -> Channel:
        """Open a connection. If the server demands authorization, authorize and repeat the handshake."""
        credentials = self._credentials
        for _ in range(_MAX_AUTH_ATTEMPTS):
            auth_headers: Mapping[str, str] = (
                {} if credentials is None else await credentials.headers("GET", self._http_url)
            )
            factory = _WebSocketConnectionFactory(
                self._url, {**self._headers, **auth_headers}, self._settings, self._peer
            )
            try:
                return await dial(self.name, factory, accept, self._open)
            except HandshakeRefused as refused:
                exchange = HttpExchange("GET", self._http_url, auth_headers, refused.status, refused.headers)
                if credentials is None or not await credentials.handle_response(exchange, self._on_authorizing):
                    raise
        raise AuthorizationFailed("the server demands other credentials again and again", hop="retry")

    def _on_authorizing(self, begun: bool) -> None:
        self.pending_authorizations += 1 if begun else -1

    async def _open(self, factory: Callable[[], Any]) -> tuple[Any, SocketConnection]:
        proxy = self._proxy
        try:
            transport, connection = await (
                self._connect_directly(factory) if proxy is None else self._connect_through_proxy(proxy, factory)
            )
            await _wait_for_handshake(transport, connection)
        except HandshakeRefused as error:
            raise HandshakeRefused(
                f"cannot reach {self.name}: {error}", error.status, error.headers
            ) from error.__cause__
        except TransportError as error:
            raise TransportError(f"cannot reach {self.name}: {error}") from error.__cause__
        return transport, connection

    async def _connect_directly(
        self, factory: "Callable[[], _WebSocketClientConnection]"
    ) -> "tuple[asyncio.Transport, _WebSocketClientConnection]":
        loop = asyncio.get_running_loop()
        tls_options: dict[str, Any] = {"ssl": self._context, "ssl_shutdown_timeout": LINGER} if self._context else {}
        return await loop.create_connection(factory, self._host, self._port, **tls_options)

    async def _connect_through_proxy(
        self, proxy: Proxy, factory: "Callable[[], _WebSocketClientConnection]"
    ) -> "tuple[asyncio.Transport, _WebSocketClientConnection]":
        connection = factory()
        transport = await proxy.tunnel(self._host, self._port)
        if self._context is None:
            transport.set_protocol(connection)
            connection.connection_made(transport)
        else:
            transport = await start_tls(transport, connection, self._context, self._host, ssl_shutdown_timeout=LINGER)
        return transport, connection


async def _wait_for_handshake(transport: asyncio.Transport, connection: "_WebSocketClientConnection") -> None:
    """Wait until the server has completed the handshake."""
    try:
        await connection.opened
    except BaseException:
        transport.abort()
        raise


class _WebSocketConnectionFactory(SocketConnectionFactory):
    """Settings that the connections to one server share."""

    def __init__(self, url: str, headers: Mapping[str, str], settings: Settings, peer: str) -> None:
        super().__init__("websocket", settings, peer=peer)
        self._url = url
        self._headers = headers
        self.info = ChannelInfo("websocket", peer, needs_keepalive=True)

    def new_connection(self, admit: AdmitConnection) -> SocketConnection:
        """Create a connection with its own handshake."""
        return _WebSocketClientConnection(
            self, admit, ClientFraming(self._url, self._headers, self.settings.ws_message_size_limit)
        )


class _WebSocketClientConnection(SocketConnection):
    """Socket connection that begins with the WebSocket handshake and ends with the closing handshake."""

    def __init__(self, factory: _WebSocketConnectionFactory, admit: AdmitConnection, framing: ClientFraming) -> None:
        super().__init__(factory, admit)
        self._info = factory.info
        self._settings = factory.settings
        self._framing = framing
        self._handshake_done = False
        self.opened: asyncio.Future[None] = self._loop.create_future()

    def _new_channel(self) -> StreamChannel:
        limit = self._settings.ws_message_size_limit
        return StreamChannel(
            self._info, max_frame=limit, settings=self._settings, framing=self._framing, read_while_blocked=True
        )

    # --- the handshake ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake request."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._framing.handshake_request())

    def _read_handshake(self, data: bytes) -> None:
        """Process the server's handshake response."""
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
            self._feed(b"")  # frames that followed the handshake response
            self._handle_control_frames()

    def _fail_handshake(self, error: TransportError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # the waiting task may have been cancelled; mark as retrieved
        self._transport.abort()

    # --- callbacks of asyncio ---------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes of one read."""
        if self._handshake_done:
            super().buffer_updated(nbytes)
            self._handle_control_frames()
        elif not self.opened.done():
            self._read_handshake(self._read_buffer[:nbytes].tobytes())

    def _handle_control_frames(self) -> None:
        """Send pending control frames, and close the channel if the protocol has ended."""
        if self._closing:
            return
        if output := self._framing.pending_output():
            self._transport.write(output)
        if (reason := self._framing.closed_by_peer) is not None:
            self._peer_closed = True
            self.channel.receive_eof(ChannelClosed(reason))
        elif (reason := self._framing.failure_reason) is not None:
            self.channel.receive_eof(ChannelClosed(reason, too_large=self._framing.too_large))

    def eof_received(self) -> None:
        """The server has closed its direction."""
        if self._handshake_done:
            super().eof_received()
        elif not self.opened.done():
            self._read_handshake(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._handshake_done:
            super().connection_lost(exc)
        else:
            self._fail_handshake(
                TransportError("the connection broke" if exc is None else f"the connection broke: {exc}")
            )
            self._disconnected.set_result(None)

    # --- source of the channel --------------------------------------------------------------------

    def close(self) -> None:
        """Send a close frame and begin to close the connection."""
        if not self._closing and not self._peer_closed and not self.unsent:
            self._transport.write(self._framing.close_frame())
        super().close()
