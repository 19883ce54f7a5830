"""A process's standing in the store: the lease that says it is alive, and what it takes to be declared dead.

A process is dead when somebody else holds the lease of its name. That can be only once it has run out, or by one who
knows for certain that nobody is there. Such a lease is held for so long that whoever wakes up later finds out.
"""

import asyncio
from collections.abc import Awaitable
from secrets import token_hex
from typing import Final, TypeVar

from trunkline.clock import Clock
from trunkline.errors import Fenced, StoreUnavailable
from trunkline.stores.store import Held, Lease, Store, key_of

__all__ = ["MARGIN", "Standing", "declare"]

MARGIN: Final = 0.1  # of a lease: for clocks that do not go alike
_DEAD: Final = 24 * 3600.0  # seconds that it can be found out
_FAREWELL: Final = 1.0  # seconds, at most, that are spent on giving a lease back

T = TypeVar("T")


class Standing:
    """The lease of one process, under one name."""

    def __init__(self, store: Store, seconds: float, clock: Clock, wall: Clock) -> None:
        self.name = token_hex(8)
        self.sure_until = float("-inf")  # on the clock of the loop: nobody can have declared this process dead
        self._store = store
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._lease: Lease | None = None

    async def take(self) -> bool:
        """Takes the lease, for the first time or again; False if somebody has declared this process dead."""
        last, asked = self._lease, self._clock.now()
        if last is not None and self._wall.now() >= last.expires + _DEAD / 2:
            return False  # somebody may have, and nobody would know by now
        lease = await answered(self._store.acquire(_lease(self.name), self.name, self._seconds), self._seconds)
        if isinstance(lease, Held):
            return False
        self._keep(lease, asked)
        return True

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
