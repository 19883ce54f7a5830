"""HTTP requests of the authorization code, subject to the egress policy.

URLs often come from a peer, so each step is checked: the URL as written, each address that its host name resolves to,
the address that the socket connects to, and every redirect. A request with credentials or a body follows no redirects.

If the environment configures a proxy, requests go through it and the proxy resolves host names. The checks of the URL
as written still apply.
"""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import quote_plus, urljoin

from msgspec import Struct

from trunkline.auth.page_policy import check_page_addresses, parse_page_url
from trunkline.auth.ssrf import EgressDenied, EgressPolicy, Target, parse_target
from trunkline.config import Settings, proxy_for
from trunkline.errors import AuthorizationFailed, MisuseError, TransportError
from trunkline.transports.http.client.http_backend import AddressForbidden, HttpBackend, Reply, Resolve, read_body
from trunkline.version import __version__
from trunkline.wire.media_types import essence

__all__ = ["Egress", "FetchResponse", "basic_auth_header"]

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 3
_REDIRECTABLE_HEADERS: Final = frozenset(
    {"accept", "accept-language", "if-none-match", "mcp-protocol-version", "user-agent"}
)
_SSRF: Final = 'security best practices, "Server-Side Request Forgery (SSRF)"'


class FetchResponse(Struct, frozen=True):
    """An HTTP response. `headers` are case-insensitive; `url` is the final URL after redirects."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def media_type(self) -> str:
        """The media type without parameters, such as `application/json`."""
        return essence(self.headers.get("Content-Type", ""))


class Egress:
    """HTTP client that obeys an egress policy. It needs no closing: requests are rare, and each opens a connection
    of its own."""

    def __init__(
        self,
        policy: EgressPolicy | None = None,
        *,
        settings: Settings | None = None,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """`tls` may trust a private certificate authority; `resolve` replaces the system's name resolution."""
        try:
            from trunkline.transports.http.client.connection_pool import ConnectionPool
        except ModuleNotFoundError as error:
            library = str(error.name).partition(".")[0]
            raise MisuseError(f"authorization needs the library {library}: pip install 'trunkline[auth]'") from error
        self._backend_class = ConnectionPool
        self._policy = policy or EgressPolicy()
        self._settings = settings or Settings()
        self._tls = tls
        self._resolve = resolve

    async def get(self, url: str, *, hop: str, headers: Mapping[str, str] | None = None) -> FetchResponse:
        """Send a GET. Up to three redirects are followed unless a header identifies the client. Raises
        `AuthorizationFailed` with that hop."""
        request_headers = headers or {}
        follow = _MAX_REDIRECTS if all(name.lower() in _REDIRECTABLE_HEADERS for name in request_headers) else 0
        return await self._fetch_within_timeout(_FetchRequest(hop, "GET", request_headers, None, follow), url)

    async def get_without_redirects(self, url: str, *, hop: str) -> FetchResponse:
        """Send a GET and return the first response, also if it is a redirect. Raises `AuthorizationFailed` with that
        hop."""
        return await self._fetch_within_timeout(_FetchRequest(hop, "GET", {}, None, None), url)

    async def post(self, url: str, body: bytes, *, hop: str, headers: Mapping[str, str] | None = None) -> FetchResponse:
        """Send a POST; redirects are not followed. Raises `AuthorizationFailed` with that hop."""
        return await self._fetch_within_timeout(_FetchRequest(hop, "POST", headers or {}, body, 0), url)

    async def check_page(self, url: str, *, hop: str) -> None:
        """Apply the egress policy to a page before a user is sent to it. Raises `AuthorizationFailed` with that hop."""
        request = _FetchRequest(hop, "GET", {}, None, None)
        try:
            await check_page_addresses(parse_page_url(url, self._policy), self._policy, self._resolve)
        except EgressDenied as refused:
            raise request.failure(f"{_redact_url(url)} must not be opened: {refused}", _SSRF) from None

    async def _fetch_within_timeout(self, request: "_FetchRequest", url: str) -> FetchResponse:
        limit = self._settings.egress_timeout
        try:
            async with asyncio.timeout(limit):
                return await self._follow_redirects(request, request.parse_target(url))
        except TimeoutError:
            raise request.failure(f"{_redact_url(url)} did not respond within {limit} s") from None

    async def _follow_redirects(self, request: "_FetchRequest", target: Target) -> FetchResponse:
        for left in range(request.max_redirects or 0, -1, -1):
            response = await self._request_once(request, target)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None or request.max_redirects is None:
                return response
            target = request.resolve_redirect(target, location, left)
        raise AssertionError  # resolve_redirect raises for the last redirect

    async def _request_once(self, request: "_FetchRequest", target: Target) -> FetchResponse:
        """Send one request, on a connection of its own."""
        try:
            self._policy.check(target)
        except EgressDenied as refused:
            raise request.failure(str(refused), _SSRF) from None
        library = self._open_backend(target)
        try:
            return await self._exchange(library, request, target)
        except AddressForbidden as forbidden:
            raise request.failure(str(forbidden), _SSRF) from None
        except TransportError as error:
            raise request.failure(f"{target.display_url} cannot be read: {error}") from error
        finally:
            await library.close()

    def _open_backend(self, target: Target) -> HttpBackend:
        proxy = None if target.is_local else proxy_for(target.url)
        vet = partial(self._policy.denial_reason, target) if proxy is None else None
        resolve = self._resolve if proxy is None else None
        return self._backend_class(self._settings, tls=self._tls, proxy=proxy, resolve=resolve, vet=vet)

    async def _exchange(self, backend: HttpBackend, request: "_FetchRequest", target: Target) -> FetchResponse:
        reply = await backend.send(request.method, target.url, request.build_headers(), request.body)
        try:
            _require_uncompressed(reply)
            body = await read_body(reply, self._settings.egress_answer_limit)
            return FetchResponse(reply.status, reply.headers, body, target.url)
        finally:
            reply.close()


class _FetchRequest(Struct, frozen=True):
    """One GET or POST on behalf of a hop of the authorization flow."""

    hop: str
    method: str
    headers: Mapping[str, str]
    body: bytes | None
    max_redirects: int | None  # None: a redirect is returned as the response

    def __repr__(self) -> str:
        return f"_FetchRequest({self.hop!r}, {self.method})"

    def failure(self, why: str, clause: str = "") -> AuthorizationFailed:
        # A network failure may pass, a violated rule does not.
        return AuthorizationFailed(why, hop=self.hop, clause=clause, passing=not clause)

    def build_headers(self) -> dict[str, str]:
        """Return the given headers plus those that the HTTP library would otherwise choose."""
        usual = {"User-Agent": f"trunkline/{__version__}", "Accept": "application/json"}
        named = {name.lower() for name in self.headers}
        usual = {name: value for name, value in usual.items() if name.lower() not in named}
        return {**usual, **self.headers, "Accept-Encoding": "identity"}

    def parse_target(self, url: str) -> Target:
        try:
            return parse_target(url)
        except EgressDenied as refused:
            raise self.failure(f"{_redact_url(url)} is denied: {refused}", _SSRF) from None

    def resolve_redirect(self, target: Target, location: str, left: int) -> Target:
        """Return the target of a redirect. Raises `AuthorizationFailed` if it must not be followed."""
        if self.max_redirects == 0:
            why = "redirects, and a request with credentials or a body follows no redirects"
            raise self.failure(f"{target.display_url} {why}", _SSRF)
        if left == 0:
            raise self.failure(f"{target.display_url} redirects more than {self.max_redirects} times", _SSRF)
        try:
            onward = self.parse_target(urljoin(target.url, location))
        except ValueError:  # such as unbalanced brackets
            raise self.failure(f"{target.display_url} redirects to a malformed URL", _SSRF) from None
        if target.scheme == "https" and onward.scheme == "http":
            raise self.failure(f"{target.display_url} redirects from https to http, at {onward.display_url}", _SSRF)
        return onward


def _require_uncompressed(reply: Reply) -> None:
    if reply.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise TransportError("the response is compressed, although the request forbids that")


def _redact_url(url: str) -> str:
    """Return the part of a URL that is safe to show, also if a peer made it up."""
    try:
        return parse_target(url).display_url
    except EgressDenied:
        plain = "".join(character for character in url if " " < character < "\x7f")
        scheme, _, rest = plain.partition("?")[0].partition("#")[0].partition("://")
        return repr(f"{scheme[:20]}://{rest.rpartition('@')[2][:100]}" if rest else scheme[:20])


def basic_auth_header(client_id: str, secret: str) -> str:
    """Return HTTP Basic credentials of an OAuth client (RFC 6749, section 2.3.1) as the value of `Authorization`.

    RFC 6749 requires form encoding of both parts first, which plain HTTP Basic does not.
    """
    return f"Basic {b64encode(f'{quote_plus(client_id)}:{quote_plus(secret)}'.encode()).decode()}"
