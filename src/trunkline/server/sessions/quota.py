"""Session quota: counts the sessions of a principal over all processes that share a store.

Each session has an entry under the key of its owner. The entry is written before anything else of the session exists,
and then the entries are counted. If two sessions compete for the last place, both may be refused, but the quota is
never exceeded. An entry expires when its session does; if a process dies, its entries pass with the sessions to their
next holder.
"""

import asyncio
import contextlib
from typing import Final

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import StoreError
from trunkline.server.access.owner_id import owner_from_name
from trunkline.stores.store import Delete, Put, Store, key_of, scan_all

__all__ = ["SessionQuota", "unused_lifetime"]

_TTL_SLACK: Final = 1.1  # times `session_ttl`: uses are recorded only once in a tenth of it


def unused_lifetime(settings: Settings) -> float | None:
    """Return the seconds after which a session without any use after its handshake is gone; None if such sessions do
    not end earlier than others."""
    confirm, unused = settings.session_confirm_timeout, settings.session_unused_ttl
    if confirm is None or unused is None:
        return None
    longest = confirm + unused + 2 * settings.session_sweep
    return longest if settings.session_ttl is None else min(longest, _TTL_SLACK * settings.session_ttl)


class SessionQuota:
    """Counts the sessions of each principal."""

    def __init__(self, store: Store, settings: Settings, wall: Clock) -> None:
        self._store = store
        self._limit = settings.max_sessions_per_principal
        self._entry_ttl = (
            None if settings.session_ttl is None else _TTL_SLACK * settings.session_ttl + settings.session_sweep
        )
        self._unused_ttl = unused_lifetime(settings)
        self._wall = wall
        self._renewals: set[asyncio.Future[int]] = set()

    def key_of_entry(self, ident: str, principal_name: str) -> str | None:
        """Return the key of a session's entry; None if the principal is unknown or there is no quota."""
        if not principal_name or self._limit is None:
            return None
        return key_of("owner", owner_from_name(principal_name), "open", ident)

    def _entry_write(self, key: str, ttl: float | None) -> Put:
        return Put(key, b"", None if ttl is None else self._wall.now() + ttl)

    async def add(self, key: str) -> bool:
        """Add an entry. Return False and remove it if the quota is exceeded. The entry expires unless the session is
        used."""
        await self._store.commit(
            [self._entry_write(key, self._entry_ttl if self._unused_ttl is None else self._unused_ttl)]
        )
        if len(await scan_all(self._store, key.rpartition("/")[0] + "/")) <= (self._limit or 0):
            return True
        await self._store.commit([Delete(key)])
        return False

    def renew(self, key: str) -> None:
        """Extend the life of an entry in the background. If that fails, the next use of the session extends it."""
        renewing = asyncio.ensure_future(self._store.commit([self._entry_write(key, self._entry_ttl)]))
        self._renewals.add(renewing)
        renewing.add_done_callback(self._finish_renewal)

    def _finish_renewal(self, renewal: "asyncio.Future[int]") -> None:
        self._renewals.discard(renewal)
        if not renewal.cancelled():
            renewal.exception()

    async def remove(self, key: str) -> None:
        """Remove the entry of a session that has ended. If that fails, it expires."""
        with contextlib.suppress(StoreError):
            await self._store.commit([Delete(key)])

    async def close(self) -> None:
        """Wait for the renewals in progress."""
        if self._renewals:
            await asyncio.wait(self._renewals)
