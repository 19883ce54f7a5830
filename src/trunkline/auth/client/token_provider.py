"""Token provider for one MCP server: obtains tokens on demand, renews them before they expire, requests more scopes
when challenged, and stops when the server keeps refusing."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from trunkline.auth.client.challenges import FORBIDDEN, UNAUTHORIZED, TokenChallenge, read_challenge, read_sent_token
from trunkline.auth.client.dpop import Prover, generate_key
from trunkline.auth.client.grant import Grant, GrantRequest, token_request_fields
from trunkline.auth.client.single_flight import SingleFlight
from trunkline.auth.client.token_endpoint import ClientIdentity, OAuthErrorResponse, TokenEndpoint
from trunkline.auth.client.token_store import TokenStore
from trunkline.auth.client.tokens import (
    StoredToken,
    TokenResponse,
    decode_stored_token,
    encode_stored_token,
    read_token_response,
    token_store_key,
)
from trunkline.auth.discovery import DiscoveryResult, discover
from trunkline.auth.fetch import Egress
from trunkline.auth.jose import SigningKey
from trunkline.auth.urls import origin_of
from trunkline.errors import AuthorizationFailed, ConfigError, StoreError
from trunkline.transports.http.client.credentials import HttpExchange, OnAuthorizing

__all__ = ["TokenProvider"]

_ERROR_STATUS: Final = 400  # and above
_RENEWAL_MARGIN: Final = 60.0  # seconds before expiry: a request may take that long
_MAX_GRANTS: Final = 3  # in a row, without a request that succeeds (authorization, "Step-Up Authorization Flow")
_RECENT_GRANT: Final = 300.0  # seconds after a grant in which another one would not help
_OFFLINE: Final = "offline_access"
_UNKNOWN_CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client"})
_INVALID_GRANT_ERRORS: Final = _UNKNOWN_CLIENT_ERRORS | {
    "invalid_grant",
    "invalid_dpop_proof",
    "bad_refresh_token",
}  # the last one is GitHub's


class _TokenSource(Enum):
    """Origin of the current token."""

    STORE = auto()
    REFRESH = auto()
    GRANT = auto()


class TokenProvider:
    """Implements `transports.http.client.credentials.Credentials` with OAuth tokens."""

    def __init__(
        self,
        server: str,
        grant: Grant,
        *,
        store: TokenStore,
        egress: Egress,
        scopes: tuple[str, ...] = (),
        dpop: bool | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`scopes` are always requested. `dpop` binds tokens to a key; None does so where the server requires it."""
        self._server = server
        self._origin = origin_of(server)
        self._grant = grant
        self._store = store
        self._egress = egress
        self._scopes = scopes
        self._dpop = dpop
        self._now = now
        self._store_key = token_store_key(server, grant.name)
        self._single_flight = SingleFlight()
        self._asking_user = False  # the user is being asked to log in
        self._loaded = False
        self._token: StoredToken | None = None
        self._source = _TokenSource.STORE
        self._accepted = False  # the server has accepted the token at least once
        self._grant_count = 0  # consecutive
        self._granted_at = 0.0  # time of the last grant
        self._discovery: DiscoveryResult | None = None
        self._prover: Prover | None = None

    # --- request headers ---------------------------------------------------------------------------

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the headers for a request, after renewing a token that expires soon. Requests to other origins get
        none."""
        if self._origin is None or origin_of(url) != self._origin:
            return {}
        with _translate_store_errors():
            if not self._loaded:
                self._adopt(decode_stored_token(await self._store.get(self._store_key)), _TokenSource.STORE)
            if self._token is not None and self._needs_renewal(self._token) and not self._asking_user:
                await self._try_renew(self._token)
        token = self._token
        if token is None:
            return {}
        if self._prover is None or token.kind != "DPoP":
            return {"Authorization": f"Bearer {token.access}"}
        return {"Authorization": f"DPoP {token.access}", "DPoP": self._prover.create_proof(method, url, token.access)}

    def _needs_renewal(self, token: StoredToken) -> bool:
        """Return whether it is time to renew the token. A token that was just issued and not used yet counts until
        it expires."""
        now, unused = self._now(), self._source is not _TokenSource.STORE and not self._accepted
        due = token.expires if unused and token is self._token else token.renew
        return due is not None and due <= now

    async def _try_renew(self, token: StoredToken) -> None:
        """Renew a token without user interaction. If that fails and the token is still valid, keep using it."""
        if token.refresh is None and self._grant.person:
            return
        try:
            await self._single_flight.join(self._renew)
        except AuthorizationFailed:
            if token.expires is None or token.expires <= self._now():
                raise

    async def _renew(self) -> None:
        token = self._token
        if token is None or not self._needs_renewal(token):
            return
        if self._discovery is None:
            self._discovery = await self._discover(token.hint)
        if token.issuer == self._discovery.authorization_server.issuer and token.refresh is not None:
            await self._refresh(token, self._discovery)
        elif not self._grant.person:
            await self._obtain(self._discovery, token.requested)

    # --- challenges --------------------------------------------------------------------------------

    async def handle_response(self, heard: HttpExchange, asking: OnAuthorizing) -> bool:
        """Obtain a token, or a better one, if the server's response demands it; return whether to repeat the
        request."""
        if self._prover is not None:
            self._prover.record_nonce(heard.url, heard.headers)
        challenge = read_challenge(heard)
        if challenge is None or challenge.status == FORBIDDEN:
            self._note_use(read_sent_token(heard.sent), succeeded=heard.status < _ERROR_STATUS)
        if challenge is None:
            return False
        prover = self._prover if challenge.error == "use_dpop_nonce" else None
        if prover is not None and prover.has_newer_nonce(heard.sent.get("DPoP"), heard.url):
            return True
        asking(True)
        try:
            with _translate_store_errors():
                await self._single_flight.join(lambda: self._answer_challenge(challenge))
        finally:
            asking(False)
        return True

    def _note_use(self, sent: str | None, *, succeeded: bool) -> None:
        if self._token is not None and sent == self._token.access:
            self._accepted = True
            if succeeded:
                self._grant_count = 0

    async def _answer_challenge(self, challenge: TokenChallenge) -> None:
        """Obtain a token that satisfies a challenge."""
        token, latest = self._token, decode_stored_token(await self._store.get(self._store_key))
        if latest is not None and challenge.sent_token != latest.access:
            self._adopt(latest, _TokenSource.STORE)
            return  # another task or process has obtained a newer token meanwhile
        self._stop_if_futile(challenge)
        discovery = self._discovery = await self._discover(
            challenge.resource_metadata_url or (None if token is None else token.hint)
        )
        if challenge.dpop_required:
            discovery = self._discovery = replace(discovery, dpop_required=True)
        if (
            token is not None
            and challenge.status == UNAUTHORIZED
            and token.issuer == discovery.authorization_server.issuer
        ):
            unused = self._source is _TokenSource.REFRESH and not self._accepted
            if not unused and await self._refresh(token, discovery):
                return
        await self._obtain(discovery, self._scopes_for(challenge, discovery))

    def _stop_if_futile(self, challenge: TokenChallenge) -> None:
        """Raise `AuthorizationFailed` if the server refuses a token that satisfies its own challenge."""
        ours = () if self._token is None else self._token.requested
        now, expires = self._now(), None if self._token is None else self._token.expires
        over = expires is not None and expires <= now and self._accepted and challenge.status == UNAUTHORIZED
        if now - self._granted_at > _RECENT_GRANT or over:
            self._grant_count = 0
            return
        refused = challenge.status == UNAUTHORIZED and not self._accepted
        forbidden = challenge.status == FORBIDDEN and set(challenge.scopes or ()) <= set(ours)
        if (self._source is _TokenSource.GRANT and (refused or forbidden)) or self._grant_count >= _MAX_GRANTS:
            why = f"the server refuses the token that was just issued for it{challenge.description}"
            clause = "authorization, Scope Challenge Handling" if forbidden else "RFC 6750, section 3.1"
            raise AuthorizationFailed(why, hop="retry", clause=clause)

    def _scopes_for(self, challenge: TokenChallenge, discovery: DiscoveryResult) -> tuple[str, ...]:
        """Choose the scopes to request (authorization, "Scope Selection Strategy"): those of the challenge, and all
        that were requested from this authorization server before."""
        token = self._token
        before = token.requested if token is not None and token.issuer == discovery.authorization_server.issuer else ()
        named = challenge.scopes if challenge.scopes is not None else (self._scopes or discovery.scopes or ())
        chosen = dict.fromkeys((*before, *named, *self._scopes))
        if self._grant.person and chosen and _OFFLINE in (discovery.authorization_server.scopes_supported or ()):
            chosen[_OFFLINE] = None
        return tuple(chosen)

    # --- grants ------------------------------------------------------------------------------------

    async def _discover(self, hint: str | None) -> DiscoveryResult:
        issuers = self._grant.issuers or ((self._token.issuer,) if self._token is not None else ())
        return await discover(self._egress, self._server, hint, issuers=issuers)

    async def _obtain(self, discovery: DiscoveryResult, scopes: tuple[str, ...]) -> None:
        bound = discovery.dpop_required if self._dpop is None else self._dpop
        prover = self._prover if bound else None
        if bound and prover is None:
            prover = self._prover = Prover(
                generate_key(discovery.authorization_server.dpop_signing_alg_values_supported), self._now
            )
        self._asking_user = self._grant.person
        try:
            identity, response = await self._grant.obtain(self._grant_request(discovery, scopes, prover))
        finally:
            self._asking_user = False
        if bound and response.token_type != "DPoP":  # noqa: S105 - the name of a scheme
            why = "the authorization server does not bind its tokens to a key"
            raise AuthorizationFailed(why, hop="token", clause="RFC 9449, section 5")
        self._grant_count += 1
        self._granted_at = self._now()
        await self._save(self._build_stored_token(discovery, identity, response, scopes, prover), _TokenSource.GRANT)

    async def _refresh(self, token: StoredToken, discovery: DiscoveryResult) -> bool:
        """Refresh a token; return whether that succeeded. A lock in the store serialises this across processes,
        since a refresh token can be used once."""
        async with self._store.locked(self._store_key):
            latest = decode_stored_token(await self._store.get(self._store_key))
            if (
                latest is not None
                and latest.access != token.access
                and latest.issuer == discovery.authorization_server.issuer
            ):
                self._adopt(latest, _TokenSource.STORE)
                if not self._needs_renewal(latest):
                    return True
                token = latest
            if token.refresh is None:
                return False
            return await self._send_refresh(token, token.refresh, discovery)

    async def _send_refresh(self, token: StoredToken, refresh_token: str, discovery: DiscoveryResult) -> bool:
        request = self._grant_request(discovery, (), self._prover)
        identity = await self._grant.identity(request, token.client_id)
        if identity is None:
            return False
        fields = token_request_fields(request, "refresh_token", refresh_token=refresh_token)
        try:
            body = await request.endpoint.request_token(identity, fields, hop="refresh")
        except OAuthErrorResponse as refused:
            if refused.error not in _INVALID_GRANT_ERRORS:
                raise
            if identity.registered and refused.error in _UNKNOWN_CLIENT_ERRORS:
                await self._grant.forget(request)
            await self._save(replace(token, refresh=None), self._source)
            return False
        response = read_token_response(body, hop="refresh")
        renewed = self._build_stored_token(discovery, identity, response, token.requested, self._prover)
        granted = token.granted if response.scopes is None else response.scopes
        await self._save(
            replace(renewed, refresh=response.refresh_token or refresh_token, granted=granted), _TokenSource.REFRESH
        )
        return True

    def _grant_request(
        self, discovery: DiscoveryResult, scopes: tuple[str, ...], prover: Prover | None
    ) -> GrantRequest:
        endpoint = TokenEndpoint(self._egress, discovery.authorization_server, prover, self._now)
        return GrantRequest(self._server, discovery, scopes, endpoint, self._egress, self._store, self._now)

    def _build_stored_token(
        self,
        discovery: DiscoveryResult,
        identity: ClientIdentity,
        response: TokenResponse,
        scopes: tuple[str, ...],
        prover: Prover | None,
    ) -> StoredToken:
        bound = prover is not None and response.token_type == "DPoP"  # noqa: S105 - the name of a scheme
        return StoredToken(
            issuer=discovery.authorization_server.issuer,
            client_id=identity.client_id,
            access=response.access_token,
            kind=response.token_type,
            expires=None if response.lifetime is None else self._now() + response.lifetime,
            renew=None if response.lifetime is None else self._now() + _usable_lifetime(response.lifetime),
            refresh=response.refresh_token,
            granted=scopes if response.scopes is None else response.scopes,
            requested=scopes,
            hint=discovery.resource_metadata_url,
            key=prover.key.to_jwk() if prover is not None and bound else None,
        )

    async def _save(self, token: StoredToken, source: _TokenSource) -> None:
        """Store a token before its first use: the refresh token that it replaces is no longer valid."""
        await self._store.put(self._store_key, encode_stored_token(token))
        self._adopt(token, source)

    def _adopt(self, token: StoredToken | None, source: _TokenSource) -> None:
        same = token is not None and self._token is not None and token.access == self._token.access
        self._loaded = True
        self._token = token
        if not same:
            self._source, self._accepted = source, False
        if token is None or token.key is None:
            self._prover = None
        elif self._prover is None or self._prover.key.to_jwk() != token.key:
            self._prover = _load_prover(token.key, self._now)


@contextmanager
def _translate_store_errors() -> Generator[None]:
    """Raise store errors as `AuthorizationFailed`."""
    try:
        yield
    except StoreError as error:
        raise AuthorizationFailed(f"the token store failed: {error}", hop="token") from error


def _usable_lifetime(lifetime: float) -> float:
    """Return for how long to use a token: its lifetime minus the renewal margin, or three quarters of a short
    lifetime. A token that lives for less than the margin is used once."""
    return 0.0 if lifetime < _RENEWAL_MARGIN else lifetime - min(_RENEWAL_MARGIN, lifetime / 4)


def _load_prover(jwk: Mapping[str, object], now: Callable[[], float]) -> Prover | None:
    try:
        return Prover(SigningKey.from_jwk(jwk), now)
    except ConfigError:
        return None
