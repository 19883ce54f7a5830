"""Finds out who is dead: once for each, however many ask at the same time."""

import asyncio
from collections.abc import Callable
from functools import partial

from trunkline.clock import Clock
from trunkline.server.cluster.membership import MARGIN, declare
from trunkline.server.crew.roster import Roster
from trunkline.stores.store import Held, Lease, Store

__all__ = ["Deaths"]


class Deaths:
    """Those that are being found out, for one process."""

    def __init__(self, store: Store, roster: Roster, seconds: float, clock: Clock, wall: Clock) -> None:
        self._store = store
        self._roster = roster
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._checking: dict[tuple[str, bool], asyncio.Task[bool]] = {}

    def check(self, name: str, by: str, found: Callable[[str, bool], None], *, certain: bool) -> "asyncio.Task[bool]":
        """What says whether a process is dead. If it is, `found` is told, and whether it was declared so just now; if
        not, nobody needs to ask for some time. `certain` says that nobody is there, whatever the lease says."""
        checking = self._checking.get((name, certain))
        if checking is None:
            checking = asyncio.get_running_loop().create_task(self._check(name, by, found, certain=certain))
            self._checking[name, certain] = checking
            checking.add_done_callback(partial(self._checked, (name, certain)))
        return checking

    def _checked(self, what: tuple[str, bool], checking: "asyncio.Task[bool]") -> None:
        del self._checking[what]
        if not checking.cancelled():
            checking.exception()  # whoever waits has it; who does not asks again

    async def _check(self, name: str, by: str, found: Callable[[str, bool], None], *, certain: bool) -> bool:
        lease = await declare(self._store, name, by, self._seconds, certain=certain)
        if isinstance(lease, Held) and lease.holder == name:
            left = min(max(lease.expires - self._wall.now(), MARGIN * self._seconds), self._seconds)
            self._roster.alive(name, self._clock.now() + left)
            return False
        found(name, isinstance(lease, Lease))
        return True

    async def close(self) -> None:
        """Finds out nothing more."""
        checking = list(self._checking.values())
        for task in checking:
            task.cancel()
        await asyncio.gather(*checking, return_exceptions=True)
