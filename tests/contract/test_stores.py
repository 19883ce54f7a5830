"""The contract of all stores. A new store is one more line in `kept.STORES`."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import turns, until
from tests.contract.stores import STORES, SharedStore, lease

from trunkline.errors import Conflict, Fenced, MisuseError, StoreError, StoreUnavailable, StoreUnusable
from trunkline.stores.shared_values import IDENTITY, load_identity, read_identity
from trunkline.stores.store import ABSENT, Delete, Held, Item, Lease, Put, Store, Write, home, key_of
from trunkline.stores.validation import MAX_KEY_CHARACTERS, MAX_PAGE_ITEMS, MAX_VALUE_BYTES, MAX_WRITES

KEY = "session/1/state"


@pytest.fixture(params=STORES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SharedStore]:
    place = SharedStore(request.param, tmp_path)
    yield place
    await place.leave()


@pytest.fixture
async def store(place: SharedStore) -> Store:
    return await place.enter()


async def outcomes(*calls: Any) -> list[Any]:
    """The outcomes of calls that were made in one turn of the loop."""
    return await asyncio.gather(*calls, return_exceptions=True)


async def walk(store: Store, prefix: str = "", limit: int = 100) -> list[Item]:
    found: list[Item] = []
    while page := await store.scan(prefix, after=found[-1].key if found else "", limit=limit):
        assert len(page) <= limit
        found += page
    return found


async def value(store: Store, key: str) -> bytes | None:
    item = await store.get(key)
    return None if item is None else item.value


# --- values and versions ---------------------------------------------------------------------------------


@pytest.mark.row("D01", "D02", "D04")
async def test_item_exists_until_deleted(store: Store) -> None:
    assert await store.get(KEY) is None
    first = await store.commit([Put(KEY, b"one", expires=2_000_000.0)])
    assert await store.get(KEY) == Item(KEY, b"one", first, 2_000_000.0)
    second = await store.commit([Put(KEY, b"two")])
    assert await store.get(KEY) == Item(KEY, b"two", second)
    await store.commit([Delete(KEY)])
    assert await store.get(KEY) is None


@pytest.mark.row("D04")
async def test_versions_grow_across_deletion(store: Store) -> None:
    versions = []
    for _ in range(3):
        versions += [await store.commit([Put(KEY, b"x")]), await store.commit([Put(KEY, b"x")])]
        await store.commit([Delete(KEY)])
    assert versions == sorted(set(versions))
    assert versions[0] > ABSENT


@pytest.mark.row("D04")
async def test_conflict_changes_nothing_and_names_found_version(store: Store) -> None:
    with pytest.raises(Conflict, match=r"does not exist, but should be at 7") as missing:
        await store.commit([Put(KEY, b"x", version=7)])
    assert (missing.value.key, missing.value.expected, missing.value.found) == (KEY, 7, ABSENT)
    old = await store.commit([Put(KEY, b"old", version=ABSENT)])
    new = await store.commit([Put(KEY, b"new", version=old)])
    for late in (Put(KEY, b"x", version=old), Delete(KEY, version=old), Put(KEY, b"x", version=ABSENT)):
        with pytest.raises(Conflict, match=f"is at version {new}") as caught:
            await store.commit([late])
        assert (caught.value.expected, caught.value.found) == (late.version, new)
    assert await store.get(KEY) == Item(KEY, b"new", new)
    await store.commit([Delete(KEY, version=new)])
    await store.commit([Delete(KEY, version=ABSENT)])
    assert await store.get(KEY) is None


@pytest.mark.row("D04")
async def test_version_from_before_deletion_conflicts(store: Store) -> None:
    before = await store.commit([Put(KEY, b"before")])
    await store.commit([Delete(KEY)])
    await store.commit([Put(KEY, b"after")])
    with pytest.raises(Conflict):
        await store.commit([Put(KEY, b"x", version=before)])
    assert await value(store, KEY) == b"after"


@pytest.mark.row("D04")
@pytest.mark.parametrize("kept", [b"", b"\0", b"\xff\xfe", b"x" * 3_000_000], ids=["empty", "nul", "no text", "3 MB"])
async def test_values_are_arbitrary_bytes(store: Store, kept: bytes) -> None:
    await store.commit([Put(KEY, kept)])
    assert await value(store, KEY) == kept


HOSTILE = ["", "a/b", "{a}", "}", "%", "%2F", "\0", "\x10FFFF", "\U0010ffff", "\ud800", "ä", "😀", "a\nb", "%u00D800"]


@pytest.mark.row("D04")
async def test_key_of_is_unambiguous(store: Store) -> None:
    keys = [key_of("whose", f"x{text}", "thing") for text in HOSTILE]
    assert len(set(keys)) == len(HOSTILE)
    for number, key in enumerate(keys):
        await store.commit([Put(key, b"%d" % number)])
    assert [await value(store, key) for key in keys] == [b"%d" % number for number in range(len(keys))]
    assert len({home(key) for key in keys}) == len(keys)


# --- commits ---------------------------------------------------------------------------------------------


@pytest.mark.row("D04")
async def test_commit_applies_all_writes(store: Store) -> None:
    await store.commit([Put("session/1/a", b"a"), Put("session/1/b", b"b"), Put("session/1/c", b"c")])
    version = await store.commit([Put("session/1/a", b"A"), Delete("session/1/b"), Put("session/1/d", b"D")])
    found = {item.key: (item.value, item.version == version) for item in await walk(store)}
    assert found == {"session/1/a": (b"A", True), "session/1/c": (b"c", False), "session/1/d": (b"D", True)}


@pytest.mark.row("D04")
@pytest.mark.parametrize("last", [Put("session/1/z", b"z", version=99), Delete("session/1/z", version=99)])
async def test_commit_with_one_conflict_applies_nothing(store: Store, last: Write) -> None:
    await store.commit([Put("session/1/a", b"a"), Put("session/1/b", b"b")])
    before = await walk(store)
    with pytest.raises(Conflict):
        await store.commit([Put("session/1/a", b"A"), Delete("session/1/b"), Put("session/1/c", b"C"), last])
    assert await walk(store) == before


@pytest.mark.row("D04")
async def test_versions_compare_with_state_before_commit(store: Store) -> None:
    one = await store.commit([Put("session/1/a", b"a"), Put("session/1/b", b"b")])
    two = await store.commit([Put("session/1/a", b"A", version=one), Put("session/1/b", b"B", version=one)])
    assert two > one


@pytest.mark.row("D04")
@pytest.mark.parametrize(
    "writes",
    [
        [],
        [Put("alone", b"")],
        [Put("/session/1", b"")],
        [Put("session//1", b"")],
        [Put("session/1/", b"")],
        [Put("session/{1}", b"")],
        [Put("session/\n", b"")],
        [Put("session/\ud800", b"")],
        [Put("session/" + "x" * MAX_KEY_CHARACTERS, b"")],
        [Put(KEY, bytes(MAX_VALUE_BYTES + 1))],
        [Put(KEY, "text")],  # type: ignore[arg-type]
        [Put(KEY, b"", expires=float("nan"))],
        [Put(KEY, b"", expires=float("inf"))],
        [Put(KEY, b"", expires=2**64)],
        [Put(KEY, b"", version=2**64)],
        [Delete(KEY, version=-1)],
        [Put(KEY, b"1"), Put(KEY, b"2")],
        [Put(KEY, b"1"), Delete(KEY)],
        [Put("session/1", b""), Put("session/2", b"")],
        [Put(f"session/1/{number}", b"") for number in range(MAX_WRITES + 1)],
    ],
    ids=lambda writes: f"{len(writes)} {writes[-1].key[:12]!a}" if writes else "none",
)
async def test_invalid_writes_are_refused(store: Store, writes: Sequence[Write]) -> None:
    with pytest.raises(MisuseError):
        await store.commit(writes)
    assert await walk(store) == []


@pytest.mark.row("D04")
async def test_invalid_queries_are_refused(store: Store) -> None:
    given = lease(await store.acquire("session/1", "us", 10))
    for call in (
        store.get("no key"),
        store.scan("{"),
        store.scan("", after="\ud800"),
        store.scan("", limit=0),
        store.scan("", limit=MAX_PAGE_ITEMS + 1),
        store.acquire("no key", "us", 10),
        store.acquire("session/1", "", 10),
        store.acquire("session/1", "\ud800", 10),
        store.acquire("session/1", "us", 0),
        store.acquire("session/1", "us", float("inf")),
        store.acquire("session/1", "us", 10, writes=[Put("session/2", b"")]),
        store.acquire("session/1", "us", 10, writes=[Put("session/1/a", b""), Delete("session/1/a")]),
        store.renew(given, -1),
        store.commit([Put("session/2", b"")], fence=given),
    ):
        with pytest.raises(MisuseError):
            await call
    assert await store.renew(given, 10) == given


@pytest.mark.row("D04")
async def test_commits_of_one_iteration_are_ordered_and_independent(store: Store) -> None:
    version = await store.commit([Put(KEY, b"0")])
    first, second, third, other, fourth = await outcomes(
        store.commit([Put(KEY, b"1", version=version)]),
        store.commit([Put(KEY, b"2", version=version)]),  # too late
        store.commit([Put(KEY, b"3")]),
        store.commit([Put("session/2/state", b"x", version=5)]),  # never there
        store.commit([Put(KEY, b"4")]),
    )
    assert version < first < third < fourth
    assert (type(second), second.found) == (Conflict, first)
    assert (type(other), other.found) == (Conflict, ABSENT)
    assert await store.get(KEY) == Item(KEY, b"4", fourth)


@pytest.mark.row("D04")
async def test_commits_of_several_iterations_are_ordered(store: Store) -> None:
    calls: list[asyncio.Future[int]] = []
    for number in range(20):
        calls.append(asyncio.ensure_future(store.commit([Put(KEY, b"%d" % number)])))
        await turns(number % 4)
    versions = await asyncio.gather(*calls)
    assert versions == sorted(versions)
    assert await value(store, KEY) == b"19"


async def test_concurrent_updates_are_not_lost(place: SharedStore) -> None:
    stores = [await place.enter(), await place.enter()]

    async def count_up(store: Store, times: int) -> int:
        conflicts = 0
        while times:
            item = await store.get("count/er")
            number, version = (int(item.value), item.version) if item else (0, ABSENT)
            try:
                await store.commit([Put("count/er", b"%d" % (number + 1), version=version)])
                times -= 1
            except Conflict:
                conflicts += 1
        return conflicts

    conflicts = await asyncio.gather(*(count_up(stores[number % 2], 5) for number in range(20)))
    assert await value(stores[0], "count/er") == b"100"
    assert (sum(conflicts) > 0) is (place.kind != "memory")  # without an await, no other write comes in between


async def test_concurrent_creation_has_one_winner(place: SharedStore) -> None:
    stores = [await place.enter(), await place.enter()]
    made = await outcomes(*(stores[n % 2].commit([Put("once/us/key", b"%d" % n, version=ABSENT)]) for n in range(50)))
    winners = [number for number, outcome in enumerate(made) if isinstance(outcome, int)]
    assert len(winners) == 1
    assert {type(outcome) for outcome in made} == {int, Conflict}
    assert await value(stores[0], "once/us/key") == b"%d" % winners[0]


async def test_commit_is_visible_to_all_processes(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    for number in range(20):
        await ours.commit([Put(KEY, b"%d" % number)])
        assert await value(theirs, KEY) == b"%d" % number


async def test_cancelled_commit_does_not_affect_others(store: Store) -> None:
    calls = [asyncio.ensure_future(store.commit([Put(f"session/{n}/state", b"x")])) for n in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()
    done = await outcomes(*calls)
    assert all(isinstance(outcome, int) for number, outcome in enumerate(done) if number != 3)
    kept = {item.key for item in await walk(store)}
    assert kept >= {f"session/{n}/state" for n in range(10) if n != 3}


# --- scans -----------------------------------------------------------------------------------------------


@pytest.mark.row("D04")
async def test_scan_returns_prefix_in_key_order_by_page(store: Store) -> None:
    names = ["a", "a/1", "a/10", "a/2", "b", "ä", "\uffff", "😀"]
    for name in reversed(names):
        await store.commit([Put(f"x/{name}", name.encode())])
    await store.commit([Put("w/z", b""), Put("w/z/1", b"")])
    await store.commit([Put("y/a", b"")])
    for limit in (1, 3, 100):
        assert [item.key for item in await walk(store, "x/", limit)] == [f"x/{name}" for name in names]
    assert [item.key for item in await walk(store, "x/a")] == ["x/a", "x/a/1", "x/a/10", "x/a/2"]
    assert [item.key for item in await walk(store, "x/a/")] == ["x/a/1", "x/a/10", "x/a/2"]
    assert [item.key for item in await store.scan("x/a/1", after="x/a/1")] == ["x/a/10"]
    assert [item.key for item in await store.scan("", after="x/😀")] == ["y/a"]
    assert len(await walk(store)) == 11
    assert await walk(store, "nothing") == []


@pytest.mark.row("D04")
async def test_scan_orders_homes_with_common_prefix(store: Store) -> None:
    keys = ["a/b", "a/b!", "a/b!/x", "a/b-/y", "a/b/1", "a/b/2", "a/b0", "a/b0/z", "a/bc", "aa/b/c"]
    for key in keys:
        await store.commit([Put(key, key.encode())])
    for limit in (1, 2, 3, 100):
        assert [item.key for item in await walk(store, "", limit)] == keys
        assert [item.key for item in await walk(store, "a/b", limit)] == keys[:-1]
    for number, key in enumerate(keys):
        assert [item.key for item in await store.scan("a", after=key)] == keys[number + 1 :]
        assert [item.key for item in await store.scan("a", after=f"{key}/")] == [k for k in keys if k > f"{key}/"]
    assert [item.key for item in await store.scan("a/b/", after="a/b!")] == ["a/b/1", "a/b/2"]
    assert [item.key for item in await store.scan("a/b!/", after="a/b")] == ["a/b!/x"]
    assert await store.scan("a/b/", after="a/c") == []


@pytest.mark.row("D04")
async def test_scan_returns_stable_items_once_during_changes(store: Store) -> None:
    def key(number: int) -> str:
        return f"list/us/{number:04}"

    await store.commit([Put(key(number), b"") for number in range(0, 200, 2)])
    seen: list[str] = []
    for step in range(1000):
        page = await store.scan("list/us/", after=seen[-1] if seen else "", limit=7)
        if not page:
            break
        seen += [item.key for item in page]
        await store.commit([Put(key(step * 6 + 1), b"new"), Put(key(199 - step), b"new"), Delete(key(step * 20))])
    deleted = {key(step * 20) for step in range(1000)}
    assert seen == sorted(set(seen))
    assert set(seen) >= {key(number) for number in range(0, 200, 2)} - deleted


@pytest.mark.row("D04")
async def test_scan_of_ten_thousand_keys(store: Store) -> None:
    await asyncio.gather(*(store.commit([Put(f"many/{h}/{n:04}", b"%d" % n) for n in range(500)]) for h in range(20)))
    assert [item.key for item in await walk(store, "many/7/", 200)] == [f"many/7/{n:04}" for n in range(500)]
    assert len(await walk(store, "many/", MAX_PAGE_ITEMS)) == 10_000
    await asyncio.gather(*(store.commit([Delete(f"many/{h}/{n:04}") for n in range(500)]) for h in range(20)))
    assert await walk(store) == []


# --- expiry ----------------------------------------------------------------------------------------------


async def test_expired_item_is_invisible_at_once(place: SharedStore) -> None:
    store, now = await place.enter(), place.clock.now()
    version = await store.commit([Put("session/1/a", b"a", expires=now + 10), Put("session/1/b", b"b")])
    place.clock.advance(9.999)
    assert await value(store, "session/1/a") == b"a"
    place.clock.advance(0.001)
    assert await store.get("session/1/a") is None
    assert [item.key for item in await walk(store)] == ["session/1/b"]
    with pytest.raises(Conflict) as caught:
        await store.commit([Put("session/1/a", b"x", version=version)])
    assert caught.value.found == ABSENT
    with pytest.raises(Conflict):
        await store.commit([Delete("session/1/a", version=version), Put("session/1/b", b"x")])
    again = await store.commit([Put("session/1/a", b"new", version=ABSENT)])
    assert await store.get("session/1/a") == Item("session/1/a", b"new", again)


async def test_put_extends_expiry(place: SharedStore) -> None:
    store = await place.enter()
    for _ in range(5):
        await store.commit([Put(KEY, b"x", expires=place.clock.now() + 3600)])
        place.clock.advance(3000)
        await settled(store)
    assert await value(store, KEY) == b"x"
    await store.commit([Put(KEY, b"for ever")])
    place.clock.advance(100_000)
    await settled(store)
    assert await value(store, KEY) == b"for ever"


async def settled(store: Store) -> None:
    """Wait until the effects of passing time are complete: a commit comes after them."""
    for _ in range(3):
        await store.commit([Delete("no/thing")])
        await turns()


async def test_put_can_shorten_expiry(place: SharedStore) -> None:
    store = await place.enter()
    await store.commit([Put(KEY, b"x", expires=place.clock.now() + 3600)])
    await store.commit([Put(KEY, b"x", expires=place.clock.now() + 10)])
    place.clock.advance(10)
    assert await store.get(KEY) is None


async def test_expiry_in_the_past_deletes(place: SharedStore) -> None:
    store = await place.enter()
    await store.commit([Put(KEY, b"x", expires=place.clock.now())])
    assert await store.get(KEY) is None


# --- leases ----------------------------------------------------------------------------------------------


async def test_lease_has_one_holder_and_growing_tokens(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    first = lease(await ours.acquire("session/1", "us", 10))
    assert (first.holder, first.expires) == ("us", place.clock.now() + 10)
    assert await theirs.acquire("session/1", "them", 10) == Held("us", first.expires, first.token)
    assert isinstance(await theirs.acquire("session/2", "them", 10), Lease)
    await ours.release(first)
    second = lease(await theirs.acquire("session/1", "them", 10))
    place.clock.advance(10)
    third = lease(await ours.acquire("session/1", "us", 10))
    assert first.token < second.token < third.token


async def test_renewed_lease_lasts(place: SharedStore) -> None:
    store = await place.enter()
    held = lease(await store.acquire("session/1", "us", 10))
    for _ in range(5):
        place.clock.advance(9)
        held = await store.renew(held, 10)
        assert held.expires == place.clock.now() + 10
        assert isinstance(await store.acquire("session/1", "them", 10), Held)
    place.clock.advance(10)
    for attempt in (store.renew(held, 10), store.commit([Put(KEY, b"x")], fence=held)):
        with pytest.raises(Fenced) as caught:  # although no other process wants it
            await attempt
        assert (caught.value.name, caught.value.token) == ("session/1", held.token)
    assert await store.get(KEY) is None


async def test_writes_of_old_holder_are_fenced_after_takeover(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    old = lease(await ours.acquire("session/1", "us", 10))
    await ours.commit([Put(KEY, b"ours")], fence=old)
    place.clock.advance(10)
    new = lease(await theirs.acquire("session/1", "them", 10))
    await theirs.commit([Put(KEY, b"theirs")], fence=new)
    done = await outcomes(
        ours.commit([Put(KEY, b"late"), Put("session/1/b", b"late")], fence=old),
        ours.renew(old, 10),
        ours.release(old),
        ours.commit([Delete(KEY)], fence=old),
    )
    assert [type(outcome) for outcome in done] == [Fenced, Fenced, type(None), Fenced]
    assert await theirs.renew(new, 10) == new  # releasing a lost lease takes it from no other holder
    place.clock.advance(10)  # nor does it come back when the new one has expired
    with pytest.raises(Fenced):
        await ours.commit([Put(KEY, b"late")], fence=old)
    assert [(item.key, item.value) for item in await walk(ours)] == [(KEY, b"theirs")]
    assert isinstance(await ours.acquire("session/1", "us", 10), Lease)


async def test_takeover_orders_between_commits_of_one_iteration(store: Store) -> None:
    old = lease(await store.acquire("session/1", "us", 10))
    before, new, after, others, under_new = await outcomes(
        store.commit([Put(KEY, b"before")], fence=old),
        store.acquire("session/1", "us", 10),  # as after a restart
        store.commit([Put(KEY, b"after")], fence=old),
        store.commit([Put("session/2/state", b"others")]),
        store.commit([Put("session/1/more", b"x", version=ABSENT)], fence=old),
    )
    assert isinstance(before, int)
    assert isinstance(new, Lease)
    assert new.token > old.token
    assert (type(after), type(others), type(under_new)) == (Fenced, int, Fenced)
    kept = {item.key: item.value for item in await walk(store)}
    assert kept == {KEY: b"before", "session/2/state": b"others"}
    await store.commit([Put(KEY, b"new")], fence=new)


async def test_clock_going_back_extends_leases_without_double_grant(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    held = lease(await ours.acquire("session/1", "us", 10))
    place.clock.advance(-3600)
    assert await theirs.acquire("session/1", "them", 10) == Held("us", held.expires, held.token)
    renewed = await ours.renew(held, 10)
    assert renewed.expires == place.clock.now() + 10  # a live process repairs it
    place.clock.advance(10)
    new = lease(await theirs.acquire("session/1", "them", 10))
    assert new.token > held.token
    with pytest.raises(Fenced):
        await ours.commit([Put(KEY, b"late")], fence=held)


async def test_released_lease_is_fenced(store: Store) -> None:
    held = lease(await store.acquire("session/1", "us", 10))
    await store.release(held)
    await store.release(held)
    for attempt in (store.renew(held, 10), store.commit([Put(KEY, b"x")], fence=held)):
        with pytest.raises(Fenced):
            await attempt
    assert await store.get(KEY) is None


async def test_commit_releases_its_fence(store: Store) -> None:
    held = lease(await store.acquire("session/1", "us", 10))
    await store.commit([Put(KEY, b"first")], fence=held)
    with pytest.raises(Conflict):
        await store.commit([Put(KEY, b"wrong", version=ABSENT)], fence=held, release=True)
    await store.commit([Put(KEY, b"last")], fence=held, release=True)
    with pytest.raises(Fenced):
        await store.commit([Put(KEY, b"late")], fence=held, release=True)
    assert await value(store, KEY) == b"last"
    assert isinstance(await store.acquire("session/1", "them", 10), Lease)


async def test_acquire_over_token_takes_only_from_that_holder(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    gone = lease(await ours.acquire("session/1", "gone", 10))
    found = await theirs.acquire("session/1", "them", 10)
    assert isinstance(found, Held)
    assert await theirs.acquire("session/1", "them", 10, over=found.token - 1) == found
    place.clock.advance(1)
    gone = await ours.renew(gone, 10)  # it is the same lease, so that is the same token
    new = lease(await theirs.acquire("session/1", "them", 10, over=found.token))
    assert new.token > gone.token
    assert (new.holder, new.expires) == ("them", place.clock.now() + 10)
    assert await ours.acquire("session/1", "third", 10, over=gone.token) == Held("them", new.expires, new.token)
    with pytest.raises(Fenced):
        await ours.commit([Put(KEY, b"late")], fence=gone)
    await theirs.commit([Put(KEY, b"theirs")], fence=new)


async def test_acquire_over_token_grants_free_lease(place: SharedStore) -> None:
    store = await place.enter()
    first = lease(await store.acquire("session/1", "us", 10, over=7))
    place.clock.advance(10)
    second = lease(await store.acquire("session/1", "them", 10, over=first.token - 1))
    assert second.token > first.token


async def test_concurrent_acquire_over_one_token_has_one_winner(place: SharedStore) -> None:
    stores = [await place.enter(), await place.enter()]
    gone = lease(await stores[0].acquire("session/1", "gone", 10))
    asked = [stores[n % 2].acquire("session/1", f"holder {n}", 10, over=gone.token) for n in range(30)]
    given = await asyncio.gather(*asked)
    [held] = [outcome for outcome in given if isinstance(outcome, Lease)]
    assert [outcome for outcome in given if isinstance(outcome, Held)] == [
        Held(held.holder, held.expires, held.token)
    ] * 29


async def test_concurrent_acquire_has_one_winner(place: SharedStore) -> None:
    stores = [await place.enter(), await place.enter()]
    asked = [stores[number % 2].acquire("session/1", f"holder {number}", 10) for number in range(30)]
    given = await asyncio.gather(*asked)
    [held] = [outcome for outcome in given if isinstance(outcome, Lease)]
    assert [outcome for outcome in given if isinstance(outcome, Held)] == [
        Held(held.holder, held.expires, held.token)
    ] * 29


async def test_leases_and_items_have_separate_names(store: Store) -> None:
    held = lease(await store.acquire("session/1", "us", 10))
    await store.commit([Put("session/1", b"item")], fence=held)
    await store.release(held)
    assert await value(store, "session/1") == b"item"
    assert isinstance(await store.acquire("session/1", "them", 10), Lease)


async def test_acquire_commits_its_writes_under_the_token_of_the_lease(store: Store) -> None:
    writes = [Put(KEY, b"new", version=ABSENT), Put("session/1/b", b"more"), Delete("session/1/c")]
    await store.commit([Put("session/1/c", b"old")])
    held = lease(await store.acquire("session/1", "us", 10, writes=writes))
    kept = [(item.key, item.value, item.version) for item in await walk(store)]
    assert kept == [("session/1/b", b"more", held.token), (KEY, b"new", held.token)]
    version = await store.commit([Put(KEY, b"newer", version=held.token)], fence=held)
    assert version > held.token


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("wrong", [0, 1, 2])
async def test_commit_with_one_wrong_version_writes_nothing(store: Store, wrong: int, *, fenced: bool) -> None:
    fence = lease(await store.acquire("session/1", "us", 10)) if fenced else None
    version = await store.commit([Put(KEY, b"old"), Put("session/1/b", b"old")], fence=fence)
    expected = [ABSENT if number == wrong else version for number in range(2)]
    writes = [
        Put("session/1/any", b"new"),
        Delete("session/1/c", version if wrong == 2 else ABSENT),
        Put("session/1/b", b"new", version=expected[0]),
        Put(KEY, b"new", version=expected[1]),
    ]
    with pytest.raises(Conflict) as caught:
        await store.commit(writes, fence=fence)
    assert caught.value.key == ["session/1/b", KEY, "session/1/c"][wrong]
    assert [(item.key, item.value) for item in await walk(store)] == [("session/1/b", b"old"), (KEY, b"old")]


async def test_lost_fence_is_reported_before_a_wrong_version(store: Store) -> None:
    lost = lease(await store.acquire("session/1", "us", 10))
    await store.commit([Put(KEY, b"old")])
    await store.release(lost)
    wrong = [Put(KEY, b"new", version=ABSENT), Put("session/1/b", b"new", version=7)]
    for writes in (wrong[:1], wrong[1:], wrong):
        with pytest.raises(Fenced):
            await store.commit(writes, fence=lost)


async def test_refused_writes_leave_a_new_lease_free(store: Store) -> None:
    await store.commit([Put(KEY, b"old")])
    with pytest.raises(Conflict):
        await store.acquire("session/1", "us", 10, writes=[Put("session/1/b", b"x"), Put(KEY, b"x", version=ABSENT)])
    assert [item.value for item in await walk(store)] == [b"old"]
    assert isinstance(await store.acquire("session/1", "them", 10), Lease)


async def test_acquire_of_a_held_lease_writes_nothing(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    held = lease(await ours.acquire("session/1", "us", 10))
    refused = await theirs.acquire("session/1", "them", 10, writes=[Put(KEY, b"theirs")])
    assert refused == Held("us", held.expires, held.token)
    assert await walk(ours) == []
    taken = lease(await theirs.acquire("session/1", "them", 10, over=held.token, writes=[Put(KEY, b"theirs")]))
    assert [(item.value, item.version) for item in await walk(ours)] == [(b"theirs", taken.token)]


async def test_acquire_with_version_conflict_grants_nothing(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    version = await ours.commit([Put(KEY, b"there")])
    for writes in ([Put(KEY, b"x", version=ABSENT)], [Put("session/1/b", b"x"), Delete(KEY, version=version + 1)]):
        with pytest.raises(Conflict) as caught:
            await ours.acquire("session/1", "us", 10, writes=writes)
        assert (caught.value.key, caught.value.found) == (KEY, version)
    assert [(item.key, item.value) for item in await walk(ours)] == [(KEY, b"there")]
    held = lease(await theirs.acquire("session/1", "them", 10))
    for writes in ([Put(KEY, b"x", version=ABSENT)], [Put(KEY, b"x")]):  # a conflict does not take it over either
        assert isinstance(await ours.acquire("session/1", "us", 10, writes=writes), Held)
    again = [Put(KEY, b"x", version=ABSENT)]
    with pytest.raises(Conflict):
        await theirs.acquire("session/1", "them", 10, writes=again)
    assert await theirs.renew(held, 10) == held  # and leaves the lease with its holder


async def test_concurrent_acquire_with_writes_has_one_winner(place: SharedStore) -> None:
    stores = [await place.enter(), await place.enter()]
    asked = [
        stores[n % 2].acquire("session/1", f"holder {n}", 10, writes=[Put(KEY, str(n).encode())]) for n in range(30)
    ]
    given = await asyncio.gather(*asked)
    [(number, held)] = [(n, outcome) for n, outcome in enumerate(given) if isinstance(outcome, Lease)]
    found = await stores[0].get(KEY)
    assert found is not None
    assert (found.value, found.version) == (str(number).encode(), held.token)


# --- watches ---------------------------------------------------------------------------------------------


class WatchRecorder:
    """The calls of a watch."""

    def __init__(self) -> None:
        self.calls: list[frozenset[str] | None] = []

    def __call__(self, keys: frozenset[str] | None) -> None:
        self.calls.append(keys)

    @property
    def keys(self) -> set[str]:
        return {key for keys in self.calls for key in keys or ()}


async def test_watch_reports_writes_and_deletions_after_commit(store: Store) -> None:
    told, read = WatchRecorder(), list[asyncio.Task[Item | None]]()
    store.watch("session/1/", told)
    store.watch("session/1/a", lambda _: read.append(asyncio.ensure_future(store.get("session/1/a"))))
    await store.commit([Put("session/1/a", b"a"), Put("session/1/b", b"b")])
    await store.commit([Put("session/2/a", b"a")])
    await store.commit([Put("session/1", b"no")])
    await until(lambda: told.keys == {"session/1/a", "session/1/b"} and read)
    assert [item and item.value for item in await asyncio.gather(*read)] == [b"a"] * len(read)
    told.calls.clear()
    await store.commit([Delete("session/1/b")])
    await until(lambda: told.keys == {"session/1/b"})


async def test_watch_reports_writes_of_acquire(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    near, far = WatchRecorder(), WatchRecorder()
    ours.watch("session/1/", near)
    theirs.watch("session/1/", far)
    await theirs.get(KEY)  # now the watch is active
    await ours.acquire("session/1", "us", 10, writes=[Put(KEY, b"x"), Delete("session/1/b")])
    place.clock.advance(1)
    await until(lambda: near.keys == far.keys == {KEY, "session/1/b"})


async def test_watch_callback_never_runs_within_a_call(store: Store) -> None:
    told = WatchRecorder()
    store.watch("session/", told)
    await store.commit([Put(KEY, b"x")])
    assert told.calls == []
    await until(lambda: told.keys)


async def test_changes_of_one_iteration_share_one_callback(store: Store) -> None:
    told = WatchRecorder()
    store.watch("", told)
    await asyncio.gather(*(store.commit([Put(f"session/{n}/state", b"x")]) for n in range(100)))
    await until(lambda: len(told.keys) == 100)
    assert len(told.calls) < 10


async def test_watch_reports_changes_of_other_processes(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    await theirs.commit([Put("session/1/early", b"x")])
    told = WatchRecorder()
    ours.watch("session/1/", told)
    await ours.get(KEY)  # now the watch is active
    await theirs.commit([Put("session/1/a", b"x")])
    await theirs.commit([Delete("session/1/a"), Put("session/1/b", b"x")])
    place.clock.advance(1)
    await until(lambda: told.keys == {"session/1/a", "session/1/b"})


async def test_own_change_hides_no_change_of_another_process(place: SharedStore) -> None:
    ours, theirs = await place.enter(), await place.enter()
    told = WatchRecorder()
    ours.watch("session/1/", told)
    await ours.get(KEY)  # now the watch is active
    await theirs.commit([Put("session/1/theirs", b"x")])
    await ours.commit([Put("session/1/ours", b"x")])
    place.clock.advance(1)
    await until(lambda: told.keys == {"session/1/ours", "session/1/theirs"})


async def test_closed_watch_gets_no_callbacks(store: Store) -> None:
    told, others = WatchRecorder(), WatchRecorder()
    watch = store.watch("session/", told)
    store.watch("session/", others)
    await store.commit([Put(KEY, b"x")])
    await until(lambda: others.keys)
    watch.close()
    watch.close()
    told.calls.clear()
    others.calls.clear()
    await store.commit([Put(KEY, b"y")])
    await until(lambda: others.keys)
    assert told.calls == []


async def test_watch_callback_may_close_watches_or_fail(store: Store) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    told, never = WatchRecorder(), WatchRecorder()

    def fails(_: frozenset[str] | None) -> None:
        closed.close()
        raise ValueError("on purpose")

    store.watch("session/", fails)
    closed = store.watch("session/", never)
    store.watch("session/", told)
    await store.commit([Put(KEY, b"x")])
    await until(lambda: told.keys)
    assert never.calls == []
    assert [str(context["exception"]) for context in failures] == ["on purpose"]


# --- close -----------------------------------------------------------------------------------------------


async def test_close_finishes_pending_calls(place: SharedStore) -> None:
    store = await place.enter()
    calls = [asyncio.ensure_future(store.commit([Put(f"session/{n}/state", b"x")])) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert all(isinstance(outcome, int) for outcome in await outcomes(*calls))
    if place.kind != "memory":
        assert len(await walk(await place.enter())) == 50


async def test_closed_store_raises_unavailable(store: Store) -> None:
    told = WatchRecorder()
    store.watch("", told)
    held = lease(await store.acquire("session/1", "us", 10))
    await store.close()
    await store.close()
    for call in (
        store.get(KEY),
        store.scan(""),
        store.commit([Put(KEY, b"x")]),
        store.acquire("session/1", "us", 10),
        store.renew(held, 10),
        store.release(held),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            await call
    with pytest.raises(StoreUnavailable, match="closed"):
        store.watch("", told)
    assert told.calls == []


@pytest.mark.parametrize("kind", STORES)
async def test_store_must_be_opened_and_stays_closed(kind: str, tmp_path: Path) -> None:
    place = SharedStore(kind, tmp_path)
    store = STORES[kind](tmp_path, place.clock)
    for call in (store.get(KEY), store.commit([Put(KEY, b"x")])):
        with pytest.raises(MisuseError, match="not open yet"):
            await call
    await store.open()
    await store.open()
    await store.commit([Put(KEY, b"x")])
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.open()
    assert place.clock.waiting == 0


# --- memory ----------------------------------------------------------------------------------------------


@pytest.mark.row("D01")
async def test_sweep_frees_memory_of_expired_items(tmp_path: Path) -> None:
    place = SharedStore("memory", tmp_path)
    store = await place.enter()

    async def visit(number: int) -> None:
        held = lease(await store.acquire(f"session/{number}", "us", 100))
        await store.commit([Put(f"session/{number}/state", bytes(500), expires=place.clock.now() + 3600)], fence=held)

    await visit(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(5000):
            await visit(number)
        assert tracemalloc.get_traced_memory()[0] - before > 2_500_000
        place.clock.advance(3661)
        assert tracemalloc.get_traced_memory()[0] - before < 200_000
    finally:
        tracemalloc.stop()
    assert place.clock.waiting == 0
    await place.leave()


async def test_extended_and_deleted_items_leave_no_queue_entries(tmp_path: Path) -> None:
    place = SharedStore("memory", tmp_path)
    store = await place.enter()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(5000):
            expires = place.clock.now() + 3600 + number
            await store.commit([Put("session/hot/state", b"x", expires=expires)])
            await store.commit([Put(f"session/{number}/state", b"x", expires=expires)])
            await store.commit([Delete(f"session/{number}/state")])
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()
    place.clock.advance(3600 + 4990)
    assert await value(store, "session/hot/state") == b"x"
    place.clock.advance(70)
    assert await store.get("session/hot/state") is None
    assert place.clock.waiting == 0
    await place.leave()


# --- identity --------------------------------------------------------------------------------------------


async def test_processes_agree_on_store_identity(place: SharedStore) -> None:
    stores = [await place.enter() for _ in range(4)]
    assert await read_identity(stores[0]) is None
    found = await asyncio.gather(*(load_identity(store, 7.0 + number) for number, store in enumerate(stores)))
    assert len({identity.id for identity in found}) == len({identity.secret for identity in found}) == 1
    assert len(found[0].secret) == 32
    assert {await read_identity(store) for store in stores} == {found[0]}


async def test_store_without_data_gets_new_identity(store: Store) -> None:
    before = await load_identity(store, 7.0)
    await store.commit([Delete(IDENTITY)])
    assert await read_identity(store) is None
    after = await load_identity(store, 8.0)
    assert before.id != after.id
    assert before.secret != after.secret
    assert before.key("x") != after.key("x") != after.key("y")


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"id":7,"secret":"","created":0}'])
async def test_unreadable_identity_is_reported_and_not_changed(store: Store, value: bytes) -> None:
    await store.commit([Put(IDENTITY, value)])
    for asked in (read_identity(store), load_identity(store, 7.0)):
        with pytest.raises(StoreUnusable, match=r"'store/identity'.* cannot be read"):
            await asked
    item = await store.get(IDENTITY)
    assert item is not None
    assert item.value == value
