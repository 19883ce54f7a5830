"""The processes that serve together, since they share a store: who they are, and what they say to each other.

Each has a name, under which it holds a lease in the store for as long as it lives, and says every now and then that it
does (`place.py`, `pulse.py`). Who is silent for longer than that lease can be declared dead by whoever needs to know
(`lookout.py`), which is one act in the store: so all agree upon it, and the process itself finds out before it does
anything that only its name allows. What they tell each other is confirmed (`talk.py`).
"""

import asyncio
from collections.abc import Callable

from trunkline.clock import Clock
from trunkline.errors import StoreError
from trunkline.facts import Observers
from trunkline.server.cluster.broadcast import Talk
from trunkline.server.cluster.failure_detector import Deaths, Lookout
from trunkline.server.cluster.heartbeat import Pulse
from trunkline.server.cluster.membership import Place, Roster
from trunkline.server.cluster.messages import (
    ALIVE,
    CALL,
    CONFIRMED,
    DEAD,
    HERE,
    LEAVING,
    LOOK,
    MISSED,
    TOLD,
    Audience,
    Handler,
)
from trunkline.stores.bus import Bus
from trunkline.stores.store import Store

__all__ = ["Crew", "Handler"]


class Crew:
    """The others, seen from one process."""

    def __init__(
        self, store: Store, bus: Bus, *, seconds: float, clock: Clock, wall: Clock, observers: Observers
    ) -> None:
        """`seconds` is how long one may be silent."""
        self._roster = roster = Roster(seconds)
        self._audience = audience = Audience(observers, clock)
        self._place = place = Place(store, bus, roster, audience, seconds=seconds, clock=clock, wall=wall)
        self._talk = Talk(place, roster, audience, seconds, clock)
        self._pulse = Pulse(
            place,
            roster,
            audience,
            seconds,
            clock,
            enter=lambda: place.enter(self),
            vacate=self._vacate,
            beat=self._beat,
            returned=self._returned,
        )
        self._lookout = Lookout(
            place,
            roster,
            audience,
            seconds,
            clock,
            talk=self._talk,
            pulse=self._pulse,
            deaths=Deaths(store, roster, seconds, clock, wall),
        )
        self._joining = asyncio.Lock()
        self._listen()

    def _listen(self) -> None:
        """Has the crew's own parts be told what is theirs."""
        lookout, talk, on = self._lookout, self._talk, self._audience.on
        on(ALIVE, lambda sender, _: lookout.alive(sender))
        on(LEAVING, lambda sender, _: lookout.depart(sender, "Depart"))
        on(DEAD, lambda _, body: lookout.declared_dead(body.decode()))
        on(LOOK, lambda _, __: self._pulse.beat_now())
        on(CALL, self._answer)
        on(TOLD, talk.told)
        on(CONFIRMED, talk.confirmed)
        on(MISSED, lambda _, __: self._audience.missed())

    def _answer(self, sender: str, _: bytes) -> None:
        self._place.send(sender, HERE)

    @property
    def name(self) -> str:
        """What this process is called. It has another name once it was declared dead."""
        return self._place.name

    @property
    def sure_until(self) -> float:
        """The time, on the clock of the loop, until which nobody can have declared this process dead."""
        return self._place.standing.sure_until

    @property
    def others(self) -> frozenset[str]:
        """The names of those who were met and are not gone."""
        return self._roster.names

    @property
    def alone(self) -> bool:
        """Whether nobody else is there. Who has no name for now does not know."""
        return not self._pulse.going or (self._place.taken and not self._roster)

    async def gone(self, name: str) -> bool:
        """Whether a process is gone: one that has been silent for too long is, from now on. Raises `StoreUnavailable`
        if that cannot be found out."""
        return await self._lookout.gone(name)

    async def there(self, name: str) -> bool:
        """Whether a process is there to be sent something. Who was lost sight of is waited for, until it is heard of or
        gone. Raises `StoreUnavailable` if that cannot be found out."""
        return await self._lookout.there(name)

    # --- coming and going --------------------------------------------------------------------------

    async def join(self) -> None:
        """Becomes one of them: from then on this process has met the others, and they have met it."""
        async with self._joining:
            if not self._pulse.going:
                await self._place.enter(self)
                self._pulse.start()

    async def leave(self) -> None:
        """Is no longer one of them: all that needs its name has been given back."""
        if not self._pulse.going:
            return
        await self._stop()
        self._place.broadcast(LEAVING)
        try:
            await self._place.standing.release()
        except StoreError:
            pass  # it runs out by itself
        finally:
            await self.close()
        self._audience.step("Leave", self.name)

    async def close(self) -> None:
        """Says and hears nothing any more, be it that it could not leave in good order."""
        await self._stop()
        await self._vacate()

    async def _stop(self) -> None:
        await self._pulse.stop()
        await self._lookout.close()
        self._talk.end()

    async def _vacate(self) -> None:
        """Says and hears nothing under the name that this process has had."""
        self._lookout.forget()
        self._talk.forget()
        await self._place.leave()

    def _returned(self) -> None:
        """What was told under the name before is told again."""
        self._talk.tell_all_again()
        self._lookout.look()

    def _beat(self) -> None:
        self._talk.press()
        self._lookout.look_around()

    # --- saying ------------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Sends something to one process; False if nothing was sent, see `Place.send`."""
        return self._place.send(to, kind, body)

    def broadcast(self, kind: bytes, body: bytes) -> None:
        """Sends something to all others."""
        self._place.broadcast(kind, body)

    async def sent(self) -> None:
        """Waits while much of what was sent has not left yet."""
        await self._place.sent()

    def tell(self, kind: bytes, body: bytes) -> "asyncio.Future[None] | None":
        """Sends something to all others; gives what is done when each has confirmed it, and all told before, or is
        gone. None if nobody else is there."""
        if self.alone:
            return None
        done = self._talk.tell(kind + body)
        self._lookout.look_in_time()
        return done

    # --- hearing -----------------------------------------------------------------------------------

    def on(self, kind: bytes, heard: Handler) -> None:
        """Has a function be told what comes of a kind, which is one byte; those up to 15 are the crew's own."""
        self._audience.on(kind, heard)

    def on_lost(self, lost: Callable[[str | None], None]) -> None:
        """Has a function be told whose messages may have been lost, of None: anybody's; or who is gone."""
        self._audience.on_lost.append(lost)

    def on_deposed(self, deposed: Callable[[], None]) -> None:
        """Has a function be told that this process was declared dead: what it held under its name is others' now."""
        self._audience.on_deposed.append(deposed)

    def on_store_reset(self, reset: Callable[[], None]) -> None:
        """Has a function be told that the store has lost its data, once this process has joined again: what was read
        from it before may be another now."""
        self._audience.on_store_reset.append(reset)

    def on_missed(self, missed: Callable[[], None]) -> None:
        """Has a function be told that this process may not have heard what others have told."""
        self._audience.on_missed.append(missed)

    # --- what the bus says -------------------------------------------------------------------------

    def met(self, name: str) -> None:
        """Another process is there."""
        self._lookout.met(name)

    def heard(self, sender: str, message: bytes) -> None:
        """Something came over the bus. Those who are gone say nothing any more."""
        if self._roster.is_gone(sender):
            self._place.warn(sender)
            return
        self._lookout.heard_of(sender)
        self._audience.hear(sender, message)

    def lost(self, name: str | None) -> None:
        """Something may not have arrived."""
        self._lookout.lost(name)

    def rejected(self, why: str) -> None:
        """A frame failed verification. It is counted; nothing else follows from it."""
        self._audience.rejected(why)
