"""The store of a server: opened before serving, closed at its end."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.limits import PATIENCE

from trunkline import Server
from trunkline.errors import MisuseError, StoreUnavailable, StoreUnusable
from trunkline.server.server_store import StoreMonitor
from trunkline.stores.memory import MemoryStore
from trunkline.testing import FaultyStore, RawPeer
from trunkline.testing.faulty_store import StoreFault


class SlowStore(MemoryStore):
    """Opens slowly, and may fail."""

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


async def test_store_is_opened_once_and_closed_at_the_end() -> None:
    store = SlowStore()
    server = Server("t", store=store, observers=[])
    starts = [asyncio.create_task(server.start()) for _ in range(2)]
    await asyncio.sleep(0)
    starts[0].cancel()  # a cancelled waiter does not cancel it for the other
    store.go.set()
    await starts[1]
    assert store.opened == 1
    async with RawPeer(server) as peer:
        assert peer.connection.shared.store is store
    await server.aclose()
    with pytest.raises(StoreUnavailable):
        await store.get("a/b")


async def test_connect_before_the_store_is_open_raises() -> None:
    server = Server("t", store=MemoryStore(), observers=[])
    with pytest.raises(MisuseError, match=r"await server\.start"):
        RawPeer(server).open()
    await server.aclose()


async def test_failed_open_prevents_start_and_can_be_retried() -> None:
    store = SlowStore(StoreUnusable("broken"))
    store.go.set()
    server = Server("t", store=store, observers=[])
    with pytest.raises(StoreUnusable):
        await server.start()
    store.failure = None
    await server.start()
    assert store.opened == 2
    await server.aclose()


async def test_default_store_is_new_for_each_run() -> None:
    server = Server("t", observers=[])
    stores = []
    for _ in range(2):
        async with RawPeer(server) as peer:
            stores.append(peer.connection.shared.store)
            assert await stores[-1].get("a/b") is None
        await server.aclose()
    assert stores[0] is not stores[1]


# --- write check --------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the store" in record.getMessage()]


@pytest.mark.parametrize(
    ("trouble", "why"), [(FaultyStore.hold, "no response for 0.01 s"), (FaultyStore.fail, "because of a fault")]
)
async def test_unavailable_store_is_logged_once_each_way(
    caplog: pytest.LogCaptureFixture, trouble: Callable[[FaultyStore], StoreFault], why: str
) -> None:
    """Also without requests."""
    store = FaultyStore(MemoryStore())
    await store.open()
    monitor = StoreMonitor(store, interval=0.01, log_after=0.01)
    async with asyncio.timeout(PATIENCE):
        for times in (1, 2):
            fault = trouble(store)
            while len(logged(caplog)) < 2 * times - 1:
                await asyncio.sleep(0.01)
            probes = fault.calls
            while fault.calls < probes + 3 and trouble is FaultyStore.fail:
                await asyncio.sleep(0.01)
            fault.lift()
            while len(logged(caplog)) < 2 * times:
                await asyncio.sleep(0.01)
    monitor.close()
    lost, back = logged(caplog)[:2]
    assert lost.startswith("cannot write to the store: ")
    assert why in lost
    assert back.startswith("the store accepts writes again after ")
    levels = {record.levelno for record in caplog.records if "the store" in record.getMessage()}
    assert levels == {logging.ERROR, logging.WARNING}


async def test_store_is_monitored_until_shutdown() -> None:
    store = FaultyStore(MemoryStore())
    server = Server("t", store=store, observers=[])
    await server.start()
    fault = store.hold("commit", key="health/")
    async with asyncio.timeout(PATIENCE):
        await fault.reached.wait()
        await server.aclose()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
