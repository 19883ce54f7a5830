"""The store of a server: opened before it serves, closed when it has ended."""

import asyncio

import pytest

from trunkline import Server
from trunkline.errors import MisuseError, StoreUnavailable, StoreUnusable
from trunkline.stores.memory import MemoryStore
from trunkline.testing import RawPeer


class Slow(MemoryStore):
    """Takes its time to open, and may fail."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.failure = failure
        self.opened = 0
        self.go = asyncio.Event()

    async def open(self) -> None:
        self.opened += 1
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        await super().open()


async def test_a_store_is_opened_once_and_closed_at_the_end() -> None:
    store = Slow()
    server = Server("t", store=store, observers=[])
    starts = [asyncio.create_task(server.start()) for _ in range(2)]
    await asyncio.sleep(0)
    starts[0].cancel()  # who stops waiting does not stop it for the other
    store.go.set()
    await starts[1]
    assert store.opened == 1
    async with RawPeer(server) as peer:
        assert peer.connection.shared.store is store
    await server.aclose()
    with pytest.raises(StoreUnavailable):
        await store.get("a/b")


async def test_a_server_with_a_store_is_started_first() -> None:
    server = Server("t", store=MemoryStore(), observers=[])
    with pytest.raises(MisuseError, match=r"await server\.start"):
        RawPeer(server).open()
    await server.aclose()


async def test_a_store_that_cannot_be_opened_keeps_the_server_from_starting_and_may_be_tried_again() -> None:
    store = Slow(StoreUnusable("broken"))
    store.go.set()
    server = Server("t", store=store, observers=[])
    with pytest.raises(StoreUnusable):
        await server.start()
    store.failure = None
    await server.start()
    assert store.opened == 2
    await server.aclose()


async def test_without_a_store_there_is_one_in_memory_for_each_time_that_a_server_serves() -> None:
    server = Server("t", observers=[])
    stores = []
    for _ in range(2):
        async with RawPeer(server) as peer:
            stores.append(peer.connection.shared.store)
            assert await stores[-1].get("a/b") is None
        await server.aclose()
    assert stores[0] is not stores[1]
