"""Commits as fast as possible to a store in a file or on Redis, and prints each outcome for the check in `commit_load.py`.

    python -m tests.contract.commit_process <path or address> <who> <workers> [<most bytes>]

Each commit writes two items, so that a partial one would show, and increments a counter, under a fence. The process
prints one line, atomically, for each confirmed commit. With a limit on bytes, no file may grow beyond it: a full
disk.
"""

import asyncio
import os
import resource
import sys
from itertools import count

from trunkline.errors import Conflict, StoreUnavailable
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import ABSENT, Lease, Put, Store

COUNTER = "storm/total"


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def one(store: Store, who: str, number: int, fence: Lease) -> None:
    name = f"storm/{who}/{number:06}"
    await store.commit([Put(f"{name}/a", name.encode() * 20), Put(f"{name}/b", b"b")], fence=fence)
    say(name)


async def increment(store: Store, who: str) -> None:
    while True:
        item = await store.get(COUNTER)
        number, version = (int(item.value), item.version) if item else (0, ABSENT)
        try:
            await store.commit([Put(COUNTER, b"%d" % (number + 1), version=version)])
        except Conflict:
            continue
        say(f"+ {who}")


async def main(where: str, who: str, workers: int) -> None:
    store = RedisStore(where) if where.startswith("redis:") else SqliteStore(where, patience=60)
    await store.open()
    fence = await store.acquire(f"storm/{who}/fence", f"{who} {os.getpid()}", 600)
    assert isinstance(fence, Lease)
    numbers = count()

    async def work() -> None:
        while True:
            await one(store, who, next(numbers), fence)

    say("ready")
    try:
        await asyncio.gather(increment(store, who), *(work() for _ in range(workers)))
    except StoreUnavailable as error:
        say(f"! {error}")


if __name__ == "__main__":
    if len(sys.argv) > 4:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
