"""Store that reports the duration of each call to observers. A server uses it if an observer wants that."""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from trunkline.errors import Conflict, Fenced, StoreError
from trunkline.facts import Observers, StoreCallEnded
from trunkline.stores.store import Held, Item, Lease, Store, Write

__all__ = ["ObservedStore"]

T = TypeVar("T")

_OUTCOMES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (Conflict, "conflict"),
    (Fenced, "fenced"),
    (StoreError, "unavailable"),
    (asyncio.CancelledError, "cancelled"),
    (GeneratorExit, "cancelled"),
)  # the first match counts


class ObservedStore:
    """Wraps a store. Calls take effect when the wrapped store makes them, in the same order."""

    def __init__(self, store: Store, observers: Observers) -> None:
        self._store = store
        self._observers = observers
        self.lasting = store.lasting
        self.bus, self.open, self.close, self.watch = store.bus, store.open, store.close, store.watch  # not timed

    def __repr__(self) -> str:
        return repr(self._store)

    async def get(self, key: str) -> Item | None:
        """Return an item."""
        return await self._time("get", self._store.get(key))

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """Return a page of items."""
        return await self._time("scan", self._store.scan(prefix, after=after, limit=limit))

    def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> Awaitable[int]:
        """Commit writes."""
        return self._time("commit", self._store.commit(writes, fence=fence, release=release))

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Awaitable[Lease | Held]:
        """Acquire a lease."""
        return self._time("acquire", self._store.acquire(name, holder, ttl, over=over, writes=writes))

    def renew(self, lease: Lease, ttl: float) -> Awaitable[Lease]:
        """Renew a lease."""
        return self._time("renew", self._store.renew(lease, ttl))

    def release(self, lease: Lease) -> Awaitable[None]:
        """Release a lease."""
        return self._time("release", self._store.release(lease))

    def _time(self, operation: str, call: Awaitable[T]) -> Awaitable[T]:
        began = monotonic()
        if not isinstance(call, asyncio.Future):
            return self._await(operation, began, call)
        call.add_done_callback(partial(self._on_done, operation, began))
        return call

    def _on_done(self, operation: str, began: float, call: "asyncio.Future[Any]") -> None:
        self._report(operation, began, asyncio.CancelledError() if call.cancelled() else call.exception())

    async def _await(self, operation: str, began: float, call: Awaitable[T]) -> T:
        try:
            result = await call
        except BaseException as error:
            self._report(operation, began, error)
            raise
        self._report(operation, began, None)
        return result

    def _report(self, operation: str, began: float, error: BaseException | None) -> None:
        outcome = (
            "ok" if error is None else next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "error")
        )
        now = monotonic()
        self._observers.on(
            StoreCallEnded(connection=0, at=now, operation=operation, outcome=outcome, seconds=now - began)
        )
