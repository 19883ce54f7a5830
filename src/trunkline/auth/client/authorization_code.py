"""Authorization code flow with PKCE (OAuth 2.1, section 4.1)."""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from trunkline.auth.client.grant import GrantRequest, token_request_fields
from trunkline.auth.client.interaction import Interaction
from trunkline.auth.client.registration import ClientRegistrar
from trunkline.auth.client.token_endpoint import ClientIdentity, OAuthErrorResponse
from trunkline.auth.client.tokens import TokenResponse, read_token_response
from trunkline.auth.metadata import ServerMetadata, require_pkce
from trunkline.auth.urls import safe_text
from trunkline.errors import AuthorizationFailed

__all__ = ["AuthorizationRequest", "CodeGrant", "read_code"]

_HOP: Final = "authorization"
_MAX_FIELDS: Final = 30
_UNKNOWN_CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client"})


class AuthorizationRequest(Struct, frozen=True):
    """State of one authorization request, to validate its response."""

    issuer: str
    advertises_iss: bool
    state: str
    verifier: str
    redirect_uri: str

    @classmethod
    def create(cls, server: ServerMetadata, redirect_uri: str) -> "AuthorizationRequest":
        """Create the state of a new request."""
        advertises = server.authorization_response_iss_parameter_supported is True
        return cls(server.issuer, advertises, secrets.token_urlsafe(32), secrets.token_urlsafe(48), redirect_uri)

    def __repr__(self) -> str:
        return f"AuthorizationRequest({self.issuer!r}, {self.redirect_uri!r})"

    @property
    def challenge(self) -> str:
        """The PKCE code challenge, by method S256."""
        return urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()


def read_code(callback_url: str, request: AuthorizationRequest) -> str:
    """Return the code of a callback URL. Raises `AuthorizationFailed`, without showing its content if it does not
    come from the expected issuer (authorization, "Authorization Response Validation")."""
    try:
        pairs = parse_qsl(urlsplit(callback_url).query, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        pairs = []
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _invalid_response("a repeated parameter", "OAuth 2.1, section 3.1")
    if not hmac.compare_digest(fields.get("state", "").encode(), request.state.encode()):
        raise _invalid_response("another state than the request", "OAuth 2.1, section 7.12")
    issuer = fields.get("iss")
    if issuer is None and request.advertises_iss:
        raise _invalid_response("no issuer, which the authorization server advertises", "RFC 9207, section 2.4")
    if issuer is not None and issuer != request.issuer:
        raise _invalid_response("another issuer than expected", "RFC 9207, section 2.4")
    if "error" in fields:
        description = ": ".join(safe_text(fields[name]) for name in ("error", "error_description") if fields.get(name))
        raise OAuthErrorResponse(
            f"the authorization server answers {description}", hop=_HOP, error=fields["error"], clause=""
        )
    if not fields.get("code"):
        raise _invalid_response("neither a code nor an error", "OAuth 2.1, section 4.1.2")
    return fields["code"]


def _invalid_response(why: str, clause: str) -> AuthorizationFailed:
    return AuthorizationFailed(f"the authorization response has {why}", hop=_HOP, clause=clause)


class CodeGrant:
    """Grant by a user's login in a browser."""

    name = "code"
    person = True

    def __init__(
        self,
        registrar: ClientRegistrar,
        interaction: Interaction,
        *,
        issuers: tuple[str, ...] = (),
        parameters: Mapping[str, str] | None = None,
        assume_pkce: bool = False,
    ) -> None:
        self.issuers = issuers
        self._registrar = registrar
        self._interaction = interaction
        self._parameters = dict(parameters or {})
        self._assume_pkce = assume_pkce

    async def identity(self, grant_request: GrantRequest, client_id: str) -> ClientIdentity | None:
        """Return the client identity with this id, or None."""
        return await self._registrar.find_identity(grant_request, client_id)

    async def forget(self, grant_request: GrantRequest) -> None:
        """Delete the registration; the next login registers again."""
        await self._registrar.forget(grant_request)

    async def obtain(self, grant_request: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Send the user to the login page. If the authorization server no longer knows the client, register and try
        once more."""
        if not self._assume_pkce:
            require_pkce(grant_request.discovery.authorization_server)
        remembered = await self._registrar.load_registration(grant_request)
        try:
            return await self._run_flow(grant_request, None if remembered is None else remembered.redirect_uri)
        except OAuthErrorResponse as refused:
            if remembered is None or refused.error not in _UNKNOWN_CLIENT_ERRORS:
                raise
        await self.forget(grant_request)
        return await self._run_flow(grant_request, None)

    async def _run_flow(self, grant_request: GrantRequest, prefer: str | None) -> tuple[ClientIdentity, TokenResponse]:
        async with self._interaction.waiting(prefer) as waiting:
            identity = await self._registrar.get_identity(grant_request, waiting.redirect_uri)
            request = AuthorizationRequest.create(grant_request.discovery.authorization_server, waiting.redirect_uri)
            url = self._authorization_url(grant_request, identity, request)
            await grant_request.egress.check_page(url, hop=_HOP)
            try:
                returned = await waiting.visit(url)
            except AuthorizationFailed:
                if identity.registered:  # the login page does not redirect if it does not know the client
                    await self.forget(grant_request)
                raise
        more = {
            "code": read_code(returned, request),
            "redirect_uri": request.redirect_uri,
            "code_verifier": request.verifier,
        }
        fields = token_request_fields(grant_request, "authorization_code", **more) | {"scope": None}
        return identity, read_token_response(await grant_request.endpoint.request_token(identity, fields), hop="token")

    def _authorization_url(
        self, grant_request: GrantRequest, identity: ClientIdentity, request: AuthorizationRequest
    ) -> str:
        """Return the URL of the login page."""
        endpoint = grant_request.discovery.authorization_server.authorization_endpoint
        if endpoint is None:
            why = "the authorization server has no authorization endpoint"
            raise AuthorizationFailed(why, hop="authorization-server-metadata", clause="RFC 8414, section 2")
        query = {
            **self._parameters,
            "response_type": "code",
            "client_id": identity.client_id,
            "redirect_uri": request.redirect_uri,
            "code_challenge": request.challenge,
            "code_challenge_method": "S256",
            "state": request.state,
            "resource": grant_request.discovery.resource,
        }
        if grant_request.scopes:
            query["scope"] = " ".join(grant_request.scopes)
        if "offline_access" in grant_request.scopes:
            query.setdefault("prompt", "consent")  # OpenID Connect Core, section 11: required for a refresh token
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
