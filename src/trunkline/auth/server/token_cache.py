"""Tokens that were verified a short while ago, so that the next request with the same one costs little."""

from collections.abc import Collection
from hashlib import sha256

from msgspec import Struct

from trunkline.auth.server.verifiers import Verified, Verifier

__all__ = ["TokenCache"]


class _CacheEntry(Struct, frozen=True):
    verified: Verified
    verifier: Verifier
    generation: int
    until: float


class TokenCache:
    """What was proved by which token, to whom. The oldest is forgotten when there are too many."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self._max_entries = max_entries
        self._entries: dict[tuple[bytes, Collection[str]], _CacheEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, token: str, audiences: frozenset[str], now: float) -> Verified | None:
        """What a token has proved, if that still holds."""
        kept = self._entries.get(key := _key(token, audiences))
        if kept is None:
            return None
        if now >= kept.until or kept.generation != kept.verifier.generation:
            del self._entries[key]
            return None
        return kept.verified

    def put(self, token: str, audiences: frozenset[str], verified: Verified, verifier: Verifier, now: float) -> None:
        """Keeps what a token has proved, for as long as its verifier allows and never longer than it holds."""
        until = now + verifier.keep
        if verified.expires is not None:
            until = min(until, verified.expires)
        if until > now:
            while len(self._entries) >= self._max_entries:
                del self._entries[next(iter(self._entries))]
            self._entries[_key(token, audiences)] = _CacheEntry(verified, verifier, verifier.generation, until)


def _key(token: str, audiences: frozenset[str]) -> tuple[bytes, Collection[str]]:
    """A digest, since nobody needs the token itself again."""
    return sha256(token.encode()).digest(), audiences
