"""The keys of an issuer: when the server fetches them, and behaviour while it cannot."""

import asyncio
import json

import pytest

from trunkline.auth.jose import MalformedJws, SigningKey
from trunkline.auth.server.issuer_keys import (
    MAX_AGE,
    REFRESH_AFTER,
    RETRY_INTERVAL,
    RETRY_INTERVAL_WITHOUT_KEYS,
    IssuerKeys,
)

NOW = 1_000_000.0


class PublishedKeys:
    """The published keys, and the number of fetches."""

    def __init__(self) -> None:
        self.key = SigningKey.generate(kid="one")
        self.fetched = 0
        self.changed = 0
        self.error: Exception | None = None
        self.held: asyncio.Event | None = None
        self.keys = IssuerKeys(self.fetch, self.note)

    def note(self) -> None:
        self.changed += 1

    async def fetch(self) -> bytes:
        self.fetched += 1
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        return json.dumps({"keys": [self.key.public]}).encode()


async def test_keys_are_fetched_once_and_cached() -> None:
    it = PublishedKeys()
    assert it.keys.get_without_fetch(NOW) is None
    keys = await it.keys.refresh(NOW)
    assert it.keys.get_without_fetch(NOW + REFRESH_AFTER - 1) is keys
    assert (it.fetched, it.changed) == (1, 1)


async def test_concurrent_callers_share_one_fetch() -> None:
    it = PublishedKeys()
    it.held = asyncio.Event()
    waiting = [asyncio.ensure_future(it.keys.refresh(NOW)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the caller that began it
    it.held.set()
    assert len({id(keys) for keys in await asyncio.gather(*waiting[1:])}) == 1
    assert it.fetched == 1


async def test_stale_keys_are_refreshed_by_one_caller() -> None:
    it = PublishedKeys()
    old = await it.keys.refresh(NOW)
    it.held = asyncio.Event()
    assert it.keys.get_without_fetch(NOW + REFRESH_AFTER) is None
    looking = asyncio.ensure_future(it.keys.refresh(NOW + REFRESH_AFTER))
    await asyncio.sleep(0)
    assert it.keys.get_without_fetch(NOW + REFRESH_AFTER) is old  # the others continue
    it.held.set()
    assert await looking is old  # nothing has changed
    assert (it.fetched, it.changed) == (2, 1)
    assert it.keys.get_without_fetch(NOW + REFRESH_AFTER + 1) is old


async def test_refetch_rate_is_limited() -> None:
    it = PublishedKeys()
    await it.keys.refresh(NOW)
    await it.keys.refresh(NOW + 1)
    assert it.fetched == 2
    assert not it.keys.may_refetch(NOW + RETRY_INTERVAL)
    await it.keys.refresh(NOW + RETRY_INTERVAL)
    assert it.fetched == 2
    assert it.keys.may_refetch(NOW + RETRY_INTERVAL + 1)
    it.key = SigningKey.generate(kid="two")
    await it.keys.refresh(NOW + RETRY_INTERVAL + 1)
    assert (it.fetched, it.changed) == (3, 2)


async def test_new_key_right_after_fetch_is_found() -> None:
    it = PublishedKeys()
    for now in (NOW, NOW + 2 * REFRESH_AFTER):
        await it.keys.refresh(now)
        it.key = SigningKey.generate()
        assert it.keys.may_refetch(now + 1)
        await it.keys.refresh(now + 1)
        assert it.keys.get_without_fetch(now + 1) is not None
    assert (it.fetched, it.changed) == (4, 3)


async def test_unknown_key_fetches_do_not_block_refresh() -> None:
    it = PublishedKeys()
    await it.keys.refresh(NOW)
    await it.keys.refresh(NOW + REFRESH_AFTER - 1)
    it.key = SigningKey.generate(kid="two")
    assert it.keys.get_without_fetch(NOW + 2 * REFRESH_AFTER - 1) is None


async def test_caller_joins_running_fetch() -> None:
    it = PublishedKeys()
    await it.keys.refresh(NOW)
    it.held = asyncio.Event()
    looking = asyncio.ensure_future(it.keys.refresh(NOW + RETRY_INTERVAL))
    await asyncio.sleep(0)
    assert it.keys.may_refetch(NOW + RETRY_INTERVAL)
    it.held.set()
    await looking
    assert not it.keys.may_refetch(NOW + RETRY_INTERVAL)


async def test_old_keys_last_a_day_while_issuer_is_down() -> None:
    it = PublishedKeys()
    old = await it.keys.refresh(NOW)
    it.error = OSError("away")
    assert await it.keys.refresh(NOW + REFRESH_AFTER) is old
    assert it.keys.get_without_fetch(NOW + REFRESH_AFTER + 1) is old  # no second request at once
    assert await it.keys.refresh(NOW + MAX_AGE - 1) is old
    with pytest.raises(OSError, match="away"):
        await it.keys.refresh(NOW + MAX_AGE + RETRY_INTERVAL)
    assert it.keys.get_without_fetch(NOW + MAX_AGE + RETRY_INTERVAL) is None
    it.error = None
    await it.keys.refresh(NOW + MAX_AGE + 2 * RETRY_INTERVAL)
    assert it.keys.get_without_fetch(NOW + MAX_AGE + 2 * RETRY_INTERVAL) is not None


async def test_missing_keys_are_retried_soon() -> None:
    it = PublishedKeys()
    it.error = OSError("away")
    for now in (NOW, NOW + RETRY_INTERVAL_WITHOUT_KEYS - 0.1):
        with pytest.raises(OSError, match="away"):
            await it.keys.refresh(now)
    assert it.fetched == 1
    it.error = None
    await it.keys.refresh(NOW + RETRY_INTERVAL_WITHOUT_KEYS)
    assert it.fetched == 2


async def test_malformed_keys_do_not_replace_old_ones() -> None:
    it = PublishedKeys()
    old = await it.keys.refresh(NOW)
    it.error = MalformedJws("nonsense")
    assert await it.keys.refresh(NOW + REFRESH_AFTER) is old
    assert it.changed == 1


def test_fetch_of_closed_loop_is_ignored() -> None:
    it = PublishedKeys()
    it.held = asyncio.Event()

    async def leave() -> None:
        looking = asyncio.ensure_future(it.keys.refresh(NOW))
        await asyncio.sleep(0)
        looking.cancel()

    asyncio.run(leave())
    it.held = None
    asyncio.run(it.keys.refresh(NOW + RETRY_INTERVAL))
    assert it.fetched == 2
