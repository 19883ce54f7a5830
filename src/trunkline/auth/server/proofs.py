"""Proofs that whoever sends a token has the key that it is bound to (RFC 9449, DPoP), as a server looks at them."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, cast
from urllib.parse import urlsplit

from trunkline.auth.jose import ALGORITHMS, Jose, thumbprint, unverified, verify_with
from trunkline.auth.urls import origin_of

__all__ = ["BadProof", "NonceWanted", "Proofs"]

_WINDOW: Final = 300.0  # seconds that a proof may be old
_AHEAD: Final = 30.0  # seconds that the clock of whoever made it may be ahead of ours
_MOST_PROOFS: Final = 100_000  # that are remembered, each until it is too old anyway
_LONGEST_ID: Final = 512
_NONCE_LIFE: Final = 300.0  # seconds after which another nonce is wanted; the one before is good for as long again


class BadProof(Exception):
    """A proof that proves nothing, and why."""


class NonceWanted(BadProof):
    """A proof without the number that we want in it."""


class Proofs:
    """Looks at proofs, each of which is good once."""

    def __init__(self, *, nonces: bool = False) -> None:
        """With `nonces` a proof has to hold a text of ours, so that none can be made in advance."""
        self._seen: dict[tuple[str, str], float] = {}  # key and id: until when it is remembered
        self._nonces = ("", "")
        self._nonces_since = -_NONCE_LIFE if nonces else None

    def nonce(self, now: float) -> str | None:
        """The text that has to be in proofs now; None if there is none."""
        if self._nonces_since is None:
            return None
        if not 0 <= now - self._nonces_since < _NONCE_LIFE:
            self._nonces = (secrets.token_urlsafe(16), self._nonces[0])
            self._nonces_since = now
        return self._nonces[0]

    def check(self, proof: str, *, key: str, method: str, url: str, token: str, now: float) -> None:
        """Raises `BadProof` unless a proof was made with a key, by its thumbprint, for this very request and token."""
        claims = _signed(proof, key)
        if claims.get("htm") != method:
            raise BadProof("it was made for another method")
        if not _same_place(claims.get("htu"), url):
            raise BadProof("it was made for another address")
        if not _same(claims.get("ath"), urlsafe_b64encode(sha256(token.encode()).digest()).rstrip(b"=").decode()):
            raise BadProof("it was made for another token")
        made = claims.get("iat")
        if isinstance(made, bool) or not isinstance(made, int | float) or not now - _WINDOW < made < now + _AHEAD:
            raise BadProof("it was made too long ago, or is from the future")
        if self.nonce(now) is not None and not any(_same(claims.get("nonce"), one) for one in self._nonces if one):
            raise NonceWanted("it lacks the nonce that is wanted here")
        self._use(key, claims.get("jti"), made + _WINDOW, now)

    def _use(self, key: str, ident: Any, until: float, now: float) -> None:
        """Takes note of a proof, which cannot be used again."""
        if not isinstance(ident, str) or not 0 < len(ident) <= _LONGEST_ID:
            raise BadProof("it has no jti")
        if self._seen.get((key, ident), now) > now:
            raise BadProof("it was used before")
        if len(self._seen) >= _MOST_PROOFS:
            self._forget(now)
        self._seen[key, ident] = until

    def _forget(self, now: float) -> None:
        """Forgets what is too old; where that is nothing, nobody can be told from those who were here before."""
        self._seen = {proof: until for proof, until in self._seen.items() if until > now}
        if len(self._seen) >= _MOST_PROOFS:
            raise BadProof("too many were used in a short time; try again later")


def _signed(proof: str, key: str) -> Mapping[str, Any]:
    try:
        header = unverified(proof).header
        jwk = header.get("jwk")
        if header.get("typ") != "dpop+jwt" or not isinstance(jwk, dict):
            raise BadProof("it is no DPoP proof")
        public = cast("dict[str, Any]", jwk)
        if not _same(thumbprint(public), key):
            raise BadProof("it was made with another key than the token is bound to")
        return verify_with(public, proof, ALGORITHMS).claims
    except Jose as error:
        raise BadProof(f"it cannot be verified: {error}") from None


def _same(given: object, wanted: str) -> bool:
    return isinstance(given, str) and compare_digest(given.encode(), wanted.encode())


def _same_place(given: object, url: str) -> bool:
    """Whether two addresses are the same without their queries, however they are spelt."""
    return (
        isinstance(given, str)
        and (origin := origin_of(given)) is not None
        and ((origin, _path(given)) == (origin_of(url), _path(url)))
    )


def _path(url: str) -> str:
    return urlsplit(url).path.rstrip("/")
