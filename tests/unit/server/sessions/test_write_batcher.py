"""Batched writes: their fate when the server stops while its store is unavailable, or is back."""

import asyncio

from tests.contract.connections import turns
from tests.limits import PATIENCE

from trunkline.errors import NotExecuted
from trunkline.server.sessions.lease import SessionLease
from trunkline.server.sessions.write_batcher import WriteBatcher
from trunkline.stores.memory import MemoryStore
from trunkline.testing import FaultyStore

SESSIONS = [f"session/{number}" for number in range(20)]


def put_one_of_each(gathering: WriteBatcher, store: FaultyStore) -> list[SessionLease]:
    """Request a write in each session, in one batch."""
    holdings = [SessionLease(at, store, None, 60.0) for at in SESSIONS]
    for at in holdings:
        gathering.put(at, f"{at.key}/record", b"x", None)
    return holdings


async def test_failed_writes_of_all_sessions_are_retried_together() -> None:
    """Otherwise the last of many sessions waits for one retry delay per session after the store is back."""
    store, failures = FaultyStore(MemoryStore()), list[BaseException]()
    await store.open()
    gathering = WriteBatcher(failures.append)
    store.fail("commit", times=len(SESSIONS))
    retries = store.hold("commit")
    put_one_of_each(gathering, store)
    await asyncio.wait_for(retries.reached.wait(), PATIENCE)
    assert retries.calls == len(SESSIONS)
    retries.lift()
    await asyncio.wait_for(gathering.close(), PATIENCE)
    assert failures == []
    assert [await store.get(f"{at}/record") is not None for at in SESSIONS] == [True] * len(SESSIONS)


async def test_failed_writes_are_retried_on_close() -> None:
    store, failures = FaultyStore(MemoryStore()), list[BaseException]()
    await store.open()
    gathering = WriteBatcher(failures.append)
    fault = store.fail("commit", times=len(SESSIONS))
    holdings = put_one_of_each(gathering, store)
    await fault.reached.wait()
    await turns()
    await asyncio.wait_for(gathering.close(), PATIENCE)
    assert fault.calls == len(holdings)
    assert failures == []
    assert [await store.get(f"{at}/record") is not None for at in SESSIONS] == [True] * len(SESSIONS)


async def test_close_retries_each_failed_commit_only_once() -> None:
    store, failures = FaultyStore(MemoryStore()), list[BaseException]()
    await store.open()
    gathering = WriteBatcher(failures.append)
    fault = store.fail("commit")
    holdings = put_one_of_each(gathering, store)
    await fault.reached.wait()
    await turns()
    before = fault.calls
    await asyncio.wait_for(gathering.close(), PATIENCE)
    assert len(failures) == len(holdings)
    assert {type(error) for error in failures} == {NotExecuted}
    assert fault.calls == before + len(holdings)
