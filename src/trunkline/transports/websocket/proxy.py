"""Tunnels through an HTTP proxy, by the CONNECT method."""

import asyncio
import base64
import ssl
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from trunkline.errors import ConfigError, TransportError
from trunkline.transports.addresses import format_host_port

__all__ = ["Proxy"]

_MAX_HEAD_SIZE: Final = 16 * 1024


class Proxy:
    """An HTTP proxy with an address like `http://user:password@host:3128` or `https://…`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or parts.hostname is None:
            raise ConfigError("a proxy has an address like http://proxy.example.org:3128")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None

    async def tunnel(self, host: str, port: int) -> asyncio.Transport:
        """Open a tunnel to a host. Raise `TransportError` if the proxy refuses."""
        loop = asyncio.get_running_loop()
        transport, request = await loop.create_connection(
            lambda: _TunnelRequest(self._connect_request(format_host_port(host, port))),
            self._host,
            self._port,
            ssl=self._tls,
        )
        try:
            status = await request.status_line
            if not status.split()[1:2] == ["200"]:
                raise TransportError(f"the proxy at {format_host_port(self._host, self._port)} answered {status!r}")
        except BaseException:
            transport.abort()
            raise
        return transport

    def _connect_request(self, target: str) -> bytes:
        head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
        if self._credentials is not None:
            head += f"Proxy-Authorization: Basic {base64.b64encode(self._credentials.encode()).decode()}\r\n"
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
