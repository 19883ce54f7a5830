"""The limit of a store in memory."""

import pytest

from trunkline.errors import ConfigError, StoreUnavailable
from trunkline.stores.memory import MemoryStore
from trunkline.stores.store import Delete, Lease, Put
from trunkline.testing import ManualClock

ITEM = len("home/1/a") + 100  # bytes


def item(name: str, size: int = 100, expires: float | None = None) -> Put:
    return Put(f"home/1/{name}", bytes(size), expires)


async def opened(items: int) -> tuple[MemoryStore, ManualClock]:
    clock = ManualClock(start=1000.0)
    store = MemoryStore(clock=clock, max_bytes=items * ITEM)
    await store.open()
    return store, clock


async def test_commit_beyond_max_bytes_is_refused_entirely() -> None:
    store, _ = await opened(2)
    await store.commit([item("a")])
    with pytest.raises(StoreUnavailable, match=rf"is full: it holds {ITEM} bytes of at most {2 * ITEM} \(max_bytes\)"):
        await store.commit([item("b"), item("c")])
    assert [found.key for found in await store.scan("")] == ["home/1/a"]
    await store.commit([item("b")])


async def test_full_store_accepts_writes_that_need_no_room() -> None:
    store, _ = await opened(2)
    await store.commit([item("a"), item("b")])
    await store.commit([item("a")])
    await store.commit([Delete("home/1/b"), item("c")])
    await store.commit([item("c", size=10)])
    with pytest.raises(StoreUnavailable):
        await store.commit([item("b")])
    await store.commit([item("d", size=90 - len("home/1/d"))])
    lease = await store.acquire("home/1", "us", 10)
    assert isinstance(lease, Lease)
    assert await store.renew(lease, 10)


async def test_refused_writes_grant_no_lease() -> None:
    store, _ = await opened(1)
    with pytest.raises(StoreUnavailable):
        await store.acquire("home/1", "us", 10, writes=[item("a"), item("b")])
    assert isinstance(await store.acquire("home/1", "them", 10, writes=[item("a")]), Lease)


async def test_expired_items_make_room_at_once() -> None:
    store, clock = await opened(2)
    await store.commit([item("a", expires=clock.now() + 5), item("b", expires=clock.now() + 50)])
    clock.advance(5)
    await store.commit([item("c")])
    with pytest.raises(StoreUnavailable):
        await store.commit([item("d")])
    clock.advance(60)  # the sweep deletes the other one
    await store.commit([item("d")])


def test_max_bytes_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="max_bytes is more than 0, or None, not 0"):
        MemoryStore(max_bytes=0)
