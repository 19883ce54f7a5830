"""Which verifier a token is for."""

from collections.abc import Sequence
from typing import Final

from trunkline.auth.server.verifiers import Verifier

__all__ = ["candidates"]

_PARTS: Final = 3  # of a signed token


def candidates(verifiers: Sequence[Verifier], token: str) -> Sequence[Verifier]:
    """Those for a token's issuer, where the token says who that is; otherwise all who may know it, in their order."""
    if len(verifiers) == 1:
        return verifiers
    issuer = _issuer_in(token)
    if issuer is None:
        return verifiers
    return [one for one in verifiers if one.issuer == issuer] or [one for one in verifiers if one.issuer is None]


def _issuer_in(token: str) -> str | None:
    if len(token.split(".")) != _PARTS:
        return None
    from trunkline.auth.jose import Jose, unverified

    try:
        issuer = unverified(token).claims.get("iss")
    except Jose:
        return None
    return issuer if isinstance(issuer, str) else None
