"""Grants without a user: client credentials, workload identity and enterprise-managed authorization."""

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self, TypedDict, Unpack, cast

from trunkline.auth.client.grant import GrantRequest, IssuerBinding, token_request_fields
from trunkline.auth.client.provider import OAuthAuthorizer
from trunkline.auth.client.token_endpoint import ClientIdentity, TokenEndpoint, choose_auth_method
from trunkline.auth.client.token_store import MemoryTokens, TokenStore
from trunkline.auth.client.tokens import TokenResponse, read_token_response
from trunkline.auth.discovery import find_authorization_server
from trunkline.auth.jose import SigningKey
from trunkline.auth.metadata import ServerMetadata
from trunkline.auth.urls import require_secure_url
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, ConfigError, TrunklineError

__all__ = ["ClientCredentials", "EnterpriseManaged", "WorkloadIdentity"]

_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a type

AssertionSource = str | PathLike[str] | Callable[[str], str | Awaitable[str]] | Callable[[], str | Awaitable[str]]
"""Source of an external token: its text, a file that contains it, or a function that returns it."""


class ProgramOptions(TypedDict, total=False):
    """Options of every grant without a user."""

    issuer: str | None  # the authorization server of the client id; credentials are sent to no other
    scopes: str | Iterable[str] | None  # requested in addition to those that a server demands
    store: TokenStore | None  # token store, by default in memory
    dpop: bool | None  # bind tokens to a key; None: where the server requires it
    now: Callable[[], float]  # seconds since the epoch


class _MachineGrant(OAuthAuthorizer):
    """A grant for a client id that the authorization server knows, without a user."""

    person = False

    def __init__(
        self,
        client_id: str,
        *,
        secret: str | None,
        key: SigningKey | None,
        **options: Unpack[ProgramOptions],
    ) -> None:
        if strange := options.keys() - ProgramOptions.__optional_keys__:
            known = ", ".join(sorted(ProgramOptions.__optional_keys__))
            raise ConfigError(f"unknown option {min(strange)!r}; the options are {known}")
        super().__init__(
            scopes=options.get("scopes"),
            store=options.get("store") or MemoryTokens(),
            dpop=options.get("dpop"),
            now=options.get("now", time.time),
        )
        issuer = options.get("issuer")
        if secret is not None and key is not None:
            raise ConfigError("a client proves who it is by a secret or by a key, not by both")
        self.issuers = () if issuer is None else (issuer,)
        self._client_id = client_id
        self._secret = secret
        self._key = key
        self._binding = IssuerBinding(client_id, issuer)

    @property
    def name(self) -> str:
        """Prefix of store keys, by type and client id."""
        return f"{type(self).__name__} {self._client_id}"

    def _create_grant(self, settings: Settings) -> Self:  # noqa: ARG002 - no user interaction
        return self

    async def identity(self, grant_request: GrantRequest, client_id: str) -> ClientIdentity | None:
        """Return the client identity if the id is this client's."""
        return await self._identity(grant_request) if client_id == self._client_id else None

    async def forget(self, grant_request: GrantRequest) -> None:
        """Do nothing: the credentials are configured, not registered."""

    @abstractmethod
    async def obtain(self, grant_request: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Obtain a token by this grant type."""

    async def _identity(self, request: GrantRequest) -> ClientIdentity:
        await self._binding.check(request)
        method = choose_auth_method(
            request.discovery.authorization_server, secret=self._secret is not None, key=self._key is not None
        )
        return ClientIdentity(self._client_id, method, self._secret, self._key)

    async def _request_token(
        self, request: GrantRequest, grant_type: str, **more: str | None
    ) -> tuple[ClientIdentity, TokenResponse]:
        identity = await self._identity(request)
        body = await request.endpoint.request_token(identity, token_request_fields(request, grant_type, **more))
        return identity, read_token_response(body, hop="token")


class ClientCredentials(_MachineGrant):
    """Client credentials grant: `Client(url, auth=ClientCredentials("id", secret="…"))`."""

    def __init__(
        self,
        client_id: str,
        *,
        secret: str | None = None,
        key: SigningKey | None = None,
        **options: Unpack[ProgramOptions],
    ) -> None:
        """The client authenticates with `secret`, or with `key`, whose public part the authorization server knows."""
        if secret is None and key is None:
            raise ConfigError("client credentials are an id and a secret, or an id and a key")
        super().__init__(client_id, secret=secret, key=key, **options)

    async def obtain(self, grant_request: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Request a token for the client itself."""
        return await self._request_token(grant_request, "client_credentials")


class WorkloadIdentity(_MachineGrant):
    """JWT bearer grant (RFC 7523) with an assertion that the platform signs."""

    def __init__(
        self,
        assertion: AssertionSource,
        *,
        client_id: str = "",
        secret: str | None = None,
        key: SigningKey | None = None,
        **options: Unpack[ProgramOptions],
    ) -> None:
        """`assertion` is the signed text, the file that the platform writes it to, or a function that returns it.
        The function may take the audience, which is the issuer of the authorization server."""
        super().__init__(client_id, secret=secret, key=key, **options)
        self._assertion = assertion

    async def obtain(self, grant_request: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Exchange the assertion for a token."""
        assertion = await _read_assertion(self._assertion, grant_request.discovery.authorization_server.issuer)
        return await self._request_token(grant_request, _JWT_BEARER, assertion=assertion)


class EnterpriseManaged(_MachineGrant):
    """Enterprise-managed authorization: the company's identity provider exchanges the user's ID token for an
    assertion, and the server's authorization server exchanges that for a token (the extension
    `enterprise-managed-authorization`)."""

    def __init__(
        self,
        client_id: str,
        *,
        id_token: AssertionSource,
        idp: str | None = None,
        idp_token_endpoint: str | None = None,
        idp_client_id: str = "",
        idp_client_secret: str | None = None,
        id_token_type: str = _ID_TOKEN,
        secret: str | None = None,
        key: SigningKey | None = None,
        **options: Unpack[ProgramOptions],
    ) -> None:
        """`id_token` is the ID token of the company's login, or a function or file that supplies it. `idp` is the
        issuer of that login; its token endpoint is discovered unless it is configured. `client_id` is this client's
        id at the server's authorization server, `idp_client_id` the one at the identity provider."""
        super().__init__(client_id, secret=secret, key=key, **options)
        if idp is None and idp_token_endpoint is None:
            raise ConfigError("either idp= or idp_token_endpoint= says where the company's login is")
        self._id_token = id_token
        self._id_token_type = id_token_type
        self._idp = idp
        self._idp_token_endpoint = idp_token_endpoint
        self._idp_client_id = idp_client_id
        self._idp_client_secret = idp_client_secret

    async def obtain(self, grant_request: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Exchange the ID token for an assertion, and that for a token."""
        return await self._request_token(
            grant_request, _JWT_BEARER, assertion=await self._exchange_id_token(grant_request)
        )

    async def _exchange_id_token(self, request: GrantRequest) -> str:
        """Exchange the ID token for an assertion at the identity provider."""
        idp = await self._find_idp(request)
        endpoint = TokenEndpoint(request.egress, idp, None, request.now)
        method = choose_auth_method(idp, secret=self._idp_client_secret is not None)
        identity = ClientIdentity(self._idp_client_id, method, self._idp_client_secret)
        fields = token_request_fields(
            request,
            _EXCHANGE,
            requested_token_type=_ID_JAG,
            audience=request.discovery.authorization_server.issuer,
            subject_token=await _read_assertion(self._id_token, request.discovery.authorization_server.issuer),
            subject_token_type=self._id_token_type,
        )
        body = await endpoint.request_token(identity, fields)
        return read_token_response(body, hop="token", kinds={"n_a": "N_A"}).access_token

    async def _find_idp(self, request: GrantRequest) -> ServerMetadata:
        if self._idp_token_endpoint is None:
            return await find_authorization_server(request.egress, cast("str", self._idp))
        url = require_secure_url(
            self._idp_token_endpoint, "idp_token_endpoint", hop="token", clause="RFC 6749, section 3.2"
        )
        return ServerMetadata(issuer=self._idp or url, token_endpoint=url)


async def _read_assertion(source: AssertionSource, audience: str) -> str:
    """Read the current external token."""
    try:
        if isinstance(source, str):
            return source
        if isinstance(source, PathLike):
            return (await asyncio.to_thread(Path(cast("PathLike[str]", source)).read_text, "utf-8")).strip()
        ask: Callable[..., Any] = source
        assertion = ask(audience) if inspect.signature(ask).parameters else ask()
        return await assertion if inspect.isawaitable(assertion) else assertion
    except TrunklineError:
        raise
    except Exception as error:
        why = f"the assertion cannot be read: {type(error).__name__}"
        raise AuthorizationFailed(why, hop="token") from error
