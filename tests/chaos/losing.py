"""A store that forgets: one write in so many is reported as kept, and is not. A campaign on it has to fail."""

import asyncio
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

    def commit(self, writes: Sequence[Write], *, fence: Lease | None = None) -> "asyncio.Future[int]":
        """Keeps most of it."""
        left = [write for write in writes if self._chance.randrange(self._one_in)]
        if left:
            kept = super().commit(left, fence=fence)
            kept.add_done_callback(self._note)
            return kept
        lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        lost.set_result(self._version)
        return lost

    def _note(self, kept: "asyncio.Future[int]") -> None:
        """Remembers a version, to say of what is lost."""
        if not kept.cancelled() and kept.exception() is None:
            self._version = kept.result()
