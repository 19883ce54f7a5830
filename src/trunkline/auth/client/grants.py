"""Tokens for programs that nobody sits in front of."""

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
"""A token of somebody else's: itself, the file that it is in, or a function that gives it."""


class ProgramOptions(TypedDict, total=False):
    """What every program can be told beside who it is."""

    issuer: str | None  # the authorization server that knows it; its credentials are shown to no other
    scopes: str | Iterable[str] | None  # to ask for, beside what a server wants
    store: TokenStore | None  # where tokens are kept, by default in memory
    dpop: bool | None  # whether tokens are bound to a key; None: where that is required
    now: Callable[[], float]  # seconds since the epoch


class _MachineGrant(OAuthAuthorizer):
    """A program with an id that the authorization server knows."""

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
            raise ConfigError(f"there is no option {min(strange)!r}; beside credentials there are {known}")
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
        """Keeps apart what is kept for one client and for another."""
        return f"{type(self).__name__} {self._client_id}"

    def _create_grant(self, settings: Settings) -> Self:  # noqa: ARG002 - nobody has to be asked
        return self

    async def identity(self, errand: GrantRequest, client_id: str) -> ClientIdentity | None:
        """Who we are."""
        return await self._identity(errand) if client_id == self._client_id else None

    async def forget(self, errand: GrantRequest) -> None:
        """There is nothing that we could register again."""

    @abstractmethod
    async def obtain(self, errand: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """A token, by the program's own way to get one."""

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
    """A program that is somebody itself: `Client(url, auth=ClientCredentials("id", secret="…"))`."""

    def __init__(
        self,
        client_id: str,
        *,
        secret: str | None = None,
        key: SigningKey | None = None,
        **options: Unpack[ProgramOptions],
    ) -> None:
        """It proves who it is by a `secret`, or by a `key` whose public part the authorization server knows."""
        if secret is None and key is None:
            raise ConfigError("client credentials are an id and a secret, or an id and a key")
        super().__init__(client_id, secret=secret, key=key, **options)

    async def obtain(self, errand: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Asks for a token in its own name."""
        return await self._request_token(errand, "client_credentials")


class WorkloadIdentity(_MachineGrant):
    """A program whose platform says who it is, by a signed assertion (RFC 7523)."""

    def __init__(
        self,
        assertion: AssertionSource,
        *,
        client_id: str = "",
        secret: str | None = None,
        key: SigningKey | None = None,
        **options: Unpack[ProgramOptions],
    ) -> None:
        """`assertion` is the signed text, the file that the platform writes it to, or a function that is given the
        audience, which is the issuer of the authorization server, and gives the text."""
        super().__init__(client_id, secret=secret, key=key, **options)
        self._assertion = assertion

    async def obtain(self, errand: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Shows the assertion."""
        assertion = await _read_assertion(self._assertion, errand.discovery.authorization_server.issuer)
        return await self._request_token(errand, _JWT_BEARER, assertion=assertion)


class EnterpriseManaged(_MachineGrant):
    """A person whose company decides which servers they may use: what proves who they are to their own login is
    exchanged there for a grant, and that for a token (the extension `enterprise-managed-authorization`)."""

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
        """`id_token` is what the company's login gave, or a function or file that gives it. `idp` is the issuer of that
        login; its token endpoint is looked up unless it is given. `client_id` is how the server's own authorization
        server knows us, `idp_client_id` how the company's login does."""
        super().__init__(client_id, secret=secret, key=key, **options)
        if idp is None and idp_token_endpoint is None:
            raise ConfigError("either idp= or idp_token_endpoint= says where the company's login is")
        self._id_token = id_token
        self._id_token_type = id_token_type
        self._idp = idp
        self._idp_token_endpoint = idp_token_endpoint
        self._idp_client_id = idp_client_id
        self._idp_client_secret = idp_client_secret

    async def obtain(self, errand: GrantRequest) -> tuple[ClientIdentity, TokenResponse]:
        """Exchanges twice."""
        return await self._request_token(errand, _JWT_BEARER, assertion=await self._exchange_id_token(errand))

    async def _exchange_id_token(self, request: GrantRequest) -> str:
        """The grant, for the assertion."""
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
    """A token of somebody else's, as it is now."""
    try:
        if isinstance(source, str):
            return source
        if isinstance(source, PathLike):
            return (await asyncio.to_thread(Path(cast("PathLike[str]", source)).read_text, "utf-8")).strip()
        ask: Callable[..., Any] = source
        said = ask(audience) if inspect.signature(ask).parameters else ask()
        return await said if inspect.isawaitable(said) else said
    except TrunklineError:
        raise
    except Exception as error:
        why = f"the assertion cannot be had: {type(error).__name__}"
        raise AuthorizationFailed(why, hop="token") from error
