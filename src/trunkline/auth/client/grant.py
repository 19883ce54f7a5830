"""The seam between whoever gets tokens and whoever uses them."""

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
    """What it takes to get a token: for which server, from whom, for what."""

    server: str  # the MCP server's address
    discovery: DiscoveryResult
    scopes: tuple[str, ...]
    endpoint: TokenEndpoint
    egress: Egress
    store: TokenStore
    now: Callable[[], float]


class Grant(Protocol):
    """A way to get tokens."""

    @property
    def name(self) -> str:
        """Keeps apart what is kept of one way and of another."""
        ...

    @property
    def person(self) -> bool:
        """Whether somebody has to be asked."""
        ...

    @property
    def issuers(self) -> tuple[str, ...]:
        """The authorization servers that are preferred, if a server has several."""
        ...

    async def obtain(self, errand: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """A token, and who it was issued to. Raises `AuthorizationFailed`."""
        ...

    async def identity(self, errand: GrantRequest, client_id: str) -> ClientIdentity | None:
        """Who we are to this authorization server, if a token was issued to us under that id; None if that has been
        forgotten."""
        ...

    async def forget(self, errand: GrantRequest) -> None:
        """The authorization server does not know us any more by what we have registered."""
        ...


def token_request_fields(request: GrantRequest, grant_type: str, **more: str | None) -> dict[str, str | None]:
    """What every request for a token says."""
    scope = " ".join(request.scopes) or None
    return {"grant_type": grant_type, "resource": request.discovery.resource, "scope": scope, **more}


class IssuerBinding:
    """Credentials that were given by our caller belong to one authorization server: the one that is named, or the one
    that they were first used with (authorization, "Authorization Server Binding")."""

    def __init__(self, client_id: str, issuer: str | None) -> None:
        self._client_id = client_id
        self._issuer = issuer

    async def check(self, request: GrantRequest) -> None:
        """Raises `AuthorizationFailed` if the server has another authorization server now, or another server has."""
        key = f"issuer of {self._client_id} for {request.server}"
        kept = ((await request.store.get(key)) or b"").decode()
        issuer, found = self._issuer or kept, request.discovery.authorization_server.issuer
        if not issuer or issuer == found:
            self._issuer = found
            if not kept:
                await request.store.put(key, found.encode())
        else:
            why = f"the client id {self._client_id!r} is for {issuer!r}, and the server now uses {found!r}"
            clause = "authorization, Authorization Server Binding"
            raise AuthorizationFailed(
                f"{why}; register there and configure that client id", hop="registration", clause=clause
            )
