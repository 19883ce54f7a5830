"""HTTP by aiohttp. Nothing outside of this file has heard of it, and another library could take its place.

What a library decides by itself is taken from it: it follows no redirects, keeps no cookies, reads no environment and
no files, unpacks nothing, ends nothing by a deadline of its own except the attempt to connect, and does not limit how
many connections there are, which whoever uses it does.
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
}  # seconds; where a system has them


class AiohttpBackend:
    """aiohttp, told to do nothing by itself."""

    def __init__(
        self,
        settings: Settings,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        resolve: Resolve | None = None,
        vet: Vet | None = None,
    ) -> None:
        """`resolve` finds addresses instead of the system. `vet` is asked about each address, when it is found and
        once more when a socket is made for it; through a proxy, that is the proxy's."""
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
        """Sends a request and waits for the head of its answer."""
        try:
            response = await self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._classify_error(error) from error
        return _AiohttpReply(response)

    def _classify_error(self, error: Exception) -> TransportError:
        """What an error means: was it before anything had been sent, or after?"""
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
                return RequestNotSent("that is no address")
            case _:
                return TransportError(_describe_broken_connection(error))

    async def close(self) -> None:
        """Ends all that is under way."""
        await self._session.close()
        await asyncio.sleep(0)  # transports tell of their end on the next turn


class _AiohttpReply:
    """An answer of aiohttp's."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers
        self._error: TransportError | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, in the pieces that it comes in."""
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
            # What came just before the break is held back by the library, behind the error.
            if not (data := b"".join(getattr(content, "_buffer", ()))):
                raise self._error from error
        if not data:
            raise StopAsyncIteration
        return data

    def close(self) -> None:
        """Keeps the connection if all was read, ends it otherwise."""
        self._response.close()


class _AddressVetoed(OSError):
    """An address that may not be gone to. The library takes an `OSError` for one that cannot be."""


class _Resolver(AbstractResolver):
    """Finds the addresses of a name. If one of them may not be gone to, the name is not to be trusted."""

    def __init__(self, resolve: Resolve, vet: Vet | None) -> None:
        self._resolve = resolve
        self._vet = vet

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - the library's
    ) -> list[ResolveResult]:
        """All addresses of a name, of either family."""
        found = list(dict.fromkeys(await self._resolve(host)))
        for address in found:
            _vet_address(address, self._vet)
        if not found:
            raise OSError(None, f"{host} has no address")
        return [_resolve_result(host, port, address) for address in found]

    async def close(self) -> None:
        """There is nothing to let go of."""


def _resolve_result(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return {"hostname": host, "host": address, "port": port, "family": family, "proto": 0, "flags": flags}


async def _resolve_with_system(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def _vet_address(address: str, vet: Vet | None) -> None:
    if vet is not None and (why := vet(address)) is not None:
        raise _AddressVetoed(why)


def _describe_error(error: Exception) -> str:
    return describe_connect_error(error) if isinstance(error, OSError) else str(error)


def _describe_broken_connection(error: Exception) -> str:
    """What is known of a line that broke, which is seldom much."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server hung up without an answer"
    if isinstance(error, aiohttp.ClientOSError):
        return f"the line broke: {error.strerror or error}"
    if isinstance(error, aiohttp.ClientResponseError):  # whose text has the whole address in it
        return f"the answer is not HTTP: {error.message.partition(chr(10))[0]}"
    return f"the answer broke off: {error or type(error).__name__}"


def _open_keepalive_socket(vet: Vet | None, address: "tuple[Any, ...]") -> socket.socket:
    """A socket for an address that may be gone to. Its peer is looked for now and then, so that one that is gone
    without a word is found out."""
    family, kind, protocol, _, (host, *_) = address
    _vet_address(str(host), vet)
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
