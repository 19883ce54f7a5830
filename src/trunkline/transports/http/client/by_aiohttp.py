"""HTTP by aiohttp. Nothing outside of this file has heard of it, and another library could take its place.

What a library decides by itself is taken from it: it follows no redirects, keeps no cookies, reads no environment and
no files, unpacks nothing, ends nothing by a deadline of its own except the attempt to connect, and does not limit how
many connections there are, which whoever uses it does.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.dialling import why_not
from trunkline.transports.http.client.library import NotReached, Reply

__all__ = ["Aiohttp"]

_PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # seconds; where a system has them


class Aiohttp:
    """aiohttp, told to do nothing by itself."""

    def __init__(self, settings: Settings, *, tls: ssl.SSLContext | None = None, proxy: str | None = None) -> None:
        self._proxy = proxy
        self._patience = settings.connect_timeout
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls or True, socket_factory=_kept_alive),
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
            raise self._judged(error) from error
        return _Reply(response)

    def _judged(self, error: Exception) -> TransportError:
        """What an error means: was it before anything had been sent, or after?"""
        match error:
            case aiohttp.ClientProxyConnectionError():
                return NotReached(f"the proxy cannot be reached: {why_not(error.os_error)}")
            case aiohttp.ClientConnectorCertificateError():
                return NotReached(_of(error.certificate_error))
            case aiohttp.ClientConnectorError():
                return NotReached(_of(error.os_error))
            case aiohttp.ClientHttpProxyError():
                return NotReached(f"the proxy refuses: HTTP {error.status} {error.message}")
            case aiohttp.ConnectionTimeoutError():
                return NotReached(f"no answer within {self._patience:g} s")
            case aiohttp.InvalidURL():
                return NotReached("that is no address")
            case _:
                return TransportError(_broken(error))

    async def close(self) -> None:
        """Ends all that is under way."""
        await self._session.close()
        await asyncio.sleep(0)  # transports tell of their end on the next turn


class _Reply:
    """An answer of aiohttp's."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers
        self._broken: TransportError | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, in the pieces that it comes in."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._broken is not None:
            raise self._broken
        content = self._response.content
        try:
            data = await content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._broken = TransportError(_broken(error))
            # What came just before the break is held back by the library, behind the error.
            if not (data := b"".join(getattr(content, "_buffer", ()))):
                raise self._broken from error
        if not data:
            raise StopAsyncIteration
        return data

    def close(self) -> None:
        """Keeps the connection if all was read, ends it otherwise."""
        self._response.close()


def _of(error: Exception) -> str:
    return why_not(error) if isinstance(error, OSError) else str(error)


def _broken(error: Exception) -> str:
    """What is known of a line that broke, which is seldom much."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server hung up without an answer"
    if isinstance(error, aiohttp.ClientOSError):
        return f"the line broke: {error.strerror or error}"
    if isinstance(error, aiohttp.ClientResponseError):  # whose text has the whole address in it
        return f"the answer is not HTTP: {error.message.partition(chr(10))[0]}"
    return f"the answer broke off: {error or type(error).__name__}"


def _kept_alive(address: "tuple[Any, ...]") -> socket.socket:
    """A socket whose peer is looked for now and then, so that one that is gone without a word is found out."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
