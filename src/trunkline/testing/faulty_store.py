"""A store whose calls fail or wait, for tests of error handling:

    store = FaultyStore(SqliteStore("state.db"))
    server = Server("shop", store=store)
    ...
    fault = store.fail()  # no write takes effect
    ...
    fault.lift()

    fault = store.hold("acquire", key="/tasks/")
    await fault.reached.wait()  # the program is waiting for a lease on a task
    ...
    fault.lift()  # it gets it

Nothing here waits for real time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from trunkline.errors import MisuseError, NotExecuted, StoreUnavailable
from trunkline.stores.bus import Bus
from trunkline.stores.store import Changed, Held, Item, Lease, Store, Watch, Write

__all__ = ["FaultyStore", "StoreFault"]

StoreMethod = Literal["get", "scan", "commit", "acquire", "renew", "release"]
FaultKind = Literal["hold", "fail", "fail after"]

StoreCall = Callable[[], Awaitable[Any]]
"""A call of the wrapped store."""

_WRITING: Final[tuple[StoreMethod, ...]] = ("commit", "acquire", "renew", "release")
_CALLS: Final = frozenset({"get", "scan", *_WRITING})


class StoreFault:
    """A fault that applies until `lift`, or to a number of calls. The first affected call sets `reached`."""

    def __init__(
        self, kind: FaultKind, calls: Sequence[StoreMethod], key: str, times: int | None, faults: "list[StoreFault]"
    ) -> None:
        self.reached = asyncio.Event()
        self.calls = 0  # affected calls
        self._kind = kind
        self._names = frozenset(calls)
        self._key = key
        self._times = times
        self._held: list[tuple[StoreCall, asyncio.Future[Awaitable[Any]]]] = []
        self._faults = faults

    def lift(self) -> None:
        """End the fault. Held calls take effect now, before any later call."""
        if self in self._faults:
            self._faults.remove(self)
        calls, self._held = self._held, []
        for act, making in calls:
            if not making.done():
                making.set_result(asyncio.ensure_future(act()))

    def applies_to(self, call: StoreMethod, keys: Sequence[str]) -> bool:
        """Return whether the fault affects a call that uses these keys."""
        return call in self._names and any(self._key in key for key in keys)

    def apply(self, act: StoreCall) -> Awaitable[Any]:
        """Make a call that meets the fault."""
        self.calls += 1
        self.reached.set()
        if self.calls == self._times:
            self._faults.remove(self)
        if self._kind != "hold":
            return self._fail(act)
        making: asyncio.Future[Awaitable[Any]] = asyncio.get_running_loop().create_future()
        self._held.append((act, making))
        return _await_held_call(making)

    async def _fail(self, act: StoreCall) -> Any:
        if self._kind == "fail":
            raise NotExecuted("the store is unavailable because of a fault")
        await act()
        raise StoreUnavailable("the store does not respond because of a fault")


async def _await_held_call(making: "asyncio.Future[Awaitable[Any]]") -> Any:
    return await (await making)


class FaultyStore:
    """Wraps a store and makes calls fail or wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._faults: list[StoreFault] = []

    # --- faults ----------------------------------------------------------------------------------

    def fail(self, *calls: StoreMethod, key: str = "", done: bool = False, times: int | None = None) -> StoreFault:
        """Make calls raise `NotExecuted`: the named ones, or all that write, if they use a key that contains `key`.
        With `done` they take effect, but the confirmation is lost: they raise `StoreUnavailable`."""
        return self._add("fail after" if done else "fail", calls, key, times)

    def hold(self, *calls: StoreMethod, key: str = "", times: int | None = None) -> StoreFault:
        """Make calls wait until the fault is lifted; then they take effect in order. Unaffected calls may overtake
        them."""
        return self._add("hold", calls, key, times)

    def _add(self, kind: FaultKind, calls: Sequence[StoreMethod], key: str, times: int | None) -> StoreFault:
        if unknown := sorted(set(calls) - _CALLS):
            raise MisuseError(f"a store has no call {unknown[0]!r}; {', '.join(sorted(_CALLS))} can fail")
        fault = StoreFault(kind, calls or _WRITING, key, times, self._faults)
        self._faults.append(fault)
        return fault

    def _call(self, call: StoreMethod, keys: Sequence[str], act: StoreCall) -> Awaitable[Any]:
        for fault in self._faults:
            if fault.applies_to(call, keys):
                return fault.apply(act)
        return act()

    # --- the store -------------------------------------------------------------------------------

    @property
    def lasting(self) -> bool:
        """Whether stored items outlive this process."""
        return self._store.lasting

    def bus(self) -> Bus | None:
        """Return the store's bus, without faults."""
        return self._store.bus()

    async def open(self) -> None:
        """Open the store."""
        await self._store.open()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Watch keys of the store, without faults."""
        return self._store.watch(prefix, callback)

    async def get(self, key: str) -> Item | None:
        """Read an item."""
        return await self._call("get", (key,), lambda: self._store.get(key))

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """Read a page of items."""
        return await self._call("scan", (prefix,), lambda: self._store.scan(prefix, after=after, limit=limit))

    def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> Awaitable[int]:
        """Commit some writes."""
        keys = [write.key for write in writes]
        return self._call("commit", keys, lambda: self._store.commit(writes, fence=fence, release=release))

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Awaitable[Lease | Held]:
        """Acquire a lease, with some writes."""
        keys = [name, *(write.key for write in writes)]
        return self._call("acquire", keys, lambda: self._store.acquire(name, holder, ttl, over=over, writes=writes))

    def renew(self, lease: Lease, ttl: float) -> Awaitable[Lease]:
        """Renew a lease."""
        return self._call("renew", (lease.name,), lambda: self._store.renew(lease, ttl))

    def release(self, lease: Lease) -> Awaitable[None]:
        """Release a lease."""
        return self._call("release", (lease.name,), lambda: self._store.release(lease))
