"""The keys of an issuer: fetched when they are first needed, kept, and fetched anew when they may have changed.

Whoever sends tokens can make us look for keys that do not exist, so that is done at most so often. While the issuer
cannot be reached its old keys are good for a while: what it has signed is not worse for that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.auth.jose import KeySet

__all__ = ["IssuerKeys"]

RETRY_INTERVAL: Final = 30.0  # seconds between two attempts to fetch
RETRY_INTERVAL_WITHOUT_KEYS: Final = 2.0  # the same, while there are none at all
REFRESH_AFTER: Final = 600.0  # seconds after which keys are looked at again
MAX_AGE: Final = 86400.0  # seconds for which keys are used that cannot be fetched any more


class IssuerKeys:
    """The published keys of one issuer."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], on_change: Callable[[], None]) -> None:
        """`fetch` gets what the issuer publishes now; `changed` is told when that is not what it was."""
        self._fetch = fetch
        self._on_change = on_change
        self._published = b""
        self._keys: KeySet | None = None
        self._fetched_at = 0.0
        self._attempted_at: float | None = None  # when they were last fetched, or should have been
        self._missed_at: float | None = None  # when they were last fetched for the sake of one that was not among them
        self._error: Exception | None = None  # of the last attempt
        self._fetch_task: asyncio.Task[None] | None = None

    def get_without_fetch(self, now: float) -> KeySet | None:
        """The keys, if nobody has to look for them first: they are fresh, or somebody is looking already."""
        keys = self._usable_keys(now)
        return None if self._is_stale(now) and self._may_fetch(now) and self._running_fetch() is None else keys

    def may_refetch(self, now: float) -> bool:
        """Whether others may be found than those at hand: somebody is looking, or the last attempt is long ago."""
        return self._may_fetch(now) or self._running_fetch() is not None

    def _usable_keys(self, now: float) -> KeySet | None:
        return self._keys if now - self._fetched_at < MAX_AGE else None

    def _is_stale(self, now: float) -> bool:
        return now - self._fetched_at >= REFRESH_AFTER

    def _may_fetch(self, now: float) -> bool:
        """Keys that are due may be fetched, whoever has looked for others; and the other way round."""
        wait = RETRY_INTERVAL_WITHOUT_KEYS if self._keys is None else RETRY_INTERVAL
        last = self._attempted_at if self._is_stale(now) else self._missed_at
        return last is None or not 0 <= now - last < wait

    async def refresh(self, now: float) -> KeySet:
        """The keys as they are now, or as they were. All who wait wait for one request. Raises what `fetch` raises,
        if there are no keys to go on with."""
        flight = self._running_fetch()
        if flight is None and self._may_fetch(now):
            self._attempted_at = now
            if not self._is_stale(now):
                self._missed_at = now
            flight = self._fetch_task = asyncio.ensure_future(self._load(now))
        if flight is not None:
            await asyncio.shield(flight)
        keys = self._usable_keys(now)
        if keys is None:
            raise self._error or LookupError("there are no keys")
        return keys

    def _running_fetch(self) -> "asyncio.Task[None] | None":
        """The request that is under way, unless it was for a loop that has ended."""
        flight = self._fetch_task
        if flight is None or flight.done() or flight.get_loop() is not asyncio.get_running_loop():
            return None
        return flight

    async def _load(self, now: float) -> None:
        """Fetches once. What goes wrong is kept for those who cannot do without."""
        try:
            published = await self._fetch()
            if published != self._published:
                self._keys, self._published = KeySet(published), published
                self._on_change()
        except Exception as error:  # noqa: BLE001 - raised by whoever needs the keys
            self._error = error
        else:
            self._fetched_at = now
