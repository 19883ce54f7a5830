"""Finds out who is dead: once for each, however many ask at the same time.

Who was lost sight of: nothing should be sent to those before they were heard of again, or are known to be gone.

Who is there, and who is gone: looked after for as long as somebody needs to know.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from trunkline.clock import Clock, Timer
from trunkline.errors import StoreUnavailable
from trunkline.server.cluster.broadcast import Talk
from trunkline.server.cluster.heartbeat import BEATS, Pulse
from trunkline.server.cluster.membership import MARGIN, Place, Roster, declare
from trunkline.server.cluster.messages import CALL, DEAD, Audience
from trunkline.stores.store import Held, Lease, Store

__all__ = ["Deaths", "Doubts", "Lookout"]


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


class Doubts:
    """Those of whom it is in doubt whether they hear anything."""

    def __init__(self) -> None:
        self._settled: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._settled

    def about(self, names: Iterable[str]) -> None:
        """What those were sent may not have arrived."""
        for name in names:
            if name not in self._settled:
                self._settled[name] = asyncio.get_running_loop().create_future()

    def settle(self, name: str) -> None:
        """That one was heard of, or is gone."""
        if (settled := self._settled.pop(name, None)) is not None and not settled.done():
            settled.set_result(None)

    def settle_all(self) -> None:
        """Nobody waits any more."""
        for name in list(self._settled):
            self.settle(name)

    async def wait(self, name: str, clock: Clock, until: float) -> None:
        """Waits until that is settled, at most until then."""
        if (settled := self._settled.get(name)) is None:
            return
        due = asyncio.Event()
        timer, waiting = clock.call_at(until, due.set), asyncio.ensure_future(due.wait())
        try:
            await asyncio.wait([settled, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiting.cancel()


_PATIENCE: Final = 2  # leases, for which one is waited for that was lost sight of and lives


class Lookout:
    """The others, as far as this process sees them."""

    def __init__(
        self,
        place: Place,
        roster: Roster,
        audience: Audience,
        seconds: float,
        clock: Clock,
        *,
        talk: Talk,
        pulse: Pulse,
        deaths: Deaths,
    ) -> None:
        self._place = place
        self._roster = roster
        self._audience = audience
        self._seconds = seconds
        self._clock = clock
        self._talk = talk
        self._pulse = pulse
        self._deaths = deaths
        self._doubts = Doubts()
        self._next: tuple[float, Timer] | None = None

    # --- who is seen, and who is not ---------------------------------------------------------------

    def met(self, name: str) -> None:
        """Another process is there."""
        if name != self._place.name and self._roster.met(name, self._clock.now()):
            self._audience.step("Meet", name)

    def heard_of(self, name: str) -> None:
        """It is there, and is heard."""
        self.met(name)
        self._doubts.settle(name)

    def alive(self, name: str) -> None:
        """It has said that it has renewed its lease."""
        self._roster.alive(name, self._clock.now() + self._seconds)

    def lost(self, name: str | None) -> None:
        """Something may not have arrived. Who is there is told again what it has not confirmed."""
        if name is not None and self._roster.is_gone(name):
            return  # that was said
        self._doubts.about(self._roster.names if name is None else (name,))
        self._audience.lost(name)
        if name is None:
            self._place.broadcast(CALL)
        elif not self._place.reaches(name):
            self._check(name, certain=True)
            return
        for other in self._talk.awaited() if name is None else (name,):
            self._talk.tell_again(other)

    # --- who is dead -------------------------------------------------------------------------------

    async def gone(self, name: str) -> bool:
        """Whether a process is gone: one that has been silent for too long is, from now on. Raises `StoreUnavailable`
        if that cannot be found out."""
        if self._roster.is_gone(name):
            return True
        if name == self._place.name:
            return False
        certain = not self._place.reaches(name)
        if not certain:
            await self._pulse.be_sure()
            if not self._place.may_evict or not self._roster.is_silent(name, self._clock.now()):
                return False
        return await asyncio.shield(self._check(name, certain=certain))

    async def there(self, name: str) -> bool:
        """Whether a process is there to be sent something. Who was lost sight of is waited for, until it is heard of or
        gone. Raises `StoreUnavailable` if that cannot be found out, or if one that lives is not heard of for long."""
        began = self._clock.now()
        while name in self._doubts:
            if await self.gone(name):
                return False
            if (now := self._clock.now()) >= began + _PATIENCE * self._seconds:
                raise StoreUnavailable("a process that lives is not heard of")
            await self._doubts.wait(name, self._clock, now + self._seconds / BEATS)
        return not self._roster.is_gone(name)

    def _check(self, name: str, *, certain: bool = False) -> "asyncio.Task[bool]":
        return self._deaths.check(name, self._place.name, self._found_dead, certain=certain)

    def _found_dead(self, name: str, now: bool) -> None:
        if now:
            self._place.broadcast(DEAD, name.encode())
        self.depart(name, "DeclareDead" if now else None)

    def declared_dead(self, name: str) -> None:
        """Another process says that it has declared one dead. That is a hint: what counts is what the store says, of
        this process as of others."""
        if name == self._place.name:
            self._pulse.beat_now()
        elif self._place.may_evict and not self._roster.is_gone(name):
            self._check(name)

    def depart(self, name: str, step: str | None = None) -> None:
        """One is gone, for ever."""
        if not self._roster.depart(name):
            return
        if step is not None:
            self._audience.step(step, name)
        self._doubts.settle(name)
        self._talk.gone(name)
        self._audience.lost(name)

    # --- looking -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Finds out about those who are waited for and silent, and comes back when the next one may be."""
        self._rest()
        now, awaited = self._clock.now(), self._talk.awaited()
        for name in awaited - {self._place.name} if self._place.may_evict else ():
            if self._roster.is_silent(name, now):
                self._check(name)  # again with the next beat, if the store does not say
        due = self._roster.silence(awaited, now)
        if due is not None:
            self._next = due, self._clock.call_at(due, self.look)

    def look_in_time(self) -> None:
        """More is waited for, of all that are there: looks no later than when the first of them may be silent."""
        now = self._clock.now()
        if self._next is None or (self._roster.silence(self._roster.names, now) or now) < self._next[0]:
            self.look()

    def look_around(self) -> None:
        """Looks, and sees to the one that was not heard of for longest, whom nobody waits for."""
        self.look()
        silent = self._roster.most_silent
        if silent is not None and self._roster.is_silent(silent, self._clock.now()) and self._place.may_evict:
            self._check(silent)

    def _rest(self) -> None:
        if self._next is not None:
            self._next[1].cancel()
            self._next = None

    def forget(self) -> None:
        """Waits for nobody any more: this process hears nothing."""
        self._doubts.settle_all()

    async def close(self) -> None:
        """Looks no more."""
        self._rest()
        await self._deaths.close()
