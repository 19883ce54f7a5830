"""Knocking at an MCP server: the first request of a client, to see how it is answered and nothing more."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urljoin

from msgspec import UNSET, Struct

from trunkline.auth.urls import origin_of, safe_text
from trunkline.config import Settings, proxy_for
from trunkline.errors import TransportError
from trunkline.protocol.client_envelope import DISCOVER, Stamp
from trunkline.protocol.headers import routing
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import Implementation, InitializeParams
from trunkline.transports.http.client.http_backend import Library, Reply
from trunkline.version import __version__
from trunkline.wire import codec

__all__ = ["Door", "Opened", "door"]

UNAUTHORIZED: Final = 401
_OK: Final = 200
_SAME_AGAIN: Final = frozenset({307, 308})
_MOST_REDIRECTS: Final = 3
_SETTLED: Final = frozenset({_OK, UNAUTHORIZED})
_US: Final = Implementation(name="trunkline-auth-doctor", version=__version__)
_SESSION: Final = "Mcp-Session-Id"
_REVISION: Final = "MCP-Protocol-Version"
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}


class Opened(Struct, frozen=True):
    """How a knock was answered: the method that was asked for, at which address, the status and what came with it."""

    method: str
    url: str
    status: int
    challenges: str | None  # every WWW-Authenticate, joined
    location: str | None


class Door:
    """An MCP server, to be knocked at."""

    def __init__(self, library: Library, url: str, patience: float) -> None:
        self._library = library
        self._url = url
        self._patience = patience

    async def knock(self, credentials: Mapping[str, str] | None = None) -> Opened:
        """Asks as a client begins: by the newest revision, and by the handshake of those before where that is not
        understood. A session is left again. Raises `TransportError`."""
        opened = await self._try(DISCOVER.name, _discover(), credentials or {})
        if opened.status not in _SETTLED:
            opened = await self._try("initialize", (_initialize(), {}), credentials or {})
        return opened

    async def _try(self, method: str, asked: tuple[bytes, dict[str, str]], credentials: Mapping[str, str]) -> Opened:
        body, headers = asked
        headers = {**_HEADERS, **headers, **credentials}
        url = self._url
        reply = await self._send("POST", url, headers, body)
        for _ in range(0 if credentials else _MOST_REDIRECTS):
            if (onward := _onward(reply, url)) is None:
                break
            url = onward
            reply = await self._send("POST", url, headers, body)
        return await self._taken(method, url, reply, credentials)

    async def _taken(self, method: str, url: str, reply: Reply, credentials: Mapping[str, str]) -> Opened:
        session = reply.headers.get(_SESSION)
        if reply.status == _OK and session is not None:
            await self._send("DELETE", url, {_SESSION: session, **credentials}, None)
        said = [value for name, value in reply.headers.items() if name.lower() == "www-authenticate"]
        location = reply.headers.get("Location")
        return Opened(
            method,
            url,
            reply.status,
            ", ".join(said) if said else None,
            None if location is None else safe_text(location),
        )

    async def _send(self, verb: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """The head of an answer; what follows it is not wanted."""
        try:
            async with asyncio.timeout(self._patience):
                reply = await self._library.send(verb, url, headers, body)
        except TimeoutError:
            raise TransportError(f"no answer within {self._patience:g} s") from None
        reply.close()
        return reply


def _onward(reply: Reply, url: str) -> str | None:
    """Where the same request is to be made instead, within the same origin; None where it ends."""
    if reply.status not in _SAME_AGAIN or "Location" not in reply.headers:
        return None
    onward = urljoin(url, reply.headers["Location"])
    return onward if origin_of(onward) == origin_of(url) else None


def _discover() -> tuple[bytes, dict[str, str]]:
    revision = Revision.V2026_07_28
    params = Stamp(_US, {}, revision).put_on(UNSET)
    return codec.encode_request(1, DISCOVER.name, params), {_REVISION: revision.value, **routing(DISCOVER.name, {})}


def _initialize() -> bytes:
    params = InitializeParams(protocol_version=Revision.V2025_11_25.value, capabilities={}, client_info=_US)
    return codec.encode_request(1, "initialize", params)


@asynccontextmanager
async def door(url: str, patience: float) -> AsyncGenerator[Door]:
    """An MCP server at an address that our caller has named, wherever that is."""
    from trunkline.transports.http.client.aiohttp_backend import Aiohttp

    library = Aiohttp(Settings(connect_timeout=patience), proxy=proxy_for(url))
    try:
        yield Door(library, url, patience)
    finally:
        await library.close()
