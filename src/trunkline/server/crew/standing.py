"""A process's standing in the store: the lease that says it is alive, and what it takes to be declared dead.

A process is dead when somebody else holds the lease of its name. That can be only once it has run out, or by one who
knows for certain that nobody is there. Such a lease is held for so long that whoever wakes up later finds out.
"""

import asyncio
from secrets import token_hex
from typing import Final

from trunkline.clock import Clock
from trunkline.errors import Fenced
from trunkline.stores.store import Held, Lease, Store, key_of

__all__ = ["Standing", "declare"]

_DEAD: Final = 24 * 3600.0  # seconds that it can be found out
_MARGIN: Final = 0.1  # of a lease: for clocks that do not go alike


class Standing:
    """The lease of one process, under one name."""

    def __init__(self, store: Store, seconds: float, clock: Clock, wall: Clock) -> None:
        self.name = token_hex(8)
        self.sure_until = float("-inf")
        self._store = store
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._lease: Lease | None = None

    async def take(self) -> bool:
        """Takes the lease, for the first time or again; False if somebody has declared this process dead."""
        sure, last = self._sure(), self._lease
        if last is not None and self._wall.now() >= last.expires + _DEAD / 2:
            return False  # it may have been, and nobody would know by now
        async with asyncio.timeout(self._seconds):
            lease = await self._store.acquire(_lease(self.name), self.name, self._seconds)
        if isinstance(lease, Held):
            return False
        self._lease, self.sure_until = lease, sure
        return True

    async def renew(self) -> bool:
        """Keeps the lease; False if it has run out."""
        if self._lease is None:
            return False
        sure = self._sure()
        try:
            async with asyncio.timeout(self._seconds):
                self._lease = await self._store.renew(self._lease, self._seconds)
        except Fenced:
            return False
        self.sure_until = sure
        return True

    def _sure(self) -> float:
        """Until when nobody can take a lease that is asked for now."""
        return self._clock.now() + self._seconds * (1 - _MARGIN)

    async def release(self) -> None:
        """Gives the lease back."""
        self.sure_until = float("-inf")
        if self._lease is not None:
            await self._store.release(self._lease)


async def declare(store: Store, name: str, by: str, *, certain: bool) -> Lease | Held:
    """Declares a process dead: a lease if that is done now; who holds it if it cannot be, or was done before."""
    found = await store.acquire(_lease(name), by, _DEAD)
    if certain and isinstance(found, Held) and found.holder == name:
        found = await store.acquire(_lease(name), by, _DEAD, over=found.token)
    return found


def _lease(name: str) -> str:
    return key_of("process", name)
