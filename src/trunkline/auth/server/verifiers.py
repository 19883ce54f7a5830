"""Token verifier interface, its results and errors, and the choice of verifiers for a token."""

from collections.abc import Awaitable, Collection, Sequence
from typing import Final

from msgspec import Struct

from trunkline.auth.principal import Principal
from trunkline.errors import ConfigError

__all__ = ["BadToken", "IssuerLimits", "Unavailable", "Verified", "Verifier", "select_verifiers"]


class Verified(Struct, frozen=True):
    """Result of a successful verification."""

    principal: Principal
    expires: float | None = None  # seconds since the epoch; None if the token has no expiry
    key: str | None = None  # thumbprint of the key that the token is bound to


class BadToken(Exception):
    """An invalid token. The reason is sent to the caller."""

    def __init__(self, why: str, kind: str = "invalid_token") -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind


class Unavailable(Exception):
    """Tokens cannot be verified at the moment, through no fault of the caller."""


class IssuerLimits(Struct, frozen=True, kw_only=True):
    """Limits of the requests to one issuer about unknown tokens."""

    max_requests: int = 16  # concurrent requests
    max_waiting: int = 256  # queued requests; further callers get status 503
    rejected_ttl: float = 10.0  # seconds for which a rejected token is cached; 0 disables that
    max_rejected: int = 10_000  # cached rejected tokens
    rejected_per_minute: int | None = 60  # per client address, which then gets status 429; None: no limit

    def __post_init__(self) -> None:
        """Validate the limits: each must let some request through. Raises `ConfigError`."""
        for name in ("max_requests", "max_rejected", "rejected_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"IssuerLimits: {name} must be at least 1, not {value!r}")
        for name in ("max_waiting", "rejected_ttl"):
            if getattr(self, name) < 0:
                raise ConfigError(f"IssuerLimits: {name} must not be below 0, not {getattr(self, name)!r}")


class Verifier:
    """Verifies tokens of one issuer, or of one format. Subclass it for token types that this package does not
    support."""

    issuer: str | None = None  # None if tokens do not name their issuer
    keep: float = 0.0  # seconds for which a result may be cached
    generation: int = 0  # increment it to invalidate cached results
    limits: IssuerLimits | None = None  # of requests to the issuer, if it must judge each unknown token

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified | Awaitable[Verified]:
        """Verify a token for a resource that has these audiences. Return the result directly if no I/O is needed.

        Raises `BadToken` or `Unavailable`. `now` is in seconds since the epoch.
        """
        raise NotImplementedError


_JWS_PARTS: Final = 3  # of a compact JWS


def select_verifiers(verifiers: Sequence[Verifier], token: str) -> Sequence[Verifier]:
    """Return the verifiers for the token's issuer, or else those without an issuer. If the token names no issuer,
    return all in their order."""
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
