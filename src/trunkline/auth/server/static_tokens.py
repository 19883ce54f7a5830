"""Tokens that are simply known: for development, and for machines that have no better."""

from collections.abc import Collection, Mapping
from hashlib import sha256

from trunkline.auth.principal import Principal
from trunkline.auth.server.verifiers import BadToken, Verified, Verifier
from trunkline.errors import ConfigError

__all__ = ["StaticTokens"]


class StaticTokens(Verifier):
    """Tokens and whom each stands for. They never expire and are for no audience: keep them for development."""

    def __init__(self, tokens: Mapping[str, Principal]) -> None:
        """`StaticTokens({"a-long-random-text": Principal("ada", scopes=("notes",))})`."""
        if "" in tokens:
            raise ConfigError("a token cannot be empty")
        # They are found by a digest: how long that takes says nothing about the token that it was made of.
        self._known = {_digest(token): Verified(principal) for token, principal in tokens.items()}

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified:  # noqa: ARG002 - the seam's
        """Whom a token stands for."""
        known = self._known.get(_digest(token))
        if known is None:
            raise BadToken("the token is not known", "invalid_credentials")
        return known

    def __repr__(self) -> str:
        return f"StaticTokens({len(self._known)} tokens)"


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
