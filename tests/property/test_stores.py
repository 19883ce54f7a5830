"""Each store against a minimal model, one operation after another."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.stores import STORES, SharedStore

from trunkline.errors import Conflict, Fenced
from trunkline.stores.store import ABSENT, Delete, Held, Item, Lease, Put, Store, Write

KEYS = ["home/1", "home/1/a", "home/1/a/b", "home/1/b", "home/1/ä"]
NAMES = ["home/1", "home/1/a"]
WANTED = ["any", "absent", "now", "before"]  # which version a write names

one_write = st.tuples(
    st.sampled_from(KEYS),
    st.one_of(st.none(), st.binary(max_size=5)),  # None: delete
    st.sampled_from([None, 1.0, 5.0, 100.0]),
    st.sampled_from(WANTED),
)


def some_writes(least: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(one_write, min_size=least, max_size=3, unique_by=lambda write: write[0])


steps = st.one_of(
    st.tuples(
        st.just("commit"),
        some_writes(1),
        st.one_of(st.none(), st.integers(0, 5)),  # the fence: one of the granted leases
        st.booleans(),  # whether the fence is released
    ),
    st.tuples(
        st.just("acquire"),
        st.sampled_from(NAMES),
        st.sampled_from(["us", "them"]),
        st.sampled_from([2.0, 10.0]),
        st.one_of(st.none(), st.integers(0, 5)),  # over: one of the granted leases
        some_writes(0),
    ),
    st.tuples(st.just("renew"), st.integers(0, 5), st.sampled_from([2.0, 10.0])),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 3.0, 70.0])),
    st.tuples(st.just("look"), st.sampled_from(["", "home/1/", "home/1/a", "x"]), st.integers(1, 3)),
)


class Model:
    """The expected content. It uses the store's versions and leases, since it cannot invent them."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.leases: dict[str, Lease] = {}
        self.given: list[Lease] = []
        self.versions: dict[str, list[int]] = {key: [] for key in KEYS}
        self.now = 1_000_000.0

    def live(self) -> dict[str, Item]:
        return {
            key: item for key, item in sorted(self.items.items()) if item.expires is None or item.expires > self.now
        }

    def holds(self, lease: Lease) -> bool:
        current = self.leases.get(lease.name)
        return current is not None and current.token == lease.token and current.expires > self.now

    def write(self, key: str, value: bytes | None, ttl: float | None, wanted: str) -> Write:
        now = self.live()[key].version if key in self.live() else ABSENT
        before = next((version for version in self.versions[key] if version != now), 1_000_000)
        version = {"any": None, "absent": ABSENT, "now": now, "before": before}[wanted]
        return Delete(key, version) if value is None else Put(key, value, ttl and self.now + ttl, version)

    def allows(self, writes: list[Write]) -> bool:
        live = self.live()
        return all(w.version in {None, live[w.key].version if w.key in live else ABSENT} for w in writes)

    def written(self, writes: list[Write], version: int) -> None:
        for write in writes:
            assert version > max(self.versions[write.key], default=ABSENT)
            self.items.pop(write.key, None)
            if isinstance(write, Put):
                self.versions[write.key].append(version)
                self.items[write.key] = Item(write.key, write.value, version, write.expires)


class Sequence:
    """The same operations on a store and on the model."""

    def __init__(self, store: Store, place: SharedStore) -> None:
        self.store, self.place, self.model = store, place, Model()

    async def commit(self, asked: list[Any], fenced_by: int | None, release: bool) -> None:
        model = self.model
        writes = [model.write(*write) for write in asked]
        fence = None if fenced_by is None or not model.given else model.given[fenced_by % len(model.given)]
        lost, conflict = fence is not None and not model.holds(fence), not model.allows(writes)
        if lost or conflict:
            with pytest.raises(Fenced if lost else Conflict):
                await self.store.commit(writes, fence=fence, release=release)
            return
        model.written(writes, await self.store.commit(writes, fence=fence, release=release))
        if fence is not None and release:
            del model.leases[fence.name]

    async def acquire(self, name: str, holder: str, ttl: float, of: int | None, asked: list[Any]) -> None:
        model = self.model
        writes = [model.write(*write) for write in asked]
        over = None if of is None or not model.given else model.given[of % len(model.given)].token
        current = model.leases.get(name)
        free = current is None or current.expires <= model.now or current.holder == holder or current.token == over
        if free and not model.allows(writes):
            with pytest.raises(Conflict):
                await self.store.acquire(name, holder, ttl, over=over, writes=writes)
            return
        found = await self.store.acquire(name, holder, ttl, over=over, writes=writes)
        assert isinstance(found, Lease) is free
        if not isinstance(found, Lease):
            assert found == Held(current.holder, current.expires, current.token)
        else:
            assert (found.holder, found.expires) == (holder, model.now + ttl)
            assert found.token > max((lease.token for lease in model.given if lease.name == name), default=0)
            model.written(writes, found.token)
            model.leases[name] = found
            model.given.append(found)

    async def renew(self, which: int, ttl: float) -> None:
        if self.model.given:
            lease = self.model.given[which % len(self.model.given)]
            if not self.model.holds(lease):
                with pytest.raises(Fenced):
                    await self.store.renew(lease, ttl)
                return
            renewed = self.model.leases[lease.name] = await self.store.renew(lease, ttl)
            assert renewed == Lease(lease.name, lease.holder, lease.token, self.model.now + ttl)

    async def release(self, which: int) -> None:
        if self.model.given:
            lease = self.model.given[which % len(self.model.given)]
            await self.store.release(lease)
            if lease.name in self.model.leases and self.model.leases[lease.name].token == lease.token:
                del self.model.leases[lease.name]

    async def wait(self, seconds: float) -> None:
        self.place.clock.advance(seconds)
        self.model.now += seconds

    async def look(self, prefix: str, limit: int) -> None:
        expected = [item for key, item in self.model.live().items() if key.startswith(prefix)]
        seen: list[Item] = []
        while page := await self.store.scan(prefix, after=seen[-1].key if seen else "", limit=limit):
            seen += page
        assert seen == expected
        for key in KEYS:
            assert await self.store.get(key) == self.model.live().get(key)


async def run(kind: str, sequence: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = SharedStore(kind, Path(folder))
        both = Sequence(await place.enter(), place)
        for name, *arguments in [*sequence, ("look", "", 2)]:
            await getattr(both, name)(*arguments)
        await place.leave()


@pytest.mark.row("D04")
@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=40, deadline=None)
@given(sequence=st.lists(steps, max_size=25))
def test_store_matches_model(kind: str, sequence: list[Any]) -> None:
    asyncio.run(run(kind, sequence))
