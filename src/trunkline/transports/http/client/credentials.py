"""The seam to who knows how we prove to a server who we are."""

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
"""Told when it begins to be settled who we are, which may take as long as it takes a person; and when that is over."""

_UNAUTHORIZED: Final = 401
_BEARER_PREFIX: Final = re.compile(r"\s*bearer[\s:]", re.IGNORECASE)
_TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e]+")


class HttpExchange(Struct, frozen=True):
    """A request that was answered: what was sent, and the head of what came."""

    method: str
    url: str
    sent: Mapping[str, str]  # the headers that `headers` gave for it
    status: int
    headers: Mapping[str, str]  # of the answer, by names in any case

    def __repr__(self) -> str:
        return f"Heard({self.method} {self.url.partition('?')[0]!r}, {self.status})"


class Credentials(Protocol):
    """Proves to a server who we are. Requests that are under way at once share it."""

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """What goes with a request, made anew for each attempt; nothing if nothing is known to be wanted. Raises
        `AuthorizationFailed`."""
        ...

    async def handle_response(self, exchange: HttpExchange, on_authorizing: OnAuthorizing) -> bool:
        """Takes note of an answer; whether the request is to be sent once more, since it will fare better now. Raises
        `AuthorizationFailed` if the server cannot be satisfied: the request has failed then, and nothing else."""
        ...


class Authorizer(Protocol):
    """A way to be somebody to servers."""

    def credentials(self, url: str, *, settings: Settings, tls: "ssl.SSLContext | None" = None) -> Credentials:
        """Who proves to the server at an address who we are."""
        ...


Auth = str | Authorizer
"""What people write as `auth=`: a token, or a way to get some."""


class BearerToken:
    """A token that is what it is: there is no other, if the server does not take it."""

    def __init__(self, token: str) -> None:
        if not token.strip():
            raise ConfigError("auth= is empty: pass the token, or leave it out; is its environment variable set?")
        if _BEARER_PREFIX.match(token):
            raise ConfigError('auth= is the token alone; leave out "Bearer", which is added')
        if not _TOKEN_PATTERN.fullmatch(token):  # which is not repeated here, since errors are written to logs
            raise ConfigError("auth= has a character that no token has, such as a space or a line end; remove it")
        self._headers = {"Authorization": f"Bearer {token}"}

    async def headers(self, method: str, url: str) -> Mapping[str, str]:  # noqa: ARG002 - the seam's
        """The token."""
        return self._headers

    async def handle_response(self, exchange: HttpExchange, on_authorizing: OnAuthorizing) -> bool:  # noqa: ARG002 - the seam's
        """Raises, if the token is not taken."""
        if exchange.status == _UNAUTHORIZED:
            why = "the server does not take the token given as auth=; it may have expired, or be for another server"
            raise AuthorizationFailed(why, hop="server", clause="RFC 6750, section 3.1")
        return False


def credentials_for(
    auth: Auth | None, url: str, settings: Settings, tls: "ssl.SSLContext | None" = None
) -> Credentials | None:
    """Who proves to the server at an address who we are, if anybody does."""
    if auth is None or isinstance(auth, str):
        return None if auth is None else BearerToken(auth)
    given: Any = auth
    if isinstance(given, type) or not hasattr(given, "credentials"):
        raise ConfigError(_describe_invalid_auth(given))
    return auth.credentials(url, settings=settings, tls=tls)


def _describe_invalid_auth(given: Any) -> str:
    """What is wrong with a value of `auth=`, which is not shown: it may be a secret."""
    if isinstance(given, type):
        return f"auth= is an instance, not the class {given.__name__}: write auth={given.__name__}(…)"
    if isinstance(given, Mapping):
        return "auth= is a token, or a way to get some; headers are given to HttpConnector(url, headers=…)"
    return f"auth= is a token as text, or a way to get some such as OAuth(), not {type(given).__name__}"
