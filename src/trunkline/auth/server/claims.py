"""Validation of access token claims (RFC 9068, RFC 7519), and the principal they describe."""

from collections.abc import Collection, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, cast

from msgspec import Struct

from trunkline.auth.principal import Principal
from trunkline.auth.server.verifiers import BadToken, Verified

__all__ = ["ClaimRules", "scopes_of", "validate_claims"]

_ACCESS_TOKEN_TYPES: Final = frozenset({"", "jwt", "at+jwt"})
_OTHER_TOKEN_USES: Final = frozenset({"id", "refresh", "offline", "logout"})  # values that Keycloak and Cognito use
_ID_TOKEN_CLAIMS: Final = ("nonce", "at_hash", "c_hash")
_CLIENT: Final = ("client_id", "azp", "cid", "appid")
_SCOPES: Final = ("scope", "scp")


class ClaimRules(Struct, frozen=True):
    """Requirements of one verifier."""

    issuer: str
    audiences: Collection[str]
    leeway: float = 0.0  # seconds of clock skew
    may_omit_expiry: bool = False  # accept a token without `exp`
    clients_without_audience: Collection[str] = ()  # clients whose tokens may lack `aud`
    may_omit_issuer: bool = False  # accept a token without `iss`


def validate_claims(header: Mapping[str, Any], claims: Mapping[str, Any], rules: ClaimRules, now: float) -> Verified:
    """Validate the claims of an access token and return its principal. Raises `BadToken`."""
    _check_type(header, claims)
    client = next((name for key in _CLIENT if (name := _read_text(claims, key))), "")
    _check_parties(claims, client, rules)
    expires = _check_times(claims, rules, now)
    subject = _read_text(claims, "sub")
    if not subject:
        raise BadToken("the token has no subject, so users of one client cannot be told apart")
    principal = Principal(
        subject,
        issuer=rules.issuer,
        client=client,
        scopes=scopes_of(claims),
        claims=MappingProxyType(dict(claims)),
    )
    return Verified(principal, expires, _read_bound_key(claims))


def scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes of a token: a space-separated string or a list, in `scope` or `scp`."""
    found: list[str] = []
    for name in _SCOPES:
        value = claims.get(name)
        if isinstance(value, str):
            found += value.split()
        elif isinstance(value, list):
            found += [one for one in cast("list[Any]", value) if isinstance(one, str)]
    return frozenset(found)


def _read_text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return value if isinstance(value, str) else ""


def _check_type(header: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """Reject tokens that the issuer signed for another purpose."""
    kind = _read_text(header, "typ").lower().removeprefix("application/")
    usage = (_read_text(claims, "typ") or _read_text(claims, "token_use")).lower()
    if kind not in _ACCESS_TOKEN_TYPES or usage in _OTHER_TOKEN_USES:
        raise BadToken("the token is not an access token")
    plain = kind != "at+jwt" and usage not in {"bearer", "access", "dpop"}
    if plain and any(name in claims for name in _ID_TOKEN_CLAIMS):
        raise BadToken("the token is an ID token, not an access token")


def _check_parties(claims: Mapping[str, Any], client: str, rules: ClaimRules) -> None:
    issuer = claims.get("iss")
    if issuer != rules.issuer and not (issuer is None and rules.may_omit_issuer):
        raise BadToken("the token is from another issuer")
    audience = claims.get("aud")
    if audience is None and client and client in rules.clients_without_audience:
        return
    if audience is None:
        raise BadToken("the token has no audience")
    named = cast("list[Any]", audience) if isinstance(audience, list) else [audience]
    if not any(isinstance(one, str) and one in rules.audiences for one in named):
        raise BadToken("the token is for another audience")


def _check_times(claims: Mapping[str, Any], rules: ClaimRules, now: float) -> float | None:
    expires = _read_time(claims, "exp")
    if expires is None and not rules.may_omit_expiry:
        raise BadToken("the token has no expiry")
    if expires is not None and now >= expires + rules.leeway:
        raise BadToken("the token has expired", "token_expired")
    for name in ("nbf", "iat"):
        begins = _read_time(claims, name)
        if begins is not None and begins > now + rules.leeway:
            raise BadToken("the token is not valid yet")
    return None if expires is None else expires + rules.leeway


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadToken(f"the token's {name} is not a time")
    return float(value)


def _read_bound_key(claims: Mapping[str, Any]) -> str | None:
    """Return the thumbprint of the key that a token is bound to, or None for a bearer token."""
    bound = claims.get("cnf")
    if bound is None:
        return None
    confirmed = cast("dict[str, Any]", bound) if isinstance(bound, dict) else {}
    key = confirmed.get("jkt")
    if isinstance(key, str) and key and len(confirmed) == 1:
        return key
    if "x5t#S256" in confirmed:
        raise BadToken("the token is bound to a TLS certificate, which cannot be verified here")
    raise BadToken("the token is bound in a way that cannot be verified here")
