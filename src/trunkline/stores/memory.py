"""In-memory store, the default. Its content is lost when the process exits.

Items are grouped by home, so a scan within one home reads only that home. An expired item is invisible at once; a sweep
frees its memory once per minute while there are items with an expiry. The sweep's queue has one entry per key, however
often its expiry is extended.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from msgspec.structs import replace

from trunkline.clock import Clock, Timer, WallClock
from trunkline.errors import ConfigError, Conflict, MisuseError, NotExecuted
from trunkline.stores import validation
from trunkline.stores.store import ABSENT, Changed, Held, Item, Lease, Put, Watch, Write, home
from trunkline.stores.watches import Watchers

__all__ = ["SWEEP_INTERVAL", "MemoryStore"]

SWEEP_INTERVAL: Final = 60.0  # seconds
_QUEUE_SLACK: Final = 64  # stale queue entries that are tolerated, in addition to one per live entry


class MemoryStore:
    """Store in the memory of this process. Writes that would make its keys and values larger than `max_bytes` together
    are refused; None: as large as the memory allows."""

    def __init__(self, *, clock: Clock | None = None, max_bytes: int | None = None) -> None:
        if max_bytes is not None and max_bytes <= 0:
            raise ConfigError(f"max_bytes is more than 0, or None, not {max_bytes}")
        self._max_bytes = max_bytes
        self._bytes = 0  # of all items; counted only if there is a limit
        self._clock: Clock = WallClock() if clock is None else clock
        self._open: bool | None = None  # None: not opened yet
        self._homes: dict[str, dict[str, Item]] = {}
        self._leases: dict[str, Lease] = {}
        self._last_version = 0  # last version or token
        self._watchers = Watchers()
        self._queued_expiry: dict[str, float] = {}  # by key, its valid queue entry
        self._queue: list[tuple[float, str]] = []
        self._sweep_timer: Timer | None = None

    @classmethod
    def ready(cls, clock: Clock | None = None) -> "MemoryStore":
        """Return a store that is already open, since opening needs no I/O."""
        store = cls(clock=clock)
        store._open = True
        return store

    @property
    def lasting(self) -> bool:
        """False: the content does not outlive this process."""
        return False

    def bus(self) -> None:
        """Return None: no other process shares this store."""

    async def open(self) -> None:
        """Open the store."""
        if self._open is None:
            self._open = True
        self._require_open()

    async def close(self) -> None:
        """Close the store and drop its content."""
        self._open = False
        self._watchers.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for table in (self._homes, self._leases, self._queued_expiry, self._queue):
            table.clear()

    def _require_open(self) -> float:
        """Return the time; raise if the store is not open."""
        if not self._open:
            if self._open is None:
                raise MisuseError("the store is not open yet")
            raise NotExecuted("the store is closed")
        return self._clock.now()

    # --- items -------------------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        """Return the item of a key, or None."""
        now = self._require_open()
        validation.check_key(key)
        return self._find(key, now)

    def _find(self, key: str, now: float) -> Item | None:
        item = self._homes.get(home(key), _EMPTY_HOME).get(key)
        return None if item is None or (item.expires is not None and item.expires <= now) else item

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """Return a page of items in key order."""
        now = self._require_open()
        validation.check_page(prefix, after, limit)
        keys = sorted(key for key in self._keys(prefix) if key > after and key.startswith(prefix))
        found = (self._find(key, now) for key in keys)
        return list(islice((item for item in found if item is not None), limit))

    def _keys(self, prefix: str) -> Iterator[str]:
        """Return the keys that may start with a prefix: those of one home if the prefix names one."""
        at = home(prefix)
        return chain.from_iterable(self._homes.values()) if at == prefix else iter(self._homes.get(at, _EMPTY_HOME))

    async def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> int:
        """Apply all writes or none, without waiting."""
        now = self._require_open()
        validation.check_writes(writes, None if fence is None else fence.name)
        if fence is not None:
            validation.check_lease_held(self._leases.get(fence.name), fence, now)
        self._check_versions(writes, now)
        self._make_room(writes)
        self._last_version += 1
        self._write_all(writes)
        if fence is not None and release:
            del self._leases[fence.name]
        return self._last_version

    def _check_versions(self, writes: Sequence[Write], now: float) -> None:
        """Raise `Conflict` if a write expects another version."""
        for write in writes:
            if write.version is not None:
                found = self._find(write.key, now)
                version = ABSENT if found is None else found.version
                if version != write.version:
                    raise Conflict(write.key, write.version, version)

    def _make_room(self, writes: Sequence[Write]) -> None:
        """Raise `NotExecuted` if the store would grow beyond its limit, even without its expired items."""
        if self._max_bytes is None or self._bytes + self._growth(writes) <= self._max_bytes:
            return
        self._free_expired()
        growth = self._growth(writes)
        if growth > 0 and self._bytes + growth > self._max_bytes:
            raise NotExecuted(
                f"the store in memory is full: it holds {self._bytes} bytes of at most {self._max_bytes} (max_bytes)"
            )

    def _growth(self, writes: Sequence[Write]) -> int:
        """Return the bytes by which the store grows with some writes to one home."""
        items = self._homes.get(home(writes[0].key), _EMPTY_HOME) if writes else _EMPTY_HOME
        added = sum(_size(write.key, write.value) for write in writes if isinstance(write, Put))
        return added - sum(_size(write.key, items[write.key].value) for write in writes if write.key in items)

    def _write_all(self, writes: Sequence[Write]) -> None:
        """Apply the writes of one home under the last version."""
        at = home(writes[0].key)
        items = self._homes.setdefault(at, {})
        if self._max_bytes is not None:
            self._bytes += self._growth(writes)
        for write in writes:
            if isinstance(write, Put):
                items[write.key] = Item(write.key, write.value, self._last_version, write.expires)
                if write.expires is not None:
                    self._queue_expiry(write.key, write.expires)
            else:
                items.pop(write.key, None)
                self._queued_expiry.pop(write.key, None)
        if not items:
            del self._homes[at]
        self._watchers.notify(write.key for write in writes)

    # --- leases ------------------------------------------------------------------------------------

    async def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Lease | Held:
        """Grant the lease if it is free, expired or held under the token `over`; apply `writes` with it."""
        now = self._require_open()
        validation.check_lease(name, holder, ttl, writes)
        granted = validation.decide_lease(
            self._leases.get(name), Lease(name, holder, self._last_version + 1, now + ttl), now, over
        )
        if isinstance(granted, Lease):
            self._check_versions(writes, now)
            self._make_room(writes)
            self._last_version += 1
            self._leases[name] = granted
            self._schedule_sweep()
            if writes:
                self._write_all(writes)
        return granted

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend the lease to `ttl` seconds from now."""
        now = self._require_open()
        validation.check_lease(lease.name, lease.holder, ttl)
        validation.check_lease_held(self._leases.get(lease.name), lease, now)
        renewed = self._leases[lease.name] = replace(lease, expires=now + ttl)
        return renewed

    async def release(self, lease: Lease) -> None:
        """Release the lease."""
        self._require_open()
        current = self._leases.get(lease.name)
        if current is not None and current.token == lease.token:
            del self._leases[lease.name]

    # --- watches and expiry ------------------------------------------------------------------------

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Call back when keys with this prefix change."""
        self._require_open()
        return self._watchers.add(prefix, callback)

    def _queue_expiry(self, key: str, expires: float) -> None:
        queued = self._queued_expiry.get(key)
        if queued is None or expires < queued:  # a later expiry is handled when the queued entry is due
            self._queued_expiry[key] = expires
            heapq.heappush(self._queue, (expires, key))
            if len(self._queue) > _QUEUE_SLACK + 2 * len(self._queued_expiry):
                self._queue = [(due, of) for of, due in self._queued_expiry.items()]
                heapq.heapify(self._queue)
        self._schedule_sweep()

    def _schedule_sweep(self) -> None:
        if self._sweep_timer is None:
            self._sweep_timer = self._clock.call_at(self._clock.now() + SWEEP_INTERVAL, self._run_sweep)

    def _run_sweep(self) -> None:
        """Free the memory of expired items and leases."""
        self._sweep_timer = None
        before = len(self._homes)
        now = self._free_expired()
        self._leases = {name: lease for name, lease in self._leases.items() if lease.expires > now}
        if len(self._homes) < before / 2:  # dictionaries do not shrink on deletion
            self._homes, self._queued_expiry = dict(self._homes), dict(self._queued_expiry)
        if self._queue or self._leases:
            self._schedule_sweep()

    def _free_expired(self) -> float:
        """Delete expired items; return the time."""
        now = self._clock.now()
        while self._queue and self._queue[0][0] <= now:
            due, key = heapq.heappop(self._queue)
            if self._queued_expiry.get(key) == due:
                del self._queued_expiry[key]
                self._expire(key, now)
        return now

    def _expire(self, key: str, now: float) -> None:
        """Delete an expired item, or queue it again if its expiry was extended."""
        items = self._homes.get(home(key), _EMPTY_HOME)
        item = items.get(key)
        if item is None or item.expires is None:
            return
        if item.expires > now:
            self._queue_expiry(key, item.expires)
            return
        del items[key]
        if self._max_bytes is not None:
            self._bytes -= _size(key, item.value)
        if not items:
            del self._homes[home(key)]


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value)


_EMPTY_HOME: Final[dict[str, Item]] = {}
