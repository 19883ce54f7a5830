"""DPoP proofs (RFC 9449), server side: verify that the sender of a token holds the key that the token is bound to."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from trunkline.auth.jose import ALGORITHMS, InvalidJws, decode_unverified, thumbprint, verify_with_key
from trunkline.auth.server.dpop_replay import Replayed, ReplayMemory
from trunkline.auth.urls import origin_of

__all__ = ["BadProof", "NonceRequired", "ProofReplayed", "ProofVerifier", "SharedProofStore", "UsedProof"]

_MAX_AGE: Final = 300  # seconds since `iat`
_MAX_CLOCK_SKEW: Final = 30.0  # seconds that the client's clock may be ahead
_MAX_JTI_CHARS: Final = 512
_NONCE_LIFE: Final = 300.0  # seconds between nonces; the previous one stays valid for one more period
_NONCE_BYTES: Final = 18


class BadProof(Exception):
    """An invalid proof, and the reason."""


class ProofReplayed(BadProof):
    """A proof that was used before."""

    def __init__(self) -> None:
        super().__init__("it was used before")


class NonceRequired(BadProof):
    """A proof without the server's current nonce."""


class UsedProof(NamedTuple):
    """An accepted proof: its id, and the time until which it must not be accepted again."""

    id: str
    expires: float


class SharedProofStore(Protocol):
    """Replay protection that several processes share, since a client may connect to any of them."""

    async def secret(self) -> bytes:
        """Return the secret that all processes share. Raises `StoreError`."""
        ...

    async def record_first_use(self, proof: str, expires: float) -> bool:
        """Record a proof until `expires`; return False if any process has recorded it before. Raises `StoreError`."""
        ...


class ProofVerifier:
    """Verifies proofs and accepts each one once."""

    def __init__(self, *, nonces: bool = False, secret: bytes | None = None) -> None:
        """With `nonces` a proof must contain a nonce of the server, so that it cannot be prepared in advance. The
        nonce is derived from the time and `secret`, so all processes with that secret agree on it."""
        self._replay_memory = ReplayMemory(_MAX_AGE)
        self._require_nonce = nonces
        self._secret = secret or secrets.token_bytes()

    def nonce(self, now: float) -> str | None:
        """Return the current nonce, or None if nonces are off."""
        return self._derive_nonce(int(now // _NONCE_LIFE)) if self._require_nonce else None

    def _derive_nonce(self, number: int) -> str:
        return urlsafe_b64encode(digest(self._secret, b"nonce %d" % number, "sha256")[:_NONCE_BYTES]).decode()

    def _accepted_nonces(self, now: float) -> list[str]:
        """Return the previous nonce, the current one, and the next one, which a process with a faster clock may have
        issued."""
        number = int(now // _NONCE_LIFE)
        return [self._derive_nonce(each) for each in (number - 1, number, number + 1)]

    def check(self, proof: str, *, key: str, method: str, url: str, token: str, now: float) -> UsedProof:
        """Verify a proof for this request, token and key thumbprint, and record it. Raises `BadProof`, or
        `TooManyProofs` if the key has used too many."""
        claims = _verify_signature(proof, key)
        if claims.get("htm") != method:
            raise BadProof("it was made for another method")
        if not _is_same_url(claims.get("htu"), url):
            raise BadProof("it was made for another address")
        if not _equals(claims.get("ath"), urlsafe_b64encode(sha256(token.encode()).digest()).rstrip(b"=").decode()):
            raise BadProof("it was made for another token")
        issued_at = claims.get("iat")
        if (
            isinstance(issued_at, bool)
            or not isinstance(issued_at, int | float)
            or not now - _MAX_AGE < issued_at < now + _MAX_CLOCK_SKEW
        ):
            raise BadProof("it was made too long ago, or is from the future")
        if self._require_nonce and not any(_equals(claims.get("nonce"), one) for one in self._accepted_nonces(now)):
            raise NonceRequired("it lacks the required nonce")
        return self._record(key, claims.get("jti"), issued_at, now)

    def _record(self, key: str, ident: Any, issued_at: float, now: float) -> UsedProof:
        """Record a proof so that it cannot be used again."""
        if not isinstance(ident, str) or not 0 < len(ident) <= _MAX_JTI_CHARS:
            raise BadProof("it has no jti")
        try:
            self._replay_memory.use(key, ident, issued_at, now)
        except Replayed as error:
            raise BadProof(str(error)) from None
        return UsedProof(f"{key} {ident}", issued_at + _MAX_AGE)


def _verify_signature(proof: str, key: str) -> Mapping[str, Any]:
    try:
        header = decode_unverified(proof).header
        jwk = header.get("jwk")
        if header.get("typ") != "dpop+jwt" or not isinstance(jwk, dict):
            raise BadProof("it is no DPoP proof")
        public = cast("dict[str, Any]", jwk)
        if not _equals(thumbprint(public), key):
            raise BadProof("it was made with another key than the token is bound to")
        return verify_with_key(public, proof, ALGORITHMS).claims
    except InvalidJws as error:
        raise BadProof(f"it cannot be verified: {error}") from None


def _equals(actual: object, expected: str) -> bool:
    return isinstance(actual, str) and compare_digest(actual.encode(), expected.encode())


def _is_same_url(claimed: object, url: str) -> bool:
    """Return whether two URLs are equal after normalisation, without their queries."""
    return (
        isinstance(claimed, str)
        and (origin := origin_of(claimed)) is not None
        and ((origin, _path(claimed)) == (origin_of(url), _path(url)))
    )


def _path(url: str) -> str:
    return urlsplit(url).path.rstrip("/")
