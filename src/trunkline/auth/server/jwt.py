"""Verifier of JSON Web Tokens, by the keys that their issuer publishes."""

from collections.abc import Awaitable, Collection, Sequence
from typing import Final

from trunkline.auth.discovery import find_authorization_server
from trunkline.auth.fetch import Egress
from trunkline.auth.jose import ALGORITHMS, InvalidJws, KeySet, UnknownKey
from trunkline.auth.server.claims import ClaimRules, validate_claims
from trunkline.auth.server.issuer_fetch import egress_for, require_ok, require_operator_url
from trunkline.auth.server.issuer_keys import IssuerKeys
from trunkline.auth.server.verifiers import BadToken, Unavailable, Verified, Verifier
from trunkline.errors import AuthorizationFailed, ConfigError

__all__ = ["Jwt"]

LEEWAY: Final = 30.0  # seconds of clock skew
CACHE_SECONDS: Final = 300.0  # seconds: only expiry and key rotation invalidate a signature sooner


class Jwt(Verifier):
    """Verifies JSON Web Tokens of one issuer, by its published keys."""

    keep = CACHE_SECONDS

    def __init__(
        self,
        issuer: str,
        *,
        jwks_uri: str | None = None,
        audience: str | Sequence[str] | None = None,
        algorithms: Sequence[str] = ALGORITHMS,
        leeway: float = LEEWAY,
        clients: Collection[str] = (),
        egress: Egress | None = None,
    ) -> None:
        """`issuer` must equal the `iss` of tokens. Its metadata names the URL of its keys, unless `jwks_uri` does.

        A token's audience must be the URL of this server, or one of `audience` instead. For issuers that set no
        audience, tokens of `clients` are accepted. `algorithms` are the accepted signature algorithms.
        """
        unknown = [name for name in algorithms if name not in ALGORITHMS]
        if unknown or not algorithms:
            raise ConfigError(f"tokens are signed by some of {', '.join(ALGORITHMS)}; not by {unknown or 'nothing'}")
        self.issuer = self._issuer = require_operator_url(issuer, "the issuer")
        self._jwks_uri = None if jwks_uri is None else require_operator_url(jwks_uri, "jwks_uri")
        self._audience = (audience,) if isinstance(audience, str) else audience
        self._algorithms = tuple(algorithms)
        self._leeway = leeway
        self._clients = frozenset(clients)
        self._egress = egress or egress_for(issuer, jwks_uri)
        self._discovered_jwks_uri: str | None = None  # from the issuer's metadata
        self._keys = IssuerKeys(self._fetch, self._keys_changed)

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified | Awaitable[Verified]:
        """Verify a token. Return the result directly if its key is cached."""
        keys = self._keys.get_without_fetch(now)
        if keys is None:
            return self._verify_after_refresh(token, audiences, now)
        try:
            return self._verify_with_keys(keys, token, audiences, now)
        except UnknownKey as error:
            if self._keys.may_refetch(now):
                return self._verify_after_refresh(token, audiences, now)
            raise BadToken(f"the token cannot be verified: {error}") from None

    async def _verify_after_refresh(self, token: str, audiences: Collection[str], now: float) -> Verified:
        try:
            keys = await self._keys.refresh(now)
        except (AuthorizationFailed, InvalidJws) as error:
            raise Unavailable(f"the keys of {self._issuer} are unavailable: {error}") from error
        try:
            return self._verify_with_keys(keys, token, audiences, now)
        except UnknownKey as error:
            raise BadToken(f"the token cannot be verified: {error}") from None

    def _verify_with_keys(self, keys: KeySet, token: str, audiences: Collection[str], now: float) -> Verified:
        """Verify a token with these keys. Raises `UnknownKey` if a refresh may help, otherwise `BadToken`."""
        try:
            signed = keys.verify(token, self._algorithms)
        except UnknownKey:
            raise
        except InvalidJws as error:
            raise BadToken(f"the token cannot be verified: {error}") from None
        rules = ClaimRules(
            self._issuer, self._audience or audiences, self._leeway, clients_without_audience=self._clients
        )
        return validate_claims(signed.header, signed.claims, rules, now)

    def _keys_changed(self) -> None:
        self.generation += 1

    async def _fetch(self) -> bytes:
        """Fetch the issuer's keys. If that fails, the next call looks up their URL again."""
        where = self._jwks_uri or self._discovered_jwks_uri
        if where is None:
            where = (await find_authorization_server(self._egress, self._issuer)).jwks_uri
            if where is None:
                raise AuthorizationFailed(f"the metadata of {self._issuer} names no jwks_uri", hop="keys")
        self._discovered_jwks_uri = None
        body = require_ok(await self._egress.get(where, hop="keys"), "the keys", hop="keys")
        self._discovered_jwks_uri = where
        return body

    def __repr__(self) -> str:
        return f"Jwt({self._issuer!r})"
