"""A WebSocket endpoint on a port of this machine, without HTTP: every connection begins with its handshake."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from trunkline.transports.http.request import DetachedTransport, HttpHead, HttpRequest
from trunkline.transports.websocket.server import WebSocketEndpoint


class UpgradingServer:
    """Opens a WebSocket on every connection."""

    def __init__(self, endpoint: WebSocketEndpoint, *, principal: Any = None, expires_at: float | None = None) -> None:
        self.endpoint = endpoint
        self.principal = principal
        self.expires_at = expires_at
        self.transports: list[asyncio.Transport] = []
        self.close_first = False  # lose the transport before the WebSocket is open
        self.lost = 0  # WebSockets whose transport is lost

    def on_closed(self) -> None:
        self.lost += 1


class Acceptor(asyncio.Protocol):
    """Reads the request of one connection, and hands its transport over."""

    def __init__(self, server: UpgradingServer) -> None:
        self._server = server
        self._read = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.transports.append(self._transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, rest = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        line, *fields = head.split(b"\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(b": ") for field in fields)}
        if self._server.close_first:
            self._transport.abort()
        self._rest = rest
        client = self._transport.get_extra_info("peername")[:2]
        request = HttpRequest(cast("Any", self), HttpHead("GET", line.split()[1].decode(), headers), client=client)
        self._server.endpoint.open(request, self._server.principal, self._server.expires_at, self._refuse)

    def is_open(self, _: HttpRequest) -> bool:
        return not self._transport.is_closing()

    def detach(self, _: HttpRequest) -> DetachedTransport:
        return DetachedTransport(self._transport, self._rest, self._server.on_closed)

    def _refuse(self, status: int, reason: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        fields = [*headers, (b"content-length", b"%d" % len(reason.encode())), (b"connection", b"close")]
        head = b"".join([b"%b: %b\r\n" % field for field in fields])
        self._transport.write(b"HTTP/1.1 %d Refused\r\n%b\r\n%b" % (status, head, reason.encode()))
        self._transport.close()


@asynccontextmanager
async def upgrading_server(server: UpgradingServer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Gives the port."""
    listening = await asyncio.get_running_loop().create_server(lambda: Acceptor(server), "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for transport in server.transports:
            if not transport.is_closing():
                transport.abort()
