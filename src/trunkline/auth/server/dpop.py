"""Proofs that whoever sends a token has the key that it is bound to (RFC 9449, DPoP), as a server looks at them."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from trunkline.auth.jose import ALGORITHMS, Jose, thumbprint, unverified, verify_with
from trunkline.auth.server.dpop_replay import Replayed, ReplayMemory
from trunkline.auth.urls import origin_of

__all__ = ["BadProof", "Memory", "NonceWanted", "Proofs", "Used", "UsedBefore"]

_WINDOW: Final = 300  # seconds that a proof may be old
_AHEAD: Final = 30.0  # seconds that the clock of whoever made it may be ahead of ours
_LONGEST_ID: Final = 512
_NONCE_LIFE: Final = 300.0  # seconds after which another nonce is wanted; the one before is good for as long again
_NONCE_BYTES: Final = 18


class BadProof(Exception):
    """A proof that proves nothing, and why."""


class UsedBefore(BadProof):
    """A proof that somebody has shown already."""

    def __init__(self) -> None:
        super().__init__("it was used before")


class NonceWanted(BadProof):
    """A proof without the number that we want in it."""


class Used(NamedTuple):
    """A proof that was used: what it is known by, and until when it must not be used again."""

    what: str
    until: float


class Memory(Protocol):
    """What several processes remember together, where one client may come to any of them."""

    async def secret(self) -> bytes:
        """Bytes that all of them know, and nobody else. Raises `StoreError`."""
        ...

    async def first(self, what: str, until: float) -> bool:
        """Whether nobody has shown this before, to any of them; from now on, until that time, somebody has. Raises
        `StoreError`."""
        ...


class Proofs:
    """Looks at proofs, each of which is good once."""

    def __init__(self, *, nonces: bool = False, secret: bytes | None = None) -> None:
        """With `nonces` a proof has to hold a text of ours, so that none can be made in advance: one that follows from
        the time and a secret, so that all who know that want the same."""
        self._used = ReplayMemory(_WINDOW)
        self._nonces = nonces
        self._secret = secret or secrets.token_bytes()

    def nonce(self, now: float) -> str | None:
        """The text that has to be in proofs now; None if there is none."""
        return self._nonce(int(now // _NONCE_LIFE)) if self._nonces else None

    def _nonce(self, number: int) -> str:
        return urlsafe_b64encode(digest(self._secret, b"nonce %d" % number, "sha256")[:_NONCE_BYTES]).decode()

    def _good_nonces(self, now: float) -> list[str]:
        """The one before, that of now, and that of another process whose clock is ahead."""
        number = int(now // _NONCE_LIFE)
        return [self._nonce(each) for each in (number - 1, number, number + 1)]

    def check(self, proof: str, *, key: str, method: str, url: str, token: str, now: float) -> Used:
        """Raises `BadProof` unless a proof was made with a key, by its thumbprint, for this very request and token, and
        was not used here before, and `TooManyProofs` if the key has used too many."""
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
        if self._nonces and not any(_same(claims.get("nonce"), one) for one in self._good_nonces(now)):
            raise NonceWanted("it lacks the nonce that is wanted here")
        return self._use(key, claims.get("jti"), made, now)

    def _use(self, key: str, ident: Any, made: float, now: float) -> Used:
        """Remember a proof, so that it cannot be used again."""
        if not isinstance(ident, str) or not 0 < len(ident) <= _LONGEST_ID:
            raise BadProof("it has no jti")
        try:
            self._used.use(key, ident, made, now)
        except Replayed as error:
            raise BadProof(str(error)) from None
        return Used(f"{key} {ident}", made + _WINDOW)


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
