"""Being alive: saying so every now and then, in the store and to the others; finding out that others take this process
for dead; and coming back under another name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.clock import Clock, Timer
from trunkline.errors import StoreError, StoreUnavailable
from trunkline.server.cluster.membership import Place, Roster
from trunkline.server.cluster.messages import ALIVE, Audience

__all__ = ["BEATS", "Pulse"]

BEATS: Final = 3  # in the time of a lease
_ATTEMPTS: Final = 12  # in that time, while the store cannot be reached


class Pulse:
    """The life of this process as one of them."""

    def __init__(
        self,
        place: Place,
        roster: Roster,
        audience: Audience,
        seconds: float,
        clock: Clock,
        *,
        enter: Callable[[], Awaitable[None]],
        vacate: Callable[[], Awaitable[None]],
        beat: Callable[[], None],
        returned: Callable[[], None],
    ) -> None:
        """`enter` takes a new place, and `vacate` leaves one; `beat` and `returned` are told when there is a beat, and
        when this process has come back."""
        self._place = place
        self._roster = roster
        self._audience = audience
        self._seconds = seconds
        self._clock = clock
        self._enter = enter
        self._vacate = vacate
        self._on_beat = beat
        self._returned = returned
        self._beating: asyncio.Task[None] | None = None
        self._next: Timer | None = None

    @property
    def going(self) -> bool:
        """Whether this process has joined the others and not left them, be it that it has no name for now."""
        return self._next is not None

    def start(self) -> None:
        """This process has joined."""
        self._beat_later(BEATS)

    async def stop(self) -> None:
        """It says no more that it lives."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])

    # --- beats -------------------------------------------------------------------------------------

    def _beat_later(self, times: int) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._clock.call_at(self._clock.now() + self._seconds / times, self._beat)

    def _beat(self) -> None:
        self._beat_later(BEATS)
        self.beat_now()
        self._on_beat()

    def beat_now(self) -> None:
        """Sees now whether this process lives, and says so."""
        if self._beating is None and self.going:
            self._beating = asyncio.get_running_loop().create_task(self._live())
            self._beating.add_done_callback(self._beaten)

    def _beaten(self, beating: "asyncio.Task[None]") -> None:
        self._beating = None
        error = None if beating.cancelled() else beating.exception()
        if error is not None and self.going:
            self._beat_later(_ATTEMPTS)
            if not isinstance(error, StoreError):
                self._audience.report("the lease of this process", error)

    async def be_sure(self) -> None:
        """Sees whether this process lives. Raises `StoreUnavailable` if it cannot be sure of that."""
        if self._place.sure:
            return
        self.beat_now()
        if self._beating is not None:
            await asyncio.wait([self._beating])
        if not self._place.sure:
            raise StoreUnavailable("this process does not know whether it is taken for dead itself")

    # --- life and death ----------------------------------------------------------------------------

    async def _live(self) -> None:
        """Says in the store, and to the others, that this process lives; or finds out that it does not."""
        if not self._place.taken:
            await self._return()
            return
        standing = self._place.standing
        sure_until = standing.sure_until
        regained = not await standing.renew()
        if regained and not await standing.take():
            await self._deposed()
            return
        self._place.broadcast(ALIVE)
        if self._clock.now() >= sure_until:  # it may be this process that has heard nothing of the others
            self._roster.spare(self._clock.now() + self._seconds)
        if regained:
            self._audience.step("Regain", self._place.name)
            self._audience.missed()

    async def _deposed(self) -> None:
        """Lets go of everything, and comes back under another name."""
        self._audience.step("Deposed", self._place.name)
        self._place.standing.lost()
        self._roster.depart(self._place.name)
        self._audience.deposed()
        self._audience.lost(None)
        await self._vacate()
        await self._return()

    async def _return(self) -> None:
        """Comes back. What others have told meanwhile may be anything."""
        before = self._place.standing.identity
        await self._enter()
        if self._place.standing.identity != before:
            self._audience.store_reset()
        self._audience.lost(None)
        self._returned()
        self._audience.missed()
