"""Probe of an MCP server: sends a client's first request and records the response."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urljoin

from msgspec import UNSET, Struct

from trunkline.auth.urls import origin_of, safe_text
from trunkline.config import Settings, proxy_for
from trunkline.errors import TransportError
from trunkline.protocol.client_envelope import DISCOVER, ClientEnvelope
from trunkline.protocol.headers import routing_headers
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import Implementation, InitializeParams
from trunkline.transports.http.client.http_backend import HttpBackend, Reply
from trunkline.version import __version__
from trunkline.wire import codec

__all__ = ["ProbeResponse", "ServerProbe", "open_probe"]

UNAUTHORIZED: Final = 401
_OK: Final = 200
_METHOD_PRESERVING_REDIRECTS: Final = frozenset({307, 308})
_MAX_REDIRECTS: Final = 3
_CONCLUSIVE_STATUSES: Final = frozenset({_OK, UNAUTHORIZED})
_CLIENT_INFO: Final = Implementation(name="trunkline-auth-doctor", version=__version__)
_SESSION: Final = "Mcp-Session-Id"
_REVISION: Final = "MCP-Protocol-Version"
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}


class ProbeResponse(Struct, frozen=True):
    """Response to a probe: the method that was called, the final URL, the status and the headers that matter."""

    method: str
    url: str
    status: int
    challenges: str | None  # all WWW-Authenticate headers, joined by commas
    location: str | None


class ServerProbe:
    """Sends first requests to one MCP server."""

    def __init__(self, backend: HttpBackend, url: str, timeout: float) -> None:
        self._backend = backend
        self._url = url
        self._timeout = timeout

    async def send_first_request(self, credentials: Mapping[str, str] | None = None) -> ProbeResponse:
        """Send `server/discover`, or `initialize` if the server does not understand that.

        A session that results is deleted. Raises `TransportError`.
        """
        response = await self._attempt(DISCOVER.name, _discover_request(), credentials or {})
        if response.status not in _CONCLUSIVE_STATUSES:
            response = await self._attempt("initialize", (_initialize_request(), {}), credentials or {})
        return response

    async def _attempt(
        self, method: str, request: tuple[bytes, dict[str, str]], credentials: Mapping[str, str]
    ) -> ProbeResponse:
        body, headers = request
        headers = {**_HEADERS, **headers, **credentials}
        url = self._url
        reply = await self._send("POST", url, headers, body)
        for _ in range(0 if credentials else _MAX_REDIRECTS):
            if (onward := _redirect_url(reply, url)) is None:
                break
            url = onward
            reply = await self._send("POST", url, headers, body)
        return await self._read_response(method, url, reply, credentials)

    async def _read_response(
        self, method: str, url: str, reply: Reply, credentials: Mapping[str, str]
    ) -> ProbeResponse:
        session = reply.headers.get(_SESSION)
        if reply.status == _OK and session is not None:
            await self._send("DELETE", url, {_SESSION: session, **credentials}, None)
        challenges = [value for name, value in reply.headers.items() if name.lower() == "www-authenticate"]
        location = reply.headers.get("Location")
        return ProbeResponse(
            method,
            url,
            reply.status,
            ", ".join(challenges) if challenges else None,
            None if location is None else safe_text(location),
        )

    async def _send(self, verb: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send a request and return the head of its response; the body is not read."""
        try:
            async with asyncio.timeout(self._timeout):
                reply = await self._backend.send(verb, url, headers, body)
        except TimeoutError:
            raise TransportError(f"no response within {self._timeout:g} s") from None
        reply.close()
        return reply


def _redirect_url(reply: Reply, url: str) -> str | None:
    """Return the URL of a method-preserving redirect within the same origin, or None."""
    if reply.status not in _METHOD_PRESERVING_REDIRECTS or "Location" not in reply.headers:
        return None
    onward = urljoin(url, reply.headers["Location"])
    return onward if origin_of(onward) == origin_of(url) else None


def _discover_request() -> tuple[bytes, dict[str, str]]:
    revision = Revision.V2026_07_28
    params = ClientEnvelope(_CLIENT_INFO, {}, revision).add_to(UNSET)
    return codec.encode_request(1, DISCOVER.name, params), {
        _REVISION: revision.value,
        **routing_headers(DISCOVER.name, {}),
    }


def _initialize_request() -> bytes:
    params = InitializeParams(protocol_version=Revision.V2025_11_25.value, capabilities={}, client_info=_CLIENT_INFO)
    return codec.encode_request(1, "initialize", params)


@asynccontextmanager
async def open_probe(url: str, timeout: float) -> AsyncGenerator[ServerProbe]:
    """Open a probe for a URL that the user named; the egress policy does not apply to it."""
    from trunkline.transports.http.client.connection_pool import ConnectionPool

    library = ConnectionPool(Settings(connect_timeout=timeout), proxy=proxy_for(url))
    try:
        yield ServerProbe(library, url, timeout)
    finally:
        await library.close()
