"""What was shown once and must not be shown again, to any process that shares a store: proofs that go with tokens."""

import hashlib
from typing import Final

from trunkline.errors import Conflict
from trunkline.server.shared_secret import get_shared_secret
from trunkline.stores.store import ABSENT, Put, Store, key_of

__all__ = ["DpopReplayStore"]

_SHARD_PREFIX_LENGTH: Final = 2  # letters of a digest, so many homes: neither one for all, nor one for each


class DpopReplayStore:
    """The memory of all processes that serve as one."""

    def __init__(self, store: Store, server: str) -> None:
        self._store = store
        self._server = server

    async def secret(self) -> bytes:
        """Bytes that all of them know, and nobody else. Raises `StoreError`."""
        return await get_shared_secret(self._store, self._server, "proof")

    async def record_first_use(self, proof: str, expires: float) -> bool:
        """Whether nobody has shown this before, to any of them; from now on, until that time, somebody has. Raises
        `StoreError`."""
        digest = hashlib.sha256(f"{self._server}\n{proof}".encode()).hexdigest()
        try:
            await self._store.commit(
                [Put(key_of("proofs", digest[:_SHARD_PREFIX_LENGTH], digest), b"", expires, ABSENT)]
            )
        except Conflict:
            return False
        return True
