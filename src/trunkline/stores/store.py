"""Store protocol: durable state that outlives a call, a connection or a process.

A store maps keys to values, which are bytes. Many processes on one or several machines may share it, so a value may
change right after it was read. Three mechanisms deal with that:

- **Versions.** Every commit assigns a new version to what it writes. A write may name the version it expects; it fails
  with `Conflict` if the key has another one. Versions of a key never repeat, so a key that was deleted and created
  again is not mistaken for the earlier one.
- **Leases.** A lease belongs to one holder for a limited time. Its token grows with each holder. A commit may name a
  lease as its fence, and fails with `Fenced` once that lease is lost: a holder that was suspended for too long cannot
  overwrite the work of its successor.
- **Watches** are hints. They name keys to read again, and may repeat themselves. Only a read returns the current state.

Keys have two or more parts, separated by `/`: `session/7f3a`, `session/7f3a/events/000012`. The first two parts are the
key's *home*. All writes of one commit, and its fence, have the same home, because that is the unit that a distributed
store can change atomically. A store on Redis keeps it under `{session/7f3a}`; the braces, which no key may contain,
make the home the hash tag, so one home lies in one slot. Keys are ordered by code points, which is also their byte
order.

Times are wall-clock seconds since 1970. Processes that share a store must agree on the time, much more closely than the
shortest lease; a store that many machines share may use a clock of its own instead.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from trunkline.stores.bus import Bus

__all__ = [
    "ABSENT",
    "Changed",
    "Delete",
    "Held",
    "Item",
    "Lease",
    "Put",
    "Store",
    "Watch",
    "Write",
    "home",
    "key_of",
    "scan_all",
]

ABSENT: Final = 0
"""The version of a key that does not exist."""


class Item(Struct, frozen=True):
    """A stored value."""

    key: str
    value: bytes
    version: int
    expires: float | None = None  # the item is invisible from then on


class Put(Struct, frozen=True):
    """Write that stores a value under a key and replaces the previous one."""

    key: str
    value: bytes
    expires: float | None = None  # None: never; not inherited from the previous value
    version: int | None = None  # expected version, ABSENT for none; None: any


class Delete(Struct, frozen=True):
    """Write that deletes a key. Deleting an absent key is no error, unless a version is expected."""

    key: str
    version: int | None = None


Write = Put | Delete


class Lease(Struct, frozen=True):
    """An exclusive right of its holder, until it expires, is released, or is acquired again."""

    name: str  # formed like a key, in a namespace of its own
    holder: str
    token: int  # greater than the token of every earlier holder
    expires: float


class Held(Struct, frozen=True):
    """Another holder has the lease, at least until `expires` unless it releases it."""

    holder: str
    expires: float
    token: int


Changed = Callable[[frozenset[str] | None], None]
"""Callback with the keys that were written or deleted; None means that any key may have changed."""


class Watch(Protocol):
    """A registered watch."""

    def close(self) -> None:
        """Stop the callbacks."""
        ...


class Store(Protocol):
    """Stores values by key. `tests/contract/test_stores.py` checks every implementation against this contract.

    A store belongs to one event loop of one process; all methods are called there, any number of them concurrently.
    Each call takes effect at one instant between its start and its end, for all processes that share the store. A
    caller that is cancelled does not learn whether its call took effect.

    Expired items are invisible to all methods from the moment of expiry. Watches do not report expiry.

    All methods raise `StoreUnavailable` if the store does not respond; `NotExecuted`, a subclass, if the call is known
    to have had no effect; `StoreUnusable` if the store never will respond; and `MisuseError` for invalid arguments.
    """

    @property
    def lasting(self) -> bool:
        """Whether the content outlives this process."""
        ...

    def bus(self) -> Bus | None:
        """Return a bus to the other processes that share the store, to be opened separately, or None if there can be
        none."""
        ...

    async def open(self) -> None:
        """Open the store. Its owner calls this once, before any other method, in the process that uses the store."""
        ...

    async def get(self, key: str) -> Item | None:
        """Return the latest committed item of a key, or None."""
        ...

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """Return items whose keys start with `prefix` and follow `after`, in key order. Scanning on after the last
        key of each page, until a page is empty, returns every item that exists throughout, once. Items of one home
        in one page are a consistent snapshot."""
        ...

    def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> Awaitable[int]:
        """Apply all writes to one home, or none; return the version of the values that were put. With `release`,
        release the lease that is the fence together with the writes.

        Expected versions are compared with the state before the commit; each key is written at most once. Commits of
        one process take effect in the order of their calls, even if the caller does not await each. A store may batch
        the commits of one loop iteration, but each has an outcome of its own: a `Conflict` or `Fenced` of one does not
        affect others. When this returns, the writes are durable: they outlive this process, however it ends, if the
        store does.
        """
        ...

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Awaitable[Lease | Held]:
        """Acquire the lease if it is free, or if its holder has the token `over`, because the caller knows that holder
        to be dead or overrides it. Acquiring again as the same holder grants a new token and replaces the earlier
        lease, so two components must not use one holder name.

        Commit `writes` to the lease's home together with the grant. If another holder has the lease, nothing is
        written; if a version does not match, `Conflict` is raised and the lease does not change. The token of the lease
        is also the version of the values that were put.
        """
        ...

    def renew(self, lease: Lease, ttl: float) -> Awaitable[Lease]:
        """Extend the lease to `ttl` seconds from now, with the same token. Raises `Fenced` if it is lost; an expired
        lease is lost, even if no other process has acquired it."""
        ...

    def release(self, lease: Lease) -> Awaitable[None]:
        """Release a lease. Releasing a lost lease has no effect."""
        ...

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Call back on the loop soon after keys with this prefix are written or deleted, by any process that shares the
        store.

        There is at least one call for each change; a burst of changes may share one. A callback never runs within a
        call of the store. None means that the store cannot tell which keys have changed. Calls that follow on this
        store run after the watch is active, so a caller that watches, then reads, then waits misses no change.
        """
        ...

    async def close(self) -> None:
        """Finish pending calls and close the store; later calls raise `StoreUnavailable`. Leases stay until they
        expire. Idempotent."""
        ...


_PAGE_SIZE: Final = 500
_RESERVED: Final = re.compile(r"[%/{}\x00-\x1f\x7f\ud800-\udfff\U0010ffff]")
_RESERVED_BUT_SLASH: Final = re.compile(r"[%{}\x00-\x1f\x7f\ud800-\udfff\U0010ffff]")


def home(key: str) -> str:
    """Return the first two parts of a key."""
    end = key.find("/", key.find("/") + 1)
    return key if end < 0 else key[:end]


def key_of(*parts: str) -> str:
    """Build a key from arbitrary strings. Reserved characters become `%` and their number; the encoding is
    unambiguous."""
    joined = "/".join(parts)
    if joined.count("/") == len(parts) - 1 and _RESERVED_BUT_SLASH.search(joined) is None:
        return joined  # the common case
    return "/".join([_RESERVED.sub(_quoted, part) for part in parts])


async def scan_all(store: Store, prefix: str) -> list[Item]:
    """Return all items whose keys start with a prefix, in key order."""
    found: list[Item] = []
    while page := await store.scan(prefix, after=found[-1].key if found else "", limit=_PAGE_SIZE):
        found += page
    return found


def _quoted(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}" if found[0].isascii() else f"%u{ord(found[0]):06X}"
