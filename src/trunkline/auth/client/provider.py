"""Base class of the values of `auth=`: creates a token provider per MCP server."""

import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from trunkline.auth.client.grant import Grant
from trunkline.auth.client.token_provider import TokenProvider
from trunkline.auth.client.token_store import TokenStore
from trunkline.auth.fetch import Egress
from trunkline.auth.ssrf import EgressPolicy
from trunkline.config import Settings

__all__ = ["OAuthAuthorizer"]


class OAuthAuthorizer(ABC):
    """Base class of authorizers that obtain OAuth tokens. One instance may serve any number of servers."""

    def __init__(
        self,
        *,
        scopes: str | Iterable[str] | None,
        store: TokenStore,
        dpop: bool | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._scopes = tuple(scopes.split() if isinstance(scopes, str) else scopes or ())
        self._store = store
        self._dpop = dpop
        self._now = now

    def credentials(self, url: str, *, settings: Settings, tls: ssl.SSLContext | None = None) -> TokenProvider:
        """Return the token provider for the MCP server at a URL."""
        return TokenProvider(
            url,
            self._create_grant(settings),
            store=self._store,
            egress=Egress(EgressPolicy.for_url(url, settings), settings=settings, tls=tls),
            scopes=self._scopes,
            dpop=self._dpop,
            now=self._now,
        )

    @abstractmethod
    def _create_grant(self, settings: Settings) -> Grant:
        """Create the grant that obtains tokens."""
