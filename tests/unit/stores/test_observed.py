"""Stores that report the duration of their calls. `tests/contract/test_stores.py` checks that they are stores."""

import asyncio
from pathlib import Path

import pytest

from trunkline import MemoryStore, SqliteStore
from trunkline.errors import Conflict, Fenced, NotExecuted
from trunkline.facts import CallEnded, Observers, StoreCallEnded
from trunkline.stores.observed import ObservedStore
from trunkline.stores.store import ABSENT, Lease, Put, Store
from trunkline.testing import FaultyStore, RecordingObserver


class StoreCalls(RecordingObserver):
    wants = (StoreCallEnded,)

    def outcomes(self) -> list[tuple[str, str]]:
        return [(fact.operation, fact.outcome) for fact in self.of(StoreCallEnded)]


@pytest.fixture(params=["memory", "sqlite"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.db")


async def test_each_call_is_reported_with_its_outcome(inner: Store) -> None:
    calls = StoreCalls()
    store = ObservedStore(inner, Observers([calls]))
    await store.open()
    await store.commit([Put("a/b", b"1", version=ABSENT)])
    await store.get("a/b")
    await store.scan("a/")
    with pytest.raises(Conflict):
        await store.commit([Put("a/b", b"2", version=ABSENT)])
    lease = await store.acquire("a/b", "me", 60.0)
    assert isinstance(lease, Lease)
    lease = await store.renew(lease, 60.0)
    await store.release(lease)
    with pytest.raises(Fenced):
        await store.commit([Put("a/b", b"3")], fence=lease)
    await store.close()
    assert calls.outcomes() == [
        ("commit", "ok"),
        ("get", "ok"),
        ("scan", "ok"),
        ("commit", "conflict"),
        ("acquire", "ok"),
        ("renew", "ok"),
        ("release", "ok"),
        ("commit", "fenced"),
    ]
    assert all(0 <= fact.seconds < 60 for fact in calls.of(StoreCallEnded))


async def test_failed_and_cancelled_calls_are_reported(inner: Store) -> None:
    calls, faulty = StoreCalls(), FaultyStore(inner)
    store = ObservedStore(faulty, Observers([calls]))
    await store.open()
    fault = faulty.fail("commit")
    with pytest.raises(NotExecuted):
        await store.commit([Put("a/b", b"1")])
    fault.lift()
    fault = faulty.hold("get")
    reading = asyncio.ensure_future(store.get("a/b"))
    await fault.reached.wait()
    reading.cancel()
    await asyncio.wait([reading])
    await store.close()
    assert calls.outcomes() == [("commit", "unavailable"), ("get", "cancelled")]


def test_only_observers_that_name_store_calls_receive_them() -> None:
    assert not Observers([RecordingObserver()]).want(StoreCallEnded)
    assert Observers([RecordingObserver()]).want(CallEnded)
    assert Observers([StoreCalls()]).want(StoreCallEnded)
