"""The stores under contract, and factories for them. A new store is one more line in `STORES`."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from tests.contract.valkey import valkey

from trunkline.facts import Observers
from trunkline.stores.memory import MemoryStore
from trunkline.stores.observed import ObservedStore
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Held, Lease, Store
from trunkline.testing import FaultyStore, ManualClock

Make = Callable[[Path, ManualClock], Store]

STORES: dict[str, Make] = {
    "memory": lambda folder, clock: MemoryStore(clock=clock),
    "faulty": lambda folder, clock: FaultyStore(SqliteStore(folder / "store.db", clock=clock)),
    "observed": lambda folder, clock: ObservedStore(SqliteStore(folder / "store.db", clock=clock), Observers()),
    "sqlite": lambda folder, clock: SqliteStore(folder / "store.db", clock=clock),
    "redis": lambda folder, clock: RedisStore(valkey().url, prefix=f"{quote(str(folder))}:", clock=clock),
}
WITHIN_ONE_PROCESS = {"memory"}


class SharedStore:
    """The location of a store, and all handles that share it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.clock = ManualClock(start=1_000_000.0)
        self._folder = folder
        self._opened: list[Store] = []

    async def enter(self) -> Store:
        """Open another handle; of a store that cannot be shared, return the only one."""
        if self._opened and self.kind in WITHIN_ONE_PROCESS:
            return self._opened[0]
        store = STORES[self.kind](self._folder, self.clock)
        self._opened.append(store)
        await store.open()
        return store

    async def leave(self) -> None:
        """Close all handles."""
        for store in self._opened:
            await store.close()


def lease(given: Lease | Held) -> Lease:
    """Acquire a lease that is free."""
    assert isinstance(given, Lease)
    return given
