"""Access tokens that are signed: JSON Web Tokens, verified with the keys that their issuer publishes."""

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

LEEWAY: Final = 30.0  # seconds by which clocks may differ
CACHE_SECONDS: Final = 300.0  # seconds: a signature stays true; what ends it sooner is its expiry, or other keys


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
        """`issuer` is exactly what tokens have as `iss`. Its metadata tells where its keys are, unless `jwks_uri` does.
        Tokens have to be for the address of this server, or for one of `audience` instead. Of issuers that put no
        audience into tokens, those for `clients` are taken. `algorithms` are those that it signs by."""
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
        self._discovered_jwks_uri: str | None = None  # where its metadata says that its keys are
        self._keys = IssuerKeys(self._fetch, self._keys_changed)

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified | Awaitable[Verified]:
        """What a token proves; at once, if the key that it was signed with is here."""
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
            raise Unavailable(f"the keys of {self._issuer} cannot be had: {error}") from error
        try:
            return self._verify_with_keys(keys, token, audiences, now)
        except UnknownKey as error:
            raise BadToken(f"the token cannot be verified: {error}") from None

    def _verify_with_keys(self, keys: KeySet, token: str, audiences: Collection[str], now: float) -> Verified:
        """What a token proves by these keys; a key that is not there is another matter than one that is wrong."""
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
        """What the issuer publishes as its keys. Where they are is asked anew if they are not there any more."""
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
