"""Verifier of fixed tokens, for development and for machines without an issuer."""

from collections.abc import Collection, Mapping
from hashlib import sha256

from trunkline.auth.principal import Principal
from trunkline.auth.server.verifiers import BadToken, Verified, Verifier
from trunkline.errors import ConfigError

__all__ = ["StaticTokens"]


class StaticTokens(Verifier):
    """Maps fixed tokens to principals. They never expire and have no audience: use them for development."""

    def __init__(self, tokens: Mapping[str, Principal]) -> None:
        """`StaticTokens({"a-long-random-text": Principal("ada", scopes=("notes",))})`."""
        if "" in tokens:
            raise ConfigError("a token cannot be empty")
        # Looked up by digest, so that timing reveals nothing about the token.
        self._known = {_digest(token): Verified(principal) for token, principal in tokens.items()}

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified:  # noqa: ARG002 - the seam's
        """Return the principal of a token."""
        verified = self._known.get(_digest(token))
        if verified is None:
            raise BadToken("unknown token", "invalid_credentials")
        return verified

    def __repr__(self) -> str:
        return f"StaticTokens({len(self._known)} tokens)"


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
