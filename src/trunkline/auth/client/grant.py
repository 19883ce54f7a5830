"""Grant protocol: how a token provider obtains tokens."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from trunkline.auth.client.token_endpoint import ClientIdentity, TokenEndpoint
from trunkline.auth.client.token_store import TokenStore
from trunkline.auth.client.tokens import TokenResponse
from trunkline.auth.discovery import DiscoveryResult
from trunkline.auth.fetch import Egress
from trunkline.errors import AuthorizationFailed

__all__ = ["Grant", "GrantRequest", "IssuerBinding", "token_request_fields"]


class GrantRequest(Struct, frozen=True):
    """Everything that a grant needs to obtain a token."""

    server: str  # URL of the MCP server
    discovery: DiscoveryResult
    scopes: tuple[str, ...]
    endpoint: TokenEndpoint
    egress: Egress
    store: TokenStore
    now: Callable[[], float]


class Grant(Protocol):
    """A way to obtain tokens."""

    @property
    def name(self) -> str:
        """Prefix of store keys, so that grants do not share stored tokens."""
        ...

    @property
    def person(self) -> bool:
        """Whether the grant needs a user."""
        ...

    @property
    def issuers(self) -> tuple[str, ...]:
        """Preferred authorization servers, if a server has several."""
        ...

    async def obtain(self, grant_request: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Obtain a token; return it with the client identity. Raises `AuthorizationFailed`."""
        ...

    async def identity(self, grant_request: GrantRequest, client_id: str) -> ClientIdentity | None:
        """Return the client identity with this id at the authorization server, or None if it is no longer known."""
        ...

    async def forget(self, grant_request: GrantRequest) -> None:
        """Drop a registration that the authorization server no longer accepts."""
        ...


def token_request_fields(request: GrantRequest, grant_type: str, **more: str | None) -> dict[str, str | None]:
    """Return the form fields that every token request has."""
    scope = " ".join(request.scopes) or None
    return {"grant_type": grant_type, "resource": request.discovery.resource, "scope": scope, **more}


class IssuerBinding:
    """Binds configured client credentials to one authorization server: the configured one, or the one of their first
    use (authorization, "Authorization Server Binding")."""

    def __init__(self, client_id: str, issuer: str | None) -> None:
        self._client_id = client_id
        self._issuer = issuer

    async def check(self, request: GrantRequest) -> None:
        """Raise `AuthorizationFailed` if the MCP server now uses another authorization server."""
        key = f"issuer of {self._client_id} for {request.server}"
        stored = ((await request.store.get(key)) or b"").decode()
        issuer, found = self._issuer or stored, request.discovery.authorization_server.issuer
        if not issuer or issuer == found:
            self._issuer = found
            if not stored:
                await request.store.put(key, found.encode())
        else:
            why = f"the client id {self._client_id!r} is for {issuer!r}, and the server now uses {found!r}"
            clause = "authorization, Authorization Server Binding"
            raise AuthorizationFailed(
                f"{why}; register there and configure that client id", hop="registration", clause=clause
            )
