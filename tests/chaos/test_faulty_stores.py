"""Stores that lose writes lose them whichever call makes them."""

from pathlib import Path

import pytest
from tests.chaos import faulty_stores

from trunkline.stores.store import Lease, Put, key_of

KEY = key_of("thing", "1")


@pytest.mark.parametrize("lost", [True, False])
async def test_losing_store_drops_commits_and_lease_writes(
    lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty_stores, "LOSING", 1 if lost else 1 << 30)
    store = faulty_stores.store(str(tmp_path / "store.db"), 1, "losing")
    await store.open()
    try:
        await store.commit([Put(key_of("thing", "1", "committed"), b"x")])
        lease = await store.acquire(KEY, "holder", 60.0, writes=[Put(key_of("thing", "1", "leased"), b"x")])
        assert isinstance(lease, Lease)
        kept = [await store.get(key_of("thing", "1", name)) for name in ("committed", "leased")]
    finally:
        await store.close()
    assert [one is None for one in kept] == [lost, lost]
