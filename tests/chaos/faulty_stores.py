"""Defective stores. A campaign with one of them has to fail."""

import asyncio
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace
from tests.chaos.plan import Fault

from trunkline.errors import Fenced
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Lease, Write

__all__ = ["LOSING", "store"]

_LONG = 3600.0  # seconds
LOSING = 100  # one write in this many is lost


class _Losing:
    """Reports some writes as committed which it drops."""

    def __init__(self, *given: Any, seed: int, **more: Any) -> None:
        super().__init__(*given, **more)
        self._chance = Random(seed)
        self._version = 0

    def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> Any:
        """Commit most of the writes."""
        if left := self._left(writes):
            above: Any = super()
            kept = asyncio.ensure_future(above.commit(left, fence=fence, release=release))
            kept.add_done_callback(self._note)
            return kept
        lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        lost.set_result(self._version)
        return lost

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Any:
        """Grant a lease, and commit most of the writes that accompany it."""
        above: Any = super()
        return above.acquire(name, holder, ttl, over=over, writes=self._left(writes))

    def _left(self, writes: Sequence[Write]) -> list[Write]:
        return [write for write in writes if self._chance.randrange(LOSING)]

    def _note(self, kept: "asyncio.Future[int]") -> None:
        """Remember a version, to report it for lost writes."""
        if not kept.cancelled() and kept.exception() is None:
            self._version = kept.result()


class _Unfenced:
    """Accepts writes without the lease, and confirms leases that were lost."""

    def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> Any:
        """Commit."""
        above: Any = super()
        return asyncio.ensure_future(above.commit(writes))

    def renew(self, lease: Lease, ttl: float) -> Any:
        """Return the lease, or a copy of it."""
        above: Any = super()
        return asyncio.ensure_future(_believed(above.renew(lease, ttl), lease))


async def _believed(renewed: Awaitable[Lease], lease: Lease) -> Lease:
    try:
        return await renewed
    except Fenced:
        return replace(lease, expires=lease.expires + _LONG)


class _LosingFile(_Losing, SqliteStore):
    pass


class _LosingRedis(_Losing, RedisStore):
    pass


class _UnfencedFile(_Unfenced, SqliteStore):
    pass


class _UnfencedRedis(_Unfenced, RedisStore):
    pass


def store(where: str, seed: int, fault: Fault | None, **settings: Any) -> SqliteStore | RedisStore:
    """The store at a path or a URL; a correct one if there is no fault."""
    redis = where.startswith("redis")
    if fault == "losing":
        return _LosingRedis(where, seed=seed, **settings) if redis else _LosingFile(where, seed=seed, **settings)
    if fault == "unfenced":
        return _UnfencedRedis(where, **settings) if redis else _UnfencedFile(where, **settings)
    return RedisStore(where, **settings) if redis else SqliteStore(where, **settings)
