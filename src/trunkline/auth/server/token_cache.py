"""Cache of recently verified tokens, so that repeated requests with one token cost little."""

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
    """Verification results by token and audiences. The oldest entry is dropped when the cache is full."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self._max_entries = max_entries
        self._entries: dict[tuple[bytes, Collection[str]], _CacheEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, token: str, audiences: frozenset[str], now: float) -> Verified | None:
        """Return the cached result, or None if there is none or it has expired."""
        entry = self._entries.get(key := _key(token, audiences))
        if entry is None:
            return None
        if now >= entry.until or entry.generation != entry.verifier.generation:
            del self._entries[key]
            return None
        return entry.verified

    def put(self, token: str, audiences: frozenset[str], verified: Verified, verifier: Verifier, now: float) -> None:
        """Cache a result for as long as its verifier allows, at most until the token expires."""
        until = now + verifier.keep
        if verified.expires is not None:
            until = min(until, verified.expires)
        if until > now:
            while len(self._entries) >= self._max_entries:
                del self._entries[next(iter(self._entries))]
            self._entries[_key(token, audiences)] = _CacheEntry(verified, verifier, verifier.generation, until)


def _key(token: str, audiences: frozenset[str]) -> tuple[bytes, Collection[str]]:
    """Return a cache key with a digest of the token, so that tokens do not stay in memory."""
    return sha256(token.encode()).digest(), audiences
