"""A resource server: who may come in to an MCP server over HTTP, by which tokens, and what others are told.

It follows RFC 6750 (bearer tokens), RFC 9449 (tokens that are bound to a key), RFC 9728 (how a server says whom it
trusts) and the specification's page on authorization. Tokens are looked at with every request.
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
    """Lets in whoever has a token that one of its verifiers vouches for."""

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
        """Of several verifiers, the one for a token's issuer is asked, or each in turn where that cannot be read.
        `scopes` are needed for everything; `implied` says which scopes come with another one. `public_url` is the
        address of the endpoint as clients write it, which tokens are for; without it, it is where a request came to;
        of a request through a trusted proxy, `https://` with the host name and the path.
        `allow` has the last word about a principal. `scopes_supported`, `documentation` and `resource_name` are
        published. With `dpop` tokens have to be bound to a key, without it (False) none may be; `dpop_nonces` wants a
        fresh nonce in proofs. `strict` lets a server start only if it says of everything who may have it."""
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
        """The gate of an application whose endpoint is at a path. `named` says whether callers are let in only if they
        ask for names that are known: otherwise tokens would be for whatever they say. `proxies` says that some proxies
        are trusted. `memory` gives what other processes that serve there know of proofs that were used, once it is
        needed."""
        if self.public_url is None and not named:
            raise ConfigError(
                "a server that answers to any host needs ResourceServer(…, public_url='https://…'): tokens are for an "
                "address, which would be whatever a caller says"
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
            _log.info("access tokens must be for the address that a request came to, since there is no public_url")
        return TokenAuthenticator(self, main, memory)

    def held(self, principal: Principal) -> Principal:
        """The principal, with all that its scopes imply."""
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
    """Scopes in the order in which they were given; what lets clients stay logged in is between them and the issuer."""
    if isinstance(scopes, str):
        raise ConfigError(f"{what} is a list of scopes; write {what}=[{scopes!r}]")
    return tuple(dict.fromkeys(scope for scope in scopes if scope != "offline_access"))
