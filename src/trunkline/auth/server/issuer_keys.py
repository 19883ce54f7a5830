"""Cache of an issuer's public keys: fetched on first use, and refreshed when they may have changed.

A caller can send tokens with invented key ids, so the rate of refreshes is limited. If the issuer is unreachable, its
old keys remain valid for a while: the signatures that they verify do not change.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.auth.jose import KeySet

__all__ = ["IssuerKeys"]

RETRY_INTERVAL: Final = 30.0  # seconds between two fetches
RETRY_INTERVAL_WITHOUT_KEYS: Final = 2.0  # the same, while there are no keys
REFRESH_AFTER: Final = 600.0  # seconds after which keys are fetched again
MAX_AGE: Final = 86400.0  # seconds for which keys are used while the issuer is unreachable


class IssuerKeys:
    """The published keys of one issuer."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], on_change: Callable[[], None]) -> None:
        """`fetch` returns the issuer's JWK Set; `on_change` is called when its content changes."""
        self._fetch = fetch
        self._on_change = on_change
        self._published = b""
        self._keys: KeySet | None = None
        self._fetched_at = 0.0
        self._attempted_at: float | None = None  # time of the last attempt
        self._missed_at: float | None = None  # time of the last fetch because of an unknown key id
        self._error: Exception | None = None  # of the last attempt
        self._fetch_task: asyncio.Task[None] | None = None

    def get_without_fetch(self, now: float) -> KeySet | None:
        """Return the keys if they are fresh, or if a fetch is running or may not start yet; otherwise None."""
        keys = self._usable_keys(now)
        return None if self._is_stale(now) and self._may_fetch(now) and self._running_fetch() is None else keys

    def may_refetch(self, now: float) -> bool:
        """Return whether newer keys may be available: a fetch is running, or the last one is long ago."""
        return self._may_fetch(now) or self._running_fetch() is not None

    def _usable_keys(self, now: float) -> KeySet | None:
        return self._keys if now - self._fetched_at < MAX_AGE else None

    def _is_stale(self, now: float) -> bool:
        return now - self._fetched_at >= REFRESH_AFTER

    def _may_fetch(self, now: float) -> bool:
        """Return whether a fetch may start. Refreshes and fetches for unknown key ids are limited separately."""
        wait = RETRY_INTERVAL_WITHOUT_KEYS if self._keys is None else RETRY_INTERVAL
        last = self._attempted_at if self._is_stale(now) else self._missed_at
        return last is None or not 0 <= now - last < wait

    async def refresh(self, now: float) -> KeySet:
        """Fetch the keys if allowed, and return the current ones. Concurrent callers share one request. Raises the
        error of `fetch` if there are no usable keys."""
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
        """Return the running fetch, unless it belongs to a closed loop."""
        flight = self._fetch_task
        if flight is None or flight.done() or flight.get_loop() is not asyncio.get_running_loop():
            return None
        return flight

    async def _load(self, now: float) -> None:
        """Fetch once. An error is stored for callers that have no usable keys."""
        try:
            published = await self._fetch()
            if published != self._published:
                self._keys, self._published = KeySet(published), published
                self._on_change()
        except Exception as error:  # noqa: BLE001 - raised in refresh()
            self._error = error
        else:
            self._fetched_at = now
