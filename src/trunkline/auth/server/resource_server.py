"""Resource server: which access tokens an MCP server accepts over HTTP, and how it challenges other requests.

It implements RFC 6750 (bearer tokens), RFC 9449 (DPoP), RFC 9728 (resource metadata) and the specification's page on
authorization. The server verifies the token of every request.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from trunkline.auth.principal import Principal
from trunkline.auth.server.authenticator import TokenAuthenticator
from trunkline.auth.server.issuer_requests import IssuerRequests
from trunkline.auth.server.token_cache import TokenCache
from trunkline.auth.server.verifiers import Verifier
from trunkline.auth.urls import origin_of
from trunkline.errors import ConfigError
from trunkline.transports.http.authenticator import Authenticator

if TYPE_CHECKING:
    from trunkline.auth.server.dpop import SharedProofStore

__all__ = ["ResourceServer"]

_log: Final = logging.getLogger("trunkline")
Allow = Callable[[Principal], bool]


class ResourceServer:
    """Configuration of token authentication: verifiers, required scopes and published metadata."""

    def __init__(
        self,
        *verifiers: Verifier,
        scopes: Collection[str] = (),
        public_url: str | None = None,
        allow: Allow | None = None,
        scopes_supported: Collection[str] | None = None,
        implied: Mapping[str, Collection[str]] | None = None,
        documentation: str | None = None,
        resource_name: str | None = None,
        dpop: bool | None = None,
        dpop_nonces: bool = False,
        strict: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Of several verifiers, the one for the token's issuer is used, or each in turn if the token does not name its
        issuer.

        `scopes` are required for every request; `implied` maps a scope to the scopes that it includes. `public_url` is
        the URL of the endpoint as clients write it, and the audience of tokens; by default that is the URL of the
        request, or `https://`, host name and path if the request came through a trusted proxy. `allow` decides last
        about a principal. `scopes_supported`, `documentation` and `resource_name` are published. `dpop=True` requires
        tokens that are bound to a key, `False` rejects them; `dpop_nonces` requires a recent server nonce in proofs.
        With `strict` the server starts only if every feature declares its access rule.
        """
        if not verifiers:
            raise ConfigError("a resource server needs a verifier of tokens, such as Jwt('https://login.example.com')")
        if public_url is not None and (origin_of(public_url) is None or "?" in public_url or "#" in public_url):
            raise ConfigError(f"public_url is an address like https://example.com/mcp, not {public_url!r}")
        self.verifiers = verifiers
        self.scopes = _validate_scopes(scopes, "scopes")
        self.public_url = public_url
        self.allow = allow
        self.scopes_supported = (
            self.scopes if scopes_supported is None else _validate_scopes(scopes_supported, "scopes_supported")
        )
        self.documentation = documentation
        self.resource_name = resource_name
        self.dpop = dpop
        self.dpop_nonces = dpop_nonces
        self.strict = strict
        self.now = now
        self.tokens = TokenCache()
        self.requests = {one: IssuerRequests(one.limits) for one in verifiers if one.limits is not None}
        self._implied_scopes = {} if implied is None else dict(implied)

    def within(
        self,
        path: str,
        *,
        named: bool = True,
        proxies: bool = False,
        memory: "Callable[[], SharedProofStore | None] | None" = None,
    ) -> Authenticator:
        """Return the authenticator of an application whose endpoint is at a path.

        `named` states that the application accepts only known host names; otherwise a caller could choose the audience
        of its token. `proxies` states that some proxies are trusted. `memory` returns the replay store that all
        processes of this server share, when it is first needed.
        """
        if self.public_url is None and not named:
            raise ConfigError(
                "a server that accepts any Host header needs ResourceServer(…, public_url='https://…'): otherwise "
                "a caller could choose the audience of its token"
            )
        main = "/" + path.strip("/")
        if self.public_url is not None:
            _log.info("access tokens must be for %s (public_url)", self.public_url)
        elif proxies:
            _log.warning(
                "ResourceServer has no public_url: of requests through trusted_proxies, access tokens must be for "
                "https://<a name in allowed_hosts>%s; ports and X-Forwarded-Prefix do not count. If clients use "
                "another address, set ResourceServer(public_url=…)",
                main,
            )
        else:
            _log.info("access tokens must be for the URL of the request, since there is no public_url")
        return TokenAuthenticator(self, main, memory)

    def held(self, principal: Principal) -> Principal:
        """Return the principal with all scopes that its own scopes imply."""
        found, more = set(principal.scopes), list(principal.scopes)
        while more:
            new = set(self._implied_scopes.get(more.pop(), ())) - found
            found |= new
            more += new
        if len(found) == len(principal.scopes):
            return principal
        return Principal(
            principal.subject,
            issuer=principal.issuer,
            client=principal.client,
            scopes=frozenset(found),
            claims=principal.claims,
        )


def _validate_scopes(scopes: Collection[str], what: str) -> tuple[str, ...]:
    """Return the scopes in their order. `offline_access` is dropped, since it concerns only the client and the
    issuer."""
    if isinstance(scopes, str):
        raise ConfigError(f"{what} is a list of scopes; write {what}=[{scopes!r}]")
    return tuple(dict.fromkeys(scope for scope in scopes if scope != "offline_access"))
