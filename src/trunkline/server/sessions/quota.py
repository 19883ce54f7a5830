"""How many sessions a principal has in all processes that share a store.

Each session has an entry in the home of whose it is. It is put there before anything else is known of the session, and
then they are counted: of two who come at once for the last, both may be turned away, and never are there too many. An
entry is there for as long as its session can be; a process that dies with a session leaves it to who finds it next.
"""

import asyncio
import contextlib
from typing import Final

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import StoreError
from trunkline.server.access.owner_id import owner_from_name
from trunkline.stores.store import Delete, Put, Store, key_of

__all__ = ["QuotaEntry", "SessionQuota", "unused_lifetime"]

_PAGE_SIZE: Final = 500
_TTL_SLACK: Final = 1.1  # times the time that a session may be unused: it is not said more often that it was used


def unused_lifetime(settings: Settings) -> float | None:
    """Seconds that a session can be there without being used; None if nothing ends it earlier than others."""
    confirm, unused = settings.session_confirm_timeout, settings.session_unused_ttl
    if confirm is None or unused is None:
        return None
    longest = confirm + unused + 2 * settings.session_sweep
    return longest if settings.session_ttl is None else min(longest, _TTL_SLACK * settings.session_ttl)


class SessionQuota:
    """Counts sessions."""

    def __init__(self, store: Store, settings: Settings, wall: Clock) -> None:
        self._store = store
        self._limit = settings.max_sessions_per_principal
        self._entry_ttl = (
            None if settings.session_ttl is None else _TTL_SLACK * settings.session_ttl + settings.session_sweep
        )
        self._unused_ttl = unused_lifetime(settings)
        self._wall = wall
        self._renewals: set[asyncio.Future[int]] = set()

    def entry(self, ident: str, principal_name: str) -> "QuotaEntry | None":
        """The entry of a session of whoever has that name; None if nobody counts them."""
        if not principal_name or self._limit is None:
            return None
        return QuotaEntry(self, key_of("owner", owner_from_name(principal_name), "open", ident))

    def _entry_write(self, key: str, ttl: float | None) -> Put:
        return Put(key, b"", None if ttl is None else self._wall.now() + ttl)

    async def add(self, key: str) -> bool:
        """Adds an entry, if there may be one more. It lasts until the session is used, or could have been."""
        await self._store.commit(
            [self._entry_write(key, self._entry_ttl if self._unused_ttl is None else self._unused_ttl)]
        )
        if await self._count(key.rpartition("/")[0] + "/") <= (self._limit or 0):
            return True
        await self._store.commit([Delete(key)])
        return False

    async def _count(self, prefix: str) -> int:
        number, after = 0, ""
        while page := await self._store.scan(prefix, after=after, limit=_PAGE_SIZE):
            number += len(page)
            after = page[-1].key
        return number

    def renew(self, key: str) -> None:
        """Has an entry last, soon. If that cannot be written, it is when it is said next."""
        renewing = asyncio.ensure_future(self._store.commit([self._entry_write(key, self._entry_ttl)]))
        self._renewals.add(renewing)
        renewing.add_done_callback(self._finish_renewal)

    def _finish_renewal(self, renewal: "asyncio.Future[int]") -> None:
        self._renewals.discard(renewal)
        if not renewal.cancelled():
            renewal.exception()

    async def remove(self, key: str) -> None:
        """Takes an entry out. One that cannot be taken out runs out by itself."""
        with contextlib.suppress(StoreError):
            await self._store.commit([Delete(key)])

    async def close(self) -> None:
        """Waits for what is being written."""
        if self._renewals:
            await asyncio.wait(self._renewals)


class QuotaEntry:
    """One session, as it is counted."""

    def __init__(self, quota: SessionQuota, key: str) -> None:
        self._quota = quota
        self._key = key

    async def add(self) -> bool:
        """Counts it, if its owner may have one more."""
        return await self._quota.add(self._key)

    def renew(self) -> None:
        """It is still there."""
        self._quota.renew(self._key)

    async def remove(self) -> None:
        """It has ended."""
        await self._quota.remove(self._key)
