"""What verifies tokens: the seam, and what comes of it.

Which verifier a token is for.
"""

from collections.abc import Awaitable, Collection, Sequence
from typing import Final

from msgspec import Struct

from trunkline.auth.principal import Principal
from trunkline.errors import ConfigError

__all__ = ["BadToken", "IssuerLimits", "Unavailable", "Verified", "Verifier", "select_verifiers"]


class Verified(Struct, frozen=True):
    """What a token proves."""

    principal: Principal
    expires: float | None = None  # seconds since the epoch: when it stops to; None: nobody said
    key: str | None = None  # the thumbprint of the key without which it proves nothing


class BadToken(Exception):
    """A token that proves nothing, and why, in words that may be told to whoever sent it."""

    def __init__(self, why: str, kind: str = "invalid_token") -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind


class Unavailable(Exception):
    """Nobody can say now whether a token is any good; that is not the fault of whoever sent it."""


class IssuerLimits(Struct, frozen=True, kw_only=True):
    """Limits of the requests to one issuer about tokens that are not known yet."""

    max_requests: int = 16  # under way at once
    max_waiting: int = 256  # waiting for one of these to end; callers beyond that get status 503
    rejected_ttl: float = 10.0  # seconds for which a rejected token is remembered; 0: it is not
    max_rejected: int = 10_000  # rejected tokens that are remembered
    rejected_per_minute: int | None = 60  # of one address, which gets status 429 beyond that; None: no limit

    def __post_init__(self) -> None:
        """Refuse limits that would let no request through."""
        for name in ("max_requests", "max_rejected", "rejected_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"IssuerLimits: {name} must be at least 1, not {value!r}")
        for name in ("max_waiting", "rejected_ttl"):
            if getattr(self, name) < 0:
                raise ConfigError(f"IssuerLimits: {name} must not be below 0, not {getattr(self, name)!r}")


class Verifier:
    """Verifies tokens, of one issuer or of a kind of its own. Subclass it for others than those that are here."""

    issuer: str | None = None  # whose tokens these are; None where tokens do not say
    keep: float = 0.0  # for how many seconds an answer may be used again
    generation: int = 0  # another one: what was answered before may not be used again
    limits: IssuerLimits | None = None  # of requests to the issuer, if it is asked about each unknown token

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified | Awaitable[Verified]:
        """What a token proves to a resource that is known by these names; at once, where nobody has to be asked.

        Raises `BadToken` or `Unavailable`. `now` is in seconds since the epoch."""
        raise NotImplementedError


_JWS_PARTS: Final = 3  # of a signed token


def select_verifiers(verifiers: Sequence[Verifier], token: str) -> Sequence[Verifier]:
    """Those for a token's issuer, where the token says who that is; otherwise all who may know it, in their order."""
    if len(verifiers) == 1:
        return verifiers
    issuer = _read_issuer(token)
    if issuer is None:
        return verifiers
    return [one for one in verifiers if one.issuer == issuer] or [one for one in verifiers if one.issuer is None]


def _read_issuer(token: str) -> str | None:
    if len(token.split(".")) != _JWS_PARTS:
        return None
    from trunkline.auth.jose import InvalidJws, decode_unverified

    try:
        issuer = decode_unverified(token).claims.get("iss")
    except InvalidJws:
        return None
    return issuer if isinstance(issuer, str) else None
