"""Proofs that whoever sends a token has the key that it is bound to (RFC 9449, DPoP), as a server looks at them."""

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

_MAX_AGE: Final = 300  # seconds that a proof may be old
_MAX_CLOCK_SKEW: Final = 30.0  # seconds that the clock of whoever made it may be ahead of ours
_MAX_JTI_CHARS: Final = 512
_NONCE_LIFE: Final = 300.0  # seconds after which another nonce is wanted; the one before is good for as long again
_NONCE_BYTES: Final = 18


class BadProof(Exception):
    """A proof that proves nothing, and why."""


class ProofReplayed(BadProof):
    """A proof that somebody has shown already."""

    def __init__(self) -> None:
        super().__init__("it was used before")


class NonceRequired(BadProof):
    """A proof without the number that we want in it."""


class UsedProof(NamedTuple):
    """A proof that was used: what it is known by, and until when it must not be used again."""

    id: str
    expires: float


class SharedProofStore(Protocol):
    """What several processes remember together, where one client may come to any of them."""

    async def secret(self) -> bytes:
        """Bytes that all of them know, and nobody else. Raises `StoreError`."""
        ...

    async def record_first_use(self, proof: str, expires: float) -> bool:
        """Whether nobody has shown this before, to any of them; from now on, until that time, somebody has. Raises
        `StoreError`."""
        ...


class ProofVerifier:
    """Looks at proofs, each of which is good once."""

    def __init__(self, *, nonces: bool = False, secret: bytes | None = None) -> None:
        """With `nonces` a proof has to hold a text of ours, so that none can be made in advance: one that follows from
        the time and a secret, so that all who know that want the same."""
        self._replay_memory = ReplayMemory(_MAX_AGE)
        self._require_nonce = nonces
        self._secret = secret or secrets.token_bytes()

    def nonce(self, now: float) -> str | None:
        """The text that has to be in proofs now; None if there is none."""
        return self._derive_nonce(int(now // _NONCE_LIFE)) if self._require_nonce else None

    def _derive_nonce(self, number: int) -> str:
        return urlsafe_b64encode(digest(self._secret, b"nonce %d" % number, "sha256")[:_NONCE_BYTES]).decode()

    def _accepted_nonces(self, now: float) -> list[str]:
        """The one before, that of now, and that of another process whose clock is ahead."""
        number = int(now // _NONCE_LIFE)
        return [self._derive_nonce(each) for each in (number - 1, number, number + 1)]

    def check(self, proof: str, *, key: str, method: str, url: str, token: str, now: float) -> UsedProof:
        """Raises `BadProof` unless a proof was made with a key, by its thumbprint, for this very request and token, and
        was not used here before, and `TooManyProofs` if the key has used too many."""
        claims = _verify_signature(proof, key)
        if claims.get("htm") != method:
            raise BadProof("it was made for another method")
        if not _is_same_url(claims.get("htu"), url):
            raise BadProof("it was made for another address")
        if not _equals(claims.get("ath"), urlsafe_b64encode(sha256(token.encode()).digest()).rstrip(b"=").decode()):
            raise BadProof("it was made for another token")
        made = claims.get("iat")
        if (
            isinstance(made, bool)
            or not isinstance(made, int | float)
            or not now - _MAX_AGE < made < now + _MAX_CLOCK_SKEW
        ):
            raise BadProof("it was made too long ago, or is from the future")
        if self._require_nonce and not any(_equals(claims.get("nonce"), one) for one in self._accepted_nonces(now)):
            raise NonceRequired("it lacks the nonce that is wanted here")
        return self._record(key, claims.get("jti"), made, now)

    def _record(self, key: str, ident: Any, made: float, now: float) -> UsedProof:
        """Remember a proof, so that it cannot be used again."""
        if not isinstance(ident, str) or not 0 < len(ident) <= _MAX_JTI_CHARS:
            raise BadProof("it has no jti")
        try:
            self._replay_memory.use(key, ident, made, now)
        except Replayed as error:
            raise BadProof(str(error)) from None
        return UsedProof(f"{key} {ident}", made + _MAX_AGE)


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


def _equals(given: object, wanted: str) -> bool:
    return isinstance(given, str) and compare_digest(given.encode(), wanted.encode())


def _is_same_url(given: object, url: str) -> bool:
    """Whether two addresses are the same without their queries, however they are spelt."""
    return (
        isinstance(given, str)
        and (origin := origin_of(given)) is not None
        and ((origin, _path(given)) == (origin_of(url), _path(url)))
    )


def _path(url: str) -> str:
    return urlsplit(url).path.rstrip("/")
