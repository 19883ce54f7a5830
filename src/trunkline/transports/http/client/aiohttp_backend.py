"""HTTP backend on aiohttp. No other module depends on aiohttp, so another library could replace it.

aiohttp's own policies are off: no redirects, cookies, environment variables, netrc files, decompression, total timeouts
or connection limits. Only the connect timeout stays. The caller limits the number of connections.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.http.client.http_backend import AddressForbidden, Reply, RequestNotSent, Resolve, Vet
from trunkline.transports.sockets import describe_connect_error

__all__ = ["AiohttpBackend"]

_KEEPALIVE_OPTIONS: Final = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
}  # seconds; set where the system supports them


class AiohttpBackend:
    """aiohttp with its automatic behaviour switched off."""

    def __init__(
        self,
        settings: Settings,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        resolve: Resolve | None = None,
        vet: Vet | None = None,
    ) -> None:
        """`resolve` replaces the system's name resolution. `vet` checks each address, once after resolution and
        again when its socket is created; behind a proxy, it checks the proxy's address."""
        self._proxy = proxy
        self._connect_timeout = settings.connect_timeout
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                ssl=tls or True,
                resolver=_Resolver(resolve or _resolve_with_system, vet) if resolve or vet else None,
                socket_factory=partial(_open_keepalive_socket, vet),
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=settings.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
        """Send a request and wait for the response headers."""
        try:
            response = await self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._classify_error(error) from error
        return _AiohttpReply(response)

    def _classify_error(self, error: Exception) -> TransportError:
        """Convert an exception of aiohttp; the type tells whether the request may have been sent."""
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return RequestNotSent(_describe_error(error.certificate_error))
            case aiohttp.ClientConnectorError() if isinstance(error.os_error, _AddressVetoed):
                return AddressForbidden(str(error.os_error))
            case aiohttp.ClientProxyConnectionError():
                return RequestNotSent(f"the proxy cannot be reached: {describe_connect_error(error.os_error)}")
            case aiohttp.ClientConnectorError():
                return RequestNotSent(_describe_error(error.os_error))
            case aiohttp.ClientHttpProxyError():
                return RequestNotSent(f"the proxy refuses: HTTP {error.status} {error.message}")
            case aiohttp.ConnectionTimeoutError():
                return RequestNotSent(f"no answer within {self._connect_timeout:g} s")
            case aiohttp.InvalidURL():
                return RequestNotSent("the URL is invalid")
            case _:
                return TransportError(_describe_broken_connection(error))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await asyncio.sleep(0)  # transports close on the next turn of the loop


class _AiohttpReply:
    """Response of aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers
        self._error: TransportError | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        """Return an iterator over the body's chunks as they arrive."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._error is not None:
            raise self._error
        content = self._response.content
        try:
            data = await content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._error = TransportError(_describe_broken_connection(error))
            # aiohttp raises before it returns the bytes that arrived last.
            if not (data := b"".join(getattr(content, "_buffer", ()))):
                raise self._error from error
        if not data:
            raise StopAsyncIteration
        return data

    def close(self) -> None:
        """Keep the connection alive if the body was read completely, close it otherwise."""
        self._response.close()


class _AddressVetoed(OSError):
    """An address that `vet` has refused. aiohttp treats an OSError as a failed connection attempt."""


class _Resolver(AbstractResolver):
    """Resolves host names. A name with a refused address is refused as a whole."""

    def __init__(self, resolve: Resolve, vet: Vet | None) -> None:
        self._resolve = resolve
        self._vet = vet

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - required by AbstractResolver
    ) -> list[ResolveResult]:
        """Return all addresses of a name, of either family."""
        addresses = list(dict.fromkeys(await self._resolve(host)))
        for address in addresses:
            _vet_address(address, self._vet)
        if not addresses:
            raise OSError(None, f"{host} has no address")
        return [_resolve_result(host, port, address) for address in addresses]

    async def close(self) -> None:
        """Do nothing: there are no resources."""


def _resolve_result(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return {"hostname": host, "host": address, "port": port, "family": family, "proto": 0, "flags": flags}


async def _resolve_with_system(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in addresses]


def _vet_address(address: str, vet: Vet | None) -> None:
    if vet is not None and (why := vet(address)) is not None:
        raise _AddressVetoed(why)


def _describe_error(error: Exception) -> str:
    return describe_connect_error(error) if isinstance(error, OSError) else str(error)


def _describe_broken_connection(error: Exception) -> str:
    """Describe how a connection broke."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without a response"
    if isinstance(error, aiohttp.ClientOSError):
        return f"the connection broke: {error.strerror or error}"
    if isinstance(error, aiohttp.ClientResponseError):  # its full text contains the URL
        return f"the response is not valid HTTP: {error.message.partition(chr(10))[0]}"
    return f"the response broke off: {error or type(error).__name__}"


def _open_keepalive_socket(vet: Vet | None, address: "tuple[Any, ...]") -> socket.socket:
    """Open a socket for a vetted address, with TCP keepalive so that a dead peer is detected."""
    family, kind, protocol, _, (host, *_) = address
    _vet_address(str(host), vet)
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened
