"""Connector for HTTP servers."""

import re
import ssl
from collections.abc import Mapping
from typing import Final

from trunkline.config import Settings, proxy_for
from trunkline.errors import AuthorizationFailed, ConfigError, MisuseError, TransportError
from trunkline.transports.channel import Accept, Channel
from trunkline.transports.http.client.channel import HttpClientChannel
from trunkline.transports.http.client.credentials import Auth, credentials_for
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.url import parse_url
from trunkline.transports.proxy import Proxy

__all__ = ["HttpConnector"]

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")


class HttpConnector:
    """Connects to the server at a URL, over Streamable HTTP or, if the server is older, HTTP+SSE."""

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
        """`url` may also be `http+unix:///run/server.sock:/mcp`, the address of a server on a Unix socket, which takes
        neither `proxy` nor `auth`. `headers` are sent with every request. `tls` is a context with your own certificate
        authority. `proxy` overrides the proxy variables of the environment. `auth` is a token or an authorizer."""
        try:
            from trunkline.transports.http.client.connection_pool import ConnectionPool
        except ModuleNotFoundError as error:
            backend = str(error.name).partition(".")[0]
            raise MisuseError(f"HTTP needs the library {backend}: pip install 'trunkline[http]'") from error
        self._backend = ConnectionPool
        self._url = parse_url(url)
        self._headers = _check_headers(headers or {})
        self._tls = tls
        if self._url.uds is not None and (proxy is not None or auth is not None):
            raise MisuseError(f"{self._url.name} is a local socket, which takes no proxy= and no auth=; pass headers=")
        self._proxy = proxy_for(self._url.url) if proxy is None else proxy
        if self._proxy is not None:
            Proxy(self._proxy)  # raises ConfigError
        self._settings = settings or Settings()
        self._credentials = credentials_for(auth, self._url.url, self._settings, tls)
        self._known_transport: str | None = None  # name of the transport that worked last
        self.pending_authorizations = 0  # authorizations in progress

    @property
    def name(self) -> str:
        """The server's URL without its query, which may contain secrets."""
        return self._url.name

    async def connect(self, accept: Accept) -> Channel:
        """Return a new channel. The first message shows whether the server is reachable."""
        backend = self._backend(self._settings, tls=self._tls, proxy=self._proxy, uds=self._url.uds)
        peer = HttpPeer(backend, self._url, self._headers, self._credentials)
        channel = HttpClientChannel(backend, peer, self._settings, self._remember_transport)
        try:
            if self._known_transport == "sse":
                await self._reopen_http_sse(channel)
            channel.open(accept(channel))
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _reopen_http_sse(self, channel: HttpClientChannel) -> None:
        """Use HTTP+SSE again, as last time; detect the transport anew if that fails."""
        try:
            await channel.try_http_sse(self._on_authorizing)
        except AuthorizationFailed:
            raise
        except TransportError:
            self._known_transport = None

    def _on_authorizing(self, begun: bool) -> None:
        self.pending_authorizations += 1 if begun else -1

    def _remember_transport(self, kind: str) -> None:
        self._known_transport = kind


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(
            value
        ):  # the error omits the value, which may be a secret
            raise ConfigError(f"the header {name!r} contains a character that a header must not contain")
    return dict(headers)
