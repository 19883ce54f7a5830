"""Keys of state tokens, stored in the server's store."""

from pathlib import Path

import pytest

from trunkline.config import Settings
from trunkline.server.input.multi_round import StateSealers
from trunkline.server.input.state_keys import RELOAD_INTERVAL, ROTATION_INTERVAL, StateKeyRing
from trunkline.server.input.state_token import EncryptingSealer, InvalidRequestState
from trunkline.stores.memory import MemoryStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import ManualClock
from trunkline.transports.channel import ChannelInfo

WEB = ChannelInfo("http", stateless=True)
LIFETIME = 600.0


async def keys(store: MemoryStore, clock: ManualClock, name: str = "server") -> StateKeyRing:
    made = StateKeyRing(store, name, LIFETIME, clock)
    await made.load()
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=1_000_000.0)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore.ready(clock)


async def test_next_process_opens_states_of_the_previous_one(tmp_path: Path, clock: ManualClock) -> None:
    sealed = ""
    for turn in range(3):
        store = SqliteStore(tmp_path / "keys.db", clock=clock)
        await store.open()
        seals = StateSealers(Settings(), StateKeyRing(store, "server", LIFETIME, clock))
        await seals.load()
        if turn:
            assert seals.for_channel(WEB).open(sealed, b"bound", clock.now()) == b"state"
        sealed = seals.for_channel(WEB).seal(b"state", b"bound", clock.now() + 1)
        await seals.close()
        await store.close()


async def test_servers_with_different_names_have_different_keys(store: MemoryStore, clock: ManualClock) -> None:
    one, other = await keys(store, clock), await keys(store, clock, "other")
    assert one.secrets() != other.secrets()
    with pytest.raises(InvalidRequestState):
        EncryptingSealer(other.secrets()).open(EncryptingSealer(one.secrets()).seal(b"", b"", 9e9), b"", 0)


async def test_concurrent_first_loads_agree_on_one_key(store: MemoryStore, clock: ManualClock) -> None:
    first, second = StateKeyRing(store, "s", LIFETIME, clock), StateKeyRing(store, "s", LIFETIME, clock)
    read = store.get

    async def overtaken(key: str) -> object:
        found = await read(key)
        store.get = read  # type: ignore[method-assign]
        await second.load()
        return found

    store.get = overtaken  # type: ignore[assignment, method-assign]
    await first.load()
    assert first.secrets() == second.secrets()


async def test_key_rotation_overlaps_old_and_new_keys(store: MemoryStore, clock: ManualClock) -> None:
    one, other = await keys(store, clock), await keys(store, clock)
    [old] = one.secrets()
    clock.advance(ROTATION_INTERVAL)
    await one.load()
    assert one.secrets()[0] == old
    [_, new] = one.secrets()
    await other.load()
    assert other.secrets() == [old, new]
    clock.advance(2 * RELOAD_INTERVAL)
    assert one.secrets() == other.secrets() == [new, old]
    clock.advance(LIFETIME)
    await one.load()
    assert one.secrets() == [new]


async def test_keys_are_reloaded_periodically(store: MemoryStore, clock: ManualClock) -> None:
    one, told = await keys(store, clock), []
    one.on_change = lambda: told.append(one.secrets())
    clock.advance(RELOAD_INTERVAL)
    assert one._reload_task is not None
    await one._reload_task
    assert told == [one.secrets()]
    await one.close()
