"""A process's standing in the store: the lease that says it is alive, and what it takes to be declared dead.

A process is dead when somebody else holds the lease of its name. That can be only once it has run out, or by one who
knows for certain that nobody is there. Such a lease is held for so long that whoever wakes up later finds out.

A store that loses its data loses all leases, the record of every eviction, and its identity. So a process that has to
acquire its lease again compares the identity with the one that it joined under: if it is another, the process counts as
evicted, for another process may have been given what it holds. And while an identity is younger than a lease, silence
evicts no process: one that has not noticed the loss counts on its lease until it should have been renewed.
"""

import asyncio
import logging
from collections.abc import Awaitable
from secrets import token_hex
from typing import Final, TypeVar

from trunkline.clock import Clock
from trunkline.errors import Fenced, StoreUnavailable
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.shared_values import load_identity, read_identity
from trunkline.stores.store import Held, Lease, Store, key_of

__all__ = ["MARGIN", "Standing", "declare"]

MARGIN: Final = 0.1  # of a lease: for clocks that do not go alike
_DEAD: Final = 24 * 3600.0  # seconds that it can be found out
_FAREWELL: Final = 1.0  # seconds, at most, that are spent on giving a lease back

_log: Final = logging.getLogger("trunkline")

T = TypeVar("T")


class Standing:
    """The lease of one process, under one name."""

    def __init__(self, store: Store, seconds: float, clock: Clock, wall: Clock) -> None:
        self.name = token_hex(8)
        self.sure_until = float("-inf")  # on the clock of the loop: nobody can have declared this process dead
        self.settled_at = float("inf")  # on the clock of the loop: from then on silence may be taken for death
        self.identity: StoreIdentity | None = None  # of the store, when this process joined
        self._store = store
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._lease: Lease | None = None

    async def take(self) -> bool:
        """Takes the lease, for the first time or again; False if somebody has declared this process dead, or may have,
        since the store has lost its data."""
        last, asked = self._lease, self._clock.now()
        if last is not None and self._wall.now() >= last.expires + _DEAD / 2:
            return False  # somebody may have, and nobody would know by now
        lease = await answered(self._store.acquire(_lease(self.name), self.name, self._seconds), self._seconds)
        if isinstance(lease, Held):
            return False
        if self.identity is None:
            self._lease = lease  # so that it is released if the rest fails
            await self._identify(lease, asked)
        elif not await self._is_same_store():  # asked after the lease was given, so it was given by the same store
            return False
        self._keep(lease, asked)
        return True

    async def _identify(self, lease: Lease, asked: float) -> None:
        now = lease.expires - self._seconds  # on the store's clock
        self.identity = await answered(load_identity(self._store, now), self._seconds)
        age = max(0.0, now - self.identity.created)
        self.settled_at = asked + max(0.0, self._seconds - age)

    async def _is_same_store(self) -> bool:
        """Whether the store has kept its data since this process joined."""
        same = await answered(read_identity(self._store), self._seconds) == self.identity
        if not same:
            _log.warning("the store has lost its data: sessions and tasks that were kept there are gone")
        return same

    async def renew(self) -> bool:
        """Keeps the lease; False if it has run out."""
        if self._lease is None:
            return False
        asked = self._clock.now()
        try:
            self._keep(await answered(self._store.renew(self._lease, self._seconds), self._seconds), asked)
        except Fenced:
            return False
        return True

    def _keep(self, lease: Lease, asked: float) -> None:
        self._lease = lease
        self.sure_until = asked + self._seconds * (1 - MARGIN)

    async def release(self) -> None:
        """Gives the lease back."""
        self.lost()
        lease, self._lease = self._lease, None
        if lease is not None:
            await answered(self._store.release(lease), min(self._seconds, _FAREWELL))

    def lost(self) -> None:
        """Nothing is sure any more."""
        self.sure_until = float("-inf")


async def declare(store: Store, name: str, by: str, seconds: float, *, certain: bool) -> Lease | Held:
    """Declares a process dead: a lease if that is done now; who holds it if it cannot be, or was done before."""
    found = await answered(store.acquire(_lease(name), by, _DEAD), seconds)
    if certain and isinstance(found, Held) and found.holder == name:
        found = await answered(store.acquire(_lease(name), by, _DEAD, over=found.token), seconds)
    return found


async def answered(asked: Awaitable[T], seconds: float) -> T:
    """What a store answers in so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await asked
    except TimeoutError:
        raise StoreUnavailable(f"the store has not answered within {seconds:g} seconds") from None


def _lease(name: str) -> str:
    return key_of("process", name)
