"""Replay protection for DPoP proofs, shared by all processes on one store."""

import hashlib
from typing import Final

from trunkline.errors import Conflict
from trunkline.server.shared_secret import get_shared_secret
from trunkline.stores.store import ABSENT, Put, Store, key_of

__all__ = ["DpopReplayStore"]

_SHARD_PREFIX_LENGTH: Final = 2  # hex digits: spreads the proofs over 256 key prefixes


class DpopReplayStore:
    """Used DPoP proofs of all processes that share a store."""

    def __init__(self, store: Store, server: str) -> None:
        self._store = store
        self._server = server

    async def secret(self) -> bytes:
        """Return the secret that all processes on the store share. Raises `StoreError`."""
        return await get_shared_secret(self._store, self._server, "proof")

    async def record_first_use(self, proof: str, expires: float) -> bool:
        """Record a proof until it expires; return False if any process has recorded it before. Raises `StoreError`."""
        digest = hashlib.sha256(f"{self._server}\n{proof}".encode()).hexdigest()
        try:
            await self._store.commit(
                [Put(key_of("proofs", digest[:_SHARD_PREFIX_LENGTH], digest), b"", expires, ABSENT)]
            )
        except Conflict:
            return False
        return True
