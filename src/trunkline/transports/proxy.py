"""HTTP proxies: their addresses and credentials, and tunnels by the CONNECT method."""

import asyncio
import base64
import socket
import ssl
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from trunkline.errors import ConfigError, TransportError
from trunkline.transports.addresses import format_host_port
from trunkline.transports.start_tls import start_tls

__all__ = ["Proxy"]

_MAX_HEAD_SIZE: Final = 16 * 1024


class Proxy:
    """An HTTP proxy with an address like `http://user:password@host:3128` or `https://…`."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is for a proxy with an `https://` address, by default with the system's certificate authorities."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or parts.hostname is None:
            raise ConfigError("a proxy has an address like http://proxy.example.org:3128")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.authorization: str | None = None  # the value of `Proxy-Authorization`
        if parts.username:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.authorization = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        self.tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None

    async def tunnel(self, host: str, port: int, sock: socket.socket | None = None) -> asyncio.Transport:
        """Open a tunnel to a host, on a socket that is connected to the proxy, or on a new one. Raise `TransportError`
        if the proxy refuses."""
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": self.host, "port": self.port} if sock is None else {"sock": sock}
        request = _TunnelRequest(self._connect_request(format_host_port(host, port)))
        transport: asyncio.Transport
        if self.tls is None:
            transport, _ = await loop.create_connection(lambda: request, **where)
        else:
            transport, _ = await loop.create_connection(asyncio.Protocol, **where)
            transport = await start_tls(transport, request, self.tls, self.host)
        try:
            status = await request.status_line
            if not status.split()[1:2] == ["200"]:
                raise TransportError(f"the proxy at {format_host_port(self.host, self.port)} answered {status!r}")
        except BaseException:
            transport.abort()
            raise
        return transport

    def _connect_request(self, target: str) -> bytes:
        head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
        if self.authorization is not None:
            head += f"Proxy-Authorization: {self.authorization}\r\n"
        return f"{head}\r\n".encode()


class _TunnelRequest(asyncio.Protocol):
    """Sends a CONNECT request and waits for the status line of the response."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = b""
        self.status_line: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.status_line.done():
            return
        if b"\r\n\r\n" in self._received:
            self.status_line.set_result(self._received.partition(b"\r\n")[0].decode("latin-1"))
        elif len(self._received) > _MAX_HEAD_SIZE:
            self.status_line.set_result("response header too large")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the cause does not matter
        if not self.status_line.done():
            self.status_line.set_result("connection closed")
