"""A SQLite store on a disk of its own, a small one: `python -m tests.contract.small_disk FOLDER`.

Runs in a mount namespace of its own, where an unprivileged user may mount. Prints what it finds.
"""

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from trunkline.errors import StoreError, StoreUnavailable
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Put


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


async def fill_and_free(folder: Path) -> None:
    """Fill the disk by another file, then make room again."""
    store = SqliteStore(folder / "store.db")
    await store.open()
    await store.commit([Put("session/1/state", b"kept")])
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    for number in range(2000):
        try:
            await store.commit([Put(f"session/{number}/more", bytes(4000))])
        except StoreUnavailable as error:
            print("full:", error)
            break
    found = await store.get("session/1/state")
    print("read:", found and found.value.decode())
    ballast.unlink()
    print("healed:", await store.commit([Put("session/1/state", b"again")]) > 0)
    await store.close()


async def open_it(path: Path, what: str) -> None:
    store = SqliteStore(path)
    try:
        await store.open()
    except StoreError as error:
        print(f"{what}: {type(error).__name__} {error}")
    await store.close()


async def main(folder: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    await fill_and_free(folder)
    mount("-o", "remount,ro", str(folder))
    await open_it(folder / "store.db", "read-only")
    await open_it(folder / "new.db", "read-only new")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
