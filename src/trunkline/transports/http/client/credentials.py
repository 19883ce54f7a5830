"""The credentials protocol: headers that authenticate a client to a server."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["Auth", "Authorizer", "BearerToken", "Credentials", "HttpExchange", "OnAuthorizing", "credentials_for"]

OnAuthorizing = Callable[[bool], None]
"""Called with True when authorization begins, which may involve a person, and with False when it has ended."""

_UNAUTHORIZED: Final = 401
_BEARER_PREFIX: Final = re.compile(r"\s*bearer[\s:]", re.IGNORECASE)
_TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e]+")


class HttpExchange(Struct, frozen=True):
    """A request's method, URL and credential headers, with the status and headers of its response."""

    method: str
    url: str
    sent: Mapping[str, str]  # the result of `headers` for this request
    status: int
    headers: Mapping[str, str]  # of the response; names are case-insensitive

    def __repr__(self) -> str:
        return f"HttpExchange({self.method} {self.url.partition('?')[0]!r}, {self.status})"


class Credentials(Protocol):
    """Authenticates requests to one server. Concurrent requests share it."""

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the headers for one attempt of a request; empty if none are known to be needed. Raise
        `AuthorizationFailed`."""
        ...

    async def handle_response(self, exchange: HttpExchange, on_authorizing: OnAuthorizing) -> bool:
        """Process a response; return whether to send the request again with new credentials. Raise
        `AuthorizationFailed` if the server cannot be satisfied; only this request fails then."""
        ...


class Authorizer(Protocol):
    """Provides credentials for servers."""

    def credentials(self, url: str, *, settings: Settings, tls: "ssl.SSLContext | None" = None) -> Credentials:
        """Return the credentials for the server at a URL."""
        ...


Auth = str | Authorizer
"""The value of `auth=`: a token or an authorizer."""


class BearerToken:
    """A fixed token; if the server rejects it, there is no other."""

    def __init__(self, token: str) -> None:
        if not token.strip():
            raise ConfigError("auth= is empty: pass the token, or leave it out; is its environment variable set?")
        if _BEARER_PREFIX.match(token):
            raise ConfigError('auth= is the token alone; leave out "Bearer", which is added')
        if not _TOKEN_PATTERN.fullmatch(token):  # not quoted in the error, since logs must not contain secrets
            raise ConfigError("auth= has a character that no token has, such as a space or a line end; remove it")
        self.fixed_headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"}

    async def headers(self, method: str, url: str) -> Mapping[str, str]:  # noqa: ARG002 - required by Credentials
        """Return the Authorization header."""
        return self.fixed_headers

    async def handle_response(self, exchange: HttpExchange, on_authorizing: OnAuthorizing) -> bool:  # noqa: ARG002 - required by Credentials
        """Raise `AuthorizationFailed` if the server rejects the token."""
        if exchange.status == _UNAUTHORIZED:
            reason = "the server rejected the token given as auth=; it may have expired, or be for another server"
            raise AuthorizationFailed(reason, hop="server", clause="RFC 6750, section 3.1")
        return False


def credentials_for(
    auth: Auth | None, url: str, settings: Settings, tls: "ssl.SSLContext | None" = None
) -> Credentials | None:
    """Return the credentials for the server at a URL; None without `auth`."""
    if auth is None or isinstance(auth, str):
        return None if auth is None else BearerToken(auth)
    value: Any = auth
    if isinstance(value, type) or not hasattr(value, "credentials"):
        raise ConfigError(_describe_invalid_auth(value))
    return auth.credentials(url, settings=settings, tls=tls)


def _describe_invalid_auth(value: Any) -> str:
    """Describe an invalid value of `auth=` without quoting it: it may be a secret."""
    if isinstance(value, type):
        return f"auth= is an instance, not the class {value.__name__}: write auth={value.__name__}(…)"
    if isinstance(value, Mapping):
        return "auth= is a token or an authorizer; pass headers to HttpConnector(url, headers=…)"
    return f"auth= is a token string or an authorizer such as OAuth(), not {type(value).__name__}"
