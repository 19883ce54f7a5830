"""Writes that are gathered in rounds: what becomes of them when the server stops while its store is away, or is back."""

import asyncio

from tests.contract.lines import turns
from tests.limits import PATIENCE

from trunkline.errors import StoreUnavailable
from trunkline.server.sessions.lease import SessionLease
from trunkline.server.sessions.write_batcher import WriteBatcher
from trunkline.stores.memory import MemoryStore
from trunkline.testing import FaultyStore

SESSIONS = [f"session/{number}" for number in range(20)]


def put_one_of_each(gathering: WriteBatcher, store: FaultyStore) -> list[SessionLease]:
    """Have something written in each session, in one round."""
    holdings = [SessionLease(at, store, None, 60.0) for at in SESSIONS]
    for at in holdings:
        gathering.put(at, f"{at.key}/record", b"x", None)
    return holdings


async def test_writes_that_failed_before_the_server_stops_are_made_again_when_it_does() -> None:
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


async def test_a_server_that_stops_asks_a_store_that_is_away_once_more_and_not_for_every_session() -> None:
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
    assert {type(error) for error in failures} == {StoreUnavailable}
    assert fault.calls == before + 1
