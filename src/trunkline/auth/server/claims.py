"""What must be true of an access token (RFC 9068, RFC 7519), and who it is about."""

from collections.abc import Collection, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, cast

from msgspec import Struct

from trunkline.auth.principal import Principal
from trunkline.auth.server.verifiers import BadToken, Verified

__all__ = ["ClaimRules", "scopes_of", "validate_claims"]

_ACCESS_TOKEN_TYPES: Final = frozenset({"", "jwt", "at+jwt"})
_OTHER_TOKEN_USES: Final = frozenset({"id", "refresh", "offline", "logout"})  # what Keycloak and Cognito call theirs
_ID_TOKEN_CLAIMS: Final = ("nonce", "at_hash", "c_hash")
_CLIENT: Final = ("client_id", "azp", "cid", "appid")
_SCOPES: Final = ("scope", "scp")


class ClaimRules(Struct, frozen=True):
    """What is asked of a token."""

    issuer: str
    audiences: Collection[str]
    leeway: float = 0.0  # seconds by which the clocks may differ
    may_omit_expiry: bool = False  # whether it may be silent about when it ends
    clients_without_audience: Collection[str] = ()  # whose tokens may be silent about whom they are for
    may_omit_issuer: bool = False  # whether it may be silent about who made it


def validate_claims(header: Mapping[str, Any], claims: Mapping[str, Any], rules: ClaimRules, now: float) -> Verified:
    """Who a token is about, if it is an access token for us that holds now. Raises `BadToken`."""
    _check_type(header, claims)
    client = next((name for key in _CLIENT if (name := _read_text(claims, key))), "")
    _check_parties(claims, client, rules)
    expires = _check_times(claims, rules, now)
    subject = _read_text(claims, "sub")
    if not subject:
        raise BadToken("the token names no subject: all users of a client would be the same")
    principal = Principal(
        subject,
        issuer=rules.issuer,
        client=client,
        scopes=scopes_of(claims),
        claims=MappingProxyType(dict(claims)),
    )
    return Verified(principal, expires, _read_bound_key(claims))


def scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """What a token allows: one text with spaces, or a list, under either of two names."""
    found: list[str] = []
    for name in _SCOPES:
        said = claims.get(name)
        if isinstance(said, str):
            found += said.split()
        elif isinstance(said, list):
            found += [one for one in cast("list[Any]", said) if isinstance(one, str)]
    return frozenset(found)


def _read_text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return value if isinstance(value, str) else ""


def _check_type(header: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """Refuses what was signed by the issuer for another purpose."""
    kind = _read_text(header, "typ").lower().removeprefix("application/")
    said = (_read_text(claims, "typ") or _read_text(claims, "token_use")).lower()
    if kind not in _ACCESS_TOKEN_TYPES or said in _OTHER_TOKEN_USES:
        raise BadToken("the token is not an access token")
    plain = kind != "at+jwt" and said not in {"bearer", "access", "dpop"}
    if plain and any(name in claims for name in _ID_TOKEN_CLAIMS):
        raise BadToken("the token is an ID token, which says who somebody is to a client and opens nothing")


def _check_parties(claims: Mapping[str, Any], client: str, rules: ClaimRules) -> None:
    issuer = claims.get("iss")
    if issuer != rules.issuer and not (issuer is None and rules.may_omit_issuer):
        raise BadToken("the token is from another issuer")
    said = claims.get("aud")
    if said is None and client and client in rules.clients_without_audience:
        return
    if said is None:
        raise BadToken("the token does not say whom it is for")
    named = cast("list[Any]", said) if isinstance(said, list) else [said]
    if not any(isinstance(one, str) and one in rules.audiences for one in named):
        raise BadToken("the token is for another audience")


def _check_times(claims: Mapping[str, Any], rules: ClaimRules, now: float) -> float | None:
    expires = _read_time(claims, "exp")
    if expires is None and not rules.may_omit_expiry:
        raise BadToken("the token does not say when it ends")
    if expires is not None and now >= expires + rules.leeway:
        raise BadToken("the token has expired", "token_expired")
    for name in ("nbf", "iat"):
        begins = _read_time(claims, name)
        if begins is not None and begins > now + rules.leeway:
            raise BadToken("the token does not hold yet: it is from the future")
    return None if expires is None else expires + rules.leeway


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadToken(f"the token's {name} is no time")
    return float(value)


def _read_bound_key(claims: Mapping[str, Any]) -> str | None:
    """The thumbprint of the key that a token is bound to; None if whoever has the token may use it."""
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
