"""The seam of stores: what has to outlive a call, a connection or a process is kept behind it.

A store keeps values, which are bytes, under keys. It may be shared by many processes, on one machine or on many, so
whatever one of them has read may have been changed by another since. Three things make that bearable:

- **Versions.** Every commit gives what it writes a new version. A write may name the version it was made for, and is
  refused (`Conflict`) if that is no longer the one that is there. No version of a key ever comes back, so what was
  deleted and made again is not mistaken for what it was.
- **Leases.** A lease is a right that one holder has for a time. Its token grows with each holder. A commit may name a
  lease as its fence, and is refused (`Fenced`) once that lease is lost: a holder who was asleep for too long cannot
  write over what its successor did, whatever it believes.
- **Watches** wake up. They say where to look again, and may say so twice or too often. What is true is what is read.

Keys are texts of two or more parts with `/` between them: `session/7f3a`, `session/7f3a/events/000012`. The first two
parts are the key's *home*. All that one commit writes, and its fence, have the same home: that is what a store can
change at once when it is spread over many machines. A store on Redis keeps it under `{session/7f3a}`, and the braces,
which no key can have itself, make the home the hash tag: one home lies in one slot. Keys are ordered by their code
points, which is the order of their bytes too.

Time is the time of day, in seconds since 1970. Processes that share a store must agree upon it, by much less than the
shortest lease; a store that many machines share may have a clock of its own, which decides.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from trunkline.stores.bus import Bus

__all__ = ["ABSENT", "Changed", "Delete", "Held", "Item", "Lease", "Put", "Store", "Watch", "Write", "home", "key_of"]

ABSENT: Final = 0
"""The version of what is not there."""


class Item(Struct, frozen=True):
    """What is kept under a key."""

    key: str
    value: bytes
    version: int
    expires: float | None = None  # from then on it is not there


class Put(Struct, frozen=True):
    """Keeps a value under a key, instead of what was there."""

    key: str
    value: bytes
    expires: float | None = None  # None: never; a Put says it anew each time
    version: int | None = None  # only if this is the version that is there, ABSENT for none; None: in any case


class Delete(Struct, frozen=True):
    """Keeps nothing under a key. To delete what is not there is no mistake, unless a version is named."""

    key: str
    version: int | None = None


Write = Put | Delete


class Lease(Struct, frozen=True):
    """A right that its holder has until it expires, is given back, or is asked for again."""

    name: str  # a text like a key, in a space of its own
    holder: str
    token: int  # greater than that of every holder before
    expires: float


class Held(Struct, frozen=True):
    """Somebody else has the lease, until then at least if it is renewed in time."""

    holder: str
    expires: float
    token: int


Changed = Callable[[frozenset[str] | None], None]
"""Is told the keys that were written or deleted, or None: anything may have been."""


class Watch(Protocol):
    """A watch that is kept."""

    def close(self) -> None:
        """Calls back no more, from now on."""
        ...


class Store(Protocol):
    """Keeps values. Every store behaves as it says here; `tests/contract/test_stores.py` holds them to it.

    A store belongs to one event loop of one process, and all of its methods are called there. Any number of calls may
    be under way at once. Each takes effect at one moment between its beginning and its end, for everybody who shares
    the store. Who is cancelled while waiting does not learn whether it took effect.

    What has expired is not there, to no method, from that moment on. That it has is nobody told.

    All raise `StoreUnavailable` if the store does not answer, `StoreUnusable` if it never will, and `MisuseError` for
    what no store could do.
    """

    @property
    def lasting(self) -> bool:
        """Whether what is kept outlives this process."""
        ...

    def bus(self) -> Bus | None:
        """A way to the other processes that share the store, open by itself; None if there can be none."""
        ...

    async def open(self) -> None:
        """Makes the store ready, or says why it cannot be. Whoever owns it does so once, before anything else, in the
        process that uses it."""
        ...

    async def get(self, key: str) -> Item | None:
        """What is kept under a key: the newest that has been committed, by whomever."""
        ...

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """Items whose keys start with a text and come after a key, in the order of their keys. Whoever goes on after
        the last key of each page, until a page is empty, sees all that stays there meanwhile, once. Items of one home
        in one page are of one moment."""
        ...

    def commit(self, writes: Sequence[Write], *, fence: Lease | None = None) -> Awaitable[int]:
        """Does all of some writes to one home, or nothing; returns the version that what was put has now. Versions are
        compared with what was there before; a key is written once at most. What one process asks for takes effect in
        the order in which it was asked for, though it is not waited for in between. Commits of one turn of the loop may
        be brought to the store together, yet each has an outcome of its own: `Conflict` or `Fenced` of one is no matter
        to the others. What was returned from is kept, as long as the store keeps anything: it outlives this process,
        however that ends, if the store does."""
        ...

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Awaitable[Lease | Held]:
        """The lease, if nobody else has it, or if who has it has the token `over`: the asker knows that holder to be
        gone, or does not care. Asking again as the same holder gives a lease with a new token, which replaces the one
        before; so no two parts of a program should ask as the same holder.

        Commit `writes` to the lease's home together with granting it. If another holder has the lease, nothing is
        written; if a version does not match, `Conflict` is raised and the lease stays as it was. The token of the lease
        is also the version of what was put."""
        ...

    def renew(self, lease: Lease, ttl: float) -> Awaitable[Lease]:
        """The same lease and token, with that much time from now. Raises `Fenced` if it is lost; a lease that has run
        out is, whether or not somebody else has it."""
        ...

    def release(self, lease: Lease) -> Awaitable[None]:
        """Gives a lease back. One that is lost stays lost."""
        ...

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Calls back on the loop, soon, when keys that start with a text are written or deleted from now on, by whoever
        shares the store. It is called once at least for each change, once for many if they come fast, and never from
        within a call of the store. If the store cannot say what has changed, it says None. What this store is asked for
        afterwards is done when the watch is in force: who watches, then reads, then waits, misses nothing."""
        ...

    async def close(self) -> None:
        """Finishes what is under way, and is of no use then: every call raises `StoreUnavailable`. Leases are kept
        until they run out. Closing twice is closing once."""
        ...


_RESERVED: Final = re.compile(r"[%/{}\x00-\x1f\x7f\ud800-\udfff\U0010ffff]")


def home(key: str) -> str:
    """The first two parts of a key."""
    end = key.find("/", key.find("/") + 1)
    return key if end < 0 else key[:end]


def key_of(*parts: str) -> str:
    """A key of any texts. What means something in keys is written as `%` and its number; no two come out the same."""
    return "/".join(_RESERVED.sub(_quoted, part) for part in parts)


def _quoted(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}" if found[0].isascii() else f"%u{ord(found[0]):06X}"
