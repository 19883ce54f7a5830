"""Verifier of opaque access tokens, by introspection at their issuer (RFC 7662)."""

from collections.abc import Collection, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from msgspec import MsgspecError

from trunkline.auth.discovery import find_authorization_server
from trunkline.auth.fetch import Egress, basic_auth_header
from trunkline.auth.server.claims import ClaimRules, validate_claims
from trunkline.auth.server.issuer_fetch import egress_for, require_ok, require_operator_url
from trunkline.auth.server.verifiers import BadToken, IssuerLimits, Unavailable, Verified, Verifier
from trunkline.auth.urls import require_secure_url
from trunkline.errors import AuthorizationFailed
from trunkline.wire import codec

__all__ = ["Introspection"]

CACHE_SECONDS: Final = 30.0  # seconds for which a revoked token is still accepted
LEEWAY: Final = 30.0
_HOP: Final = "token"
_decode_response: Final = codec.json_decoder(dict[str, Any])


class Introspection(Verifier):
    """Introspects each token at its issuer, and caches the result for a short time."""

    def __init__(
        self,
        issuer: str,
        *,
        client_id: str,
        client_secret: str,
        endpoint: str | None = None,
        audience: str | Sequence[str] | None = None,
        leeway: float = LEEWAY,
        keep: float = CACHE_SECONDS,
        clients: Collection[str] = (),
        limits: IssuerLimits | None = None,
        egress: Egress | None = None,
    ) -> None:
        """`client_id` and `client_secret` are this server's credentials at the issuer, whose metadata names the
        introspection endpoint, unless `endpoint` does.

        A token's audience must be the URL of this server, or one of `audience` instead; of tokens without an audience
        only those of `clients` are accepted. `keep` is the cache time in seconds, for which a revocation may go
        unnoticed. `limits` bound the requests to the issuer about unknown tokens.
        """
        self.issuer = self._issuer = require_operator_url(issuer, "the issuer")
        self.keep = keep
        self.limits = limits or IssuerLimits()
        self._endpoint = None if endpoint is None else require_operator_url(endpoint, "endpoint")
        self._credentials = basic_auth_header(client_id, client_secret)
        self._audience = (audience,) if isinstance(audience, str) else audience
        self._leeway = leeway
        self._clients = frozenset(clients)
        self._egress = egress or egress_for(issuer, endpoint)

    async def verify(self, token: str, audiences: Collection[str], now: float) -> Verified:
        """Introspect a token at the issuer."""
        try:
            claims = await self._introspect(token)
        except (AuthorizationFailed, MsgspecError) as error:
            raise Unavailable(f"introspection at {self._issuer} failed: {error}") from error
        if claims.get("active") is not True:
            raise BadToken("the token is not active: expired, revoked or unknown")
        rules = ClaimRules(
            self._issuer,
            self._audience or audiences,
            self._leeway,
            may_omit_expiry=True,
            clients_without_audience=self._clients,
            may_omit_issuer=True,
        )
        return validate_claims({}, claims, rules, now)

    async def _introspect(self, token: str) -> dict[str, Any]:
        where = self._endpoint
        if where is None:
            where = (await find_authorization_server(self._egress, self._issuer)).introspection_endpoint
            if where is None:
                raise AuthorizationFailed(f"the metadata of {self._issuer} names no introspection_endpoint", hop=_HOP)
            clause = "authorization, Communication Security"
            self._endpoint = require_secure_url(where, "introspection_endpoint", hop=_HOP, clause=clause)
        headers = {"Authorization": self._credentials, "Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        response = await self._egress.post(where, body, hop=_HOP, headers=headers)
        return _decode_response(require_ok(response, "the introspection result", hop=_HOP))

    def __repr__(self) -> str:
        return f"Introspection({self._issuer!r})"
