"""DPoP (RFC 9449), client side: tokens that are useless without their key.

Every request carries a proof of its own, signed with the key that the token is bound to. A server may require its nonce
in the proof, and may change the nonce at any time.
"""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from trunkline.auth.jose import SigningKey, decode_unverified
from trunkline.auth.urls import Origin, origin_of
from trunkline.errors import AuthorizationFailed

__all__ = ["Prover", "generate_key"]

_NONCE: Final = "DPoP-Nonce"
_PREFERRED: Final = ("ES256", "EdDSA", "ES384", "ES512", "PS256", "RS256")
_MAX_NONCE_CHARS: Final = 1024


def generate_key(algorithms: Sequence[str] | None) -> SigningKey:
    """Generate a key for one of these algorithms; None means that the server does not list any. Raises
    `AuthorizationFailed`."""
    for algorithm in _PREFERRED:
        if algorithms is None or algorithm in algorithms:
            return SigningKey.generate(algorithm)
    raise AuthorizationFailed(
        "the authorization server supports no DPoP algorithm that this client supports",
        hop="authorization-server-metadata",
        clause="RFC 9449, section 5.1",
    )


class Prover:
    """Creates proofs with one key, and stores the nonces of servers."""

    def __init__(self, key: SigningKey, now: Callable[[], float]) -> None:
        self.key = key
        self._now = now
        self._nonces: dict[Origin, str] = {}

    def create_proof(self, method: str, url: str, token: str | None = None) -> str:
        """Create the proof for one request, bound to its token if there is one."""
        parts = urlsplit(url)
        claims: dict[str, object] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": f"{parts.scheme}://{parts.netloc}{parts.path}",
            "iat": int(self._now()),
        }
        if token is not None:
            claims["ath"] = urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
        origin = origin_of(url)
        if origin is not None and (nonce := self._nonces.get(origin)) is not None:
            claims["nonce"] = nonce
        jwk = {name: value for name, value in self.key.public.items() if name != "kid"}
        return self.key.sign(claims, {"typ": "dpop+jwt", "jwk": jwk})

    def record_nonce(self, url: str, headers: Mapping[str, str]) -> None:
        """Store the nonce of a response."""
        nonce, origin = headers.get(_NONCE), origin_of(url)
        if nonce and origin is not None and len(nonce) <= _MAX_NONCE_CHARS:
            self._nonces[origin] = nonce

    def has_newer_nonce(self, proof: str | None, url: str) -> bool:
        """Return whether a new proof would have another nonce than one that was sent."""
        origin = origin_of(url)
        if proof is None or origin is None or origin not in self._nonces:
            return False
        return decode_unverified(proof).claims.get("nonce") != self._nonces[origin]
