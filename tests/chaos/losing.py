"""A store that forgets: one write in so many is reported as kept, and is not. A campaign on it has to fail."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from trunkline.stores.sqlite import SqliteStore
from trunkline.stores.store import Lease, Write

__all__ = ["LosingStore"]


class LosingStore(SqliteStore):
    """Drops some writes."""

    def __init__(self, path: Path, one_in: int, seed: int) -> None:
        super().__init__(path)
        self._one_in = one_in
        self._chance = Random(seed)
        self._version = 0

    async def commit(self, writes: Sequence[Write], *, fence: Lease | None = None) -> int:
        """Keeps most of it."""
        left = [write for write in writes if self._chance.randrange(self._one_in)]
        if left:
            self._version = await super().commit(left, fence=fence)
        return self._version
