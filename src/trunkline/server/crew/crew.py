"""The processes that serve together, since they share a store: who they are, and what they say to each other.

Each has a name, under which it holds a lease in the store for as long as it lives, and says every now and then that it
does. Who is silent for longer than that lease can be declared dead by whoever needs to know, which is one act in the
store: so all agree upon it, and the process itself finds out before it does anything that only its name allows.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from trunkline.clock import Clock, Timer
from trunkline.errors import StoreError, StoreUnavailable
from trunkline.facts import CrewStep, Dropped, HandlerFailed, Observers
from trunkline.server.crew.deaths import Deaths
from trunkline.server.crew.doubts import Doubts
from trunkline.server.crew.ears import CrewEars
from trunkline.server.crew.roster import Roster
from trunkline.server.crew.standing import Standing
from trunkline.server.crew.tellings import Heard, Telling, Tellings
from trunkline.stores.bus import Bus
from trunkline.stores.store import Store

__all__ = ["Crew", "Handler"]

Handler = Callable[[str, bytes], "asyncio.Future[Any] | None"]
"""Is told who says something, and what. Of what was told it may give what is done when that can be confirmed."""

_ALIVE: Final = b"\x00"  # a process has renewed its lease
_TOLD: Final = b"\x01"
_CONFIRMED: Final = b"\x02"
_MISSED: Final = b"\x03"  # who is told this has not confirmed something, and nobody waits for it any longer
_LEAVING: Final = b"\x04"
_DEAD: Final = b"\x05"  # somebody was declared dead: the name
_LOOK: Final = b"\x06"  # who is told this was declared dead
_CALL: Final = b"\x07"  # who is told this says that it is there
_HERE: Final = b"\x08"  # says no more than that
_BEATS: Final = 3  # in the time of a lease
_ATTEMPTS: Final = 12  # in that time, while the store cannot be reached
_PATIENCE: Final = 6  # leases, after which nobody waits any longer for one who lives and does not confirm
_NUMBER: Final = 8  # bytes


class Crew:
    """The others, seen from one process."""

    def __init__(
        self, store: Store, bus: Bus, *, seconds: float, clock: Clock, wall: Clock, observers: Observers
    ) -> None:
        """`seconds` is how long one may be silent."""
        self._store = store
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._observers = observers
        self._unused: Bus | None = bus
        self._bus: Bus | None = None  # open, between joining and leaving; not while there is no name
        self._ears: CrewEars | None = None
        self._standing = self._new_standing()
        self._roster = Roster(seconds)
        self._deaths = Deaths(store, self._roster, seconds, clock, wall)
        self._doubts = Doubts()
        self._tellings = Tellings()
        self._heard: dict[str, Heard] = {}
        self._handlers: dict[bytes, Handler] = {
            _ALIVE: self._alive,
            _TOLD: self._told,
            _CONFIRMED: lambda sender, body: self._tellings.confirmed(sender, int.from_bytes(body, "big")),
            _MISSED: lambda _, __: self._missed(),
            _LEAVING: lambda sender, _: self._depart(sender, "Depart"),
            _DEAD: lambda _, body: self._dead(body.decode()),
            _LOOK: lambda _, __: self._beat_now(),
            _CALL: lambda sender, _: self._answer_to(sender),
        }
        self._on_lost: list[Callable[[str | None], None]] = []
        self._on_deposed: list[Callable[[], None]] = []
        self._on_missed: list[Callable[[], None]] = []
        self._joining = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None
        self._next_beat: Timer | None = None  # between joining and leaving
        self._next_look: tuple[float, Timer] | None = None

    @property
    def name(self) -> str:
        """What this process is called. It has another name once it was declared dead."""
        return self._standing.name

    @property
    def sure_until(self) -> float:
        """The time, on the clock of the loop, until which nobody can have declared this process dead."""
        return self._standing.sure_until

    @property
    def _sure(self) -> bool:
        return self._clock.now() < self.sure_until

    @property
    def others(self) -> frozenset[str]:
        """The names of those who were met and are not gone."""
        return self._roster.names

    @property
    def alone(self) -> bool:
        """Whether nobody else is there. Who has no name for now does not know."""
        return self._next_beat is None or (self._bus is not None and not self._roster)

    # --- coming and going --------------------------------------------------------------------------

    async def join(self) -> None:
        """Becomes one of them: from then on this process has met the others, and they have met it."""
        async with self._joining:
            if self._next_beat is None:
                await self._enter()
                self._beat_later(_BEATS)

    async def _enter(self) -> None:
        """Makes up a name, and has it known."""
        bus, self._unused = self._unused or self._store.bus(), None
        standing = self._new_standing()
        if bus is None or not await standing.take():
            raise StoreUnavailable("there is no way to the processes that share the store")
        ears = CrewEars(self)
        try:
            await bus.open(standing.name, ears)
        except BaseException:
            with suppress(StoreError):
                await standing.release()
            raise
        self._standing, self._bus, self._ears = standing, bus, ears
        self._tell_observers("Join", standing.name)
        ears.begin()
        bus.publish(_ALIVE)

    def _new_standing(self) -> Standing:
        return Standing(self._store, self._seconds, self._clock, self._wall)

    async def leave(self) -> None:
        """Is no longer one of them: all that needs its name has been given back."""
        if self._next_beat is None:
            return
        await self._stop()
        self.broadcast(_LEAVING, b"")
        try:
            await self._standing.release()
        except StoreError:
            pass  # it runs out by itself
        finally:
            await self.close()
        self._tell_observers("Leave", self.name)

    async def close(self) -> None:
        """Says and hears nothing any more, be it that it could not leave in good order."""
        await self._stop()
        await self._close_bus()

    async def _stop(self) -> None:
        for timer in (self._next_beat, self._next_look and self._next_look[1]):
            if timer is not None:
                timer.cancel()
        self._next_beat = self._next_look = None
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        await self._deaths.close()
        self._tellings.anew(())

    async def _close_bus(self) -> None:
        bus, self._bus = self._bus, None
        self._roster.forget()
        self._doubts.settle_all()
        self._heard.clear()
        if self._ears is not None:
            self._ears.end()
        if bus is not None:
            await bus.close()

    # --- being alive -------------------------------------------------------------------------------

    def _beat_later(self, times: int) -> None:
        if self._next_beat is not None:
            self._next_beat.cancel()
        self._next_beat = self._clock.call_at(self._clock.now() + self._seconds / times, self._beat)

    def _beat(self) -> None:
        self._beat_later(_BEATS)
        self._beat_now()
        now = self._clock.now()
        self._give_up(now - _PATIENCE * self._seconds)
        for name in self._tellings.awaited():
            self._tell_again(name, now - self._seconds)
        self._look()
        silent = self._roster.most_silent
        if silent is not None and self._roster.is_silent(silent, now) and self._sure:
            self._check(silent)  # one with each beat: nobody waits for it

    def _beat_now(self) -> None:
        if self._beating is None and self._next_beat is not None:
            self._beating = asyncio.get_running_loop().create_task(self._live())
            self._beating.add_done_callback(self._beaten)

    def _beaten(self, beating: "asyncio.Task[None]") -> None:
        self._beating = None
        error = None if beating.cancelled() else beating.exception()
        if error is not None:
            self._beat_later(_ATTEMPTS)
            if not isinstance(error, StoreError):
                self._report("the lease of this process", error)

    async def _live(self) -> None:
        """Says in the store, and to the others, that this process lives; or finds out that it does not."""
        if self._bus is None:
            await self._return()
            return
        sure_until = self.sure_until
        regained = not await self._standing.renew()
        if regained and not await self._standing.take():
            await self._deposed()
            return
        self.broadcast(_ALIVE, b"")
        if self._clock.now() >= sure_until:  # it may be this process that has heard nothing of the others
            self._roster.spare(self._clock.now() + self._seconds)
        if regained:
            self._tell_observers("Regain", self.name)
            self._missed()

    async def _deposed(self) -> None:
        """Lets go of everything, and comes back under another name."""
        self._tell_observers("Deposed", self.name)
        self._standing.lost()
        self._roster.depart(self.name)
        for deposed in self._on_deposed:
            self._safely(deposed)
        self._say_lost(None)
        await self._close_bus()
        await self._return()

    async def _return(self) -> None:
        """Comes back. What was told under the name before is told again; what others have told meanwhile may be
        anything."""
        await self._enter()
        self._say_lost(None)
        for telling in self._tellings.anew(self.others):
            self._publish(telling)
        self._look()
        self._missed()

    def _missed(self) -> None:
        for missed in self._on_missed:
            self._safely(missed)

    # --- saying ------------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Sends something to one process; False if it is certain that nobody is there."""
        if self._roster.is_gone(to):
            return False
        return self._bus is None or self._bus.send(to, kind + body)

    def broadcast(self, kind: bytes, body: bytes) -> None:
        """Sends something to all others."""
        if self._bus is not None:
            self._bus.publish(kind + body)

    async def sent(self) -> None:
        """Waits while much of what was sent has not left yet."""
        if self._bus is not None:
            await self._bus.sent()

    def tell(self, kind: bytes, body: bytes) -> "asyncio.Future[None] | None":
        """Sends something to all others; gives what is done when each has confirmed it, and all told before, or is
        gone. None if nobody else is there."""
        if self.alone:
            return None
        now = self._clock.now()
        to = self.others if self._bus is not None else (self.name,)  # who has no name asks who is there later
        telling = self._tellings.tell(kind + body, to, now)
        self._publish(telling)
        if self._next_look is None or (self._roster.silence(to, now) or now) < self._next_look[0]:
            self._look()
        return telling.done

    def _publish(self, telling: Telling) -> None:
        self.broadcast(_TOLD, self._tellings.written(telling))

    def _tell_again(self, name: str, before: float = float("inf")) -> None:
        for telling in self._tellings.awaited_of(name, before):
            self.send(name, _TOLD, self._tellings.written(telling))

    def _give_up(self, before: float) -> None:
        """Waits no longer for those who live and do not confirm."""
        for name in self._tellings.give_up(before):
            self.send(name, _MISSED, b"")
            if self._observers:
                now = self._clock.now()
                self._observers.on(Dropped(connection=0, at=now, why="a process does not confirm it", kind="news"))

    # --- hearing -----------------------------------------------------------------------------------

    def on(self, kind: bytes, heard: Handler) -> None:
        """Has a function be told what comes of a kind, which is one byte; those up to 15 are the crew's own."""
        if kind in self._handlers:
            raise ValueError(f"somebody else is told what comes of the kind {kind!r}")
        self._handlers[kind] = heard

    def on_lost(self, lost: Callable[[str | None], None]) -> None:
        """Has a function be told whose messages may have been lost, of None: anybody's; or who is gone."""
        self._on_lost.append(lost)

    def on_deposed(self, deposed: Callable[[], None]) -> None:
        """Has a function be told that this process was declared dead: what it held under its name is others' now."""
        self._on_deposed.append(deposed)

    def on_missed(self, missed: Callable[[], None]) -> None:
        """Has a function be told that this process may not have heard what others have told."""
        self._on_missed.append(missed)

    def met(self, name: str) -> None:
        """Another process is there."""
        if name != self.name and self._roster.met(name, self._clock.now()):
            self._tell_observers("Meet", name)

    def heard(self, sender: str, message: bytes) -> None:
        """Something came over the bus. Those who are gone say nothing any more."""
        if self._roster.is_gone(sender):
            if self._bus is not None:
                self._bus.send(sender, _LOOK)
            return
        self.met(sender)
        self._doubts.settle(sender)
        self._handle(sender, message)

    def _alive(self, sender: str, _: bytes) -> None:
        self._roster.alive(sender, self._clock.now() + self._seconds)

    def _told(self, sender: str, body: bytes) -> None:
        known = self._heard.setdefault(sender, Heard())
        number, text = known.take(body)
        waiting = None if text is None else self._handle(sender, text)
        if waiting is not None:
            waiting.add_done_callback(lambda _: self._confirm(sender, known, number))
        elif text is not None or known.is_done(number):
            self._confirm(sender, known, number)

    def _confirm(self, sender: str, known: Heard, number: int) -> None:
        known.done(number)
        self.send(sender, _CONFIRMED, number.to_bytes(_NUMBER, "big"))

    def _handle(self, sender: str, text: bytes) -> "asyncio.Future[Any] | None":
        handler = self._handlers.get(text[:1])
        return None if handler is None else self._safely(partial(handler, sender, text[1:]))

    def lost(self, name: str | None) -> None:
        """Something may not have arrived. Who is there is told again what it has not confirmed."""
        if name is not None and self._roster.is_gone(name):
            return  # that was said
        self._doubts.about(self.others if name is None else (name,))
        self._say_lost(name)
        if name is None:
            self.broadcast(_CALL, b"")
        elif not self._is_there(name):
            self._check(name, certain=True)
            return
        for other in self._tellings.awaited() if name is None else (name,):
            self._tell_again(other)

    def _answer_to(self, sender: str) -> None:
        self.send(sender, _HERE, b"")

    def _say_lost(self, name: str | None) -> None:
        for lost in self._on_lost:
            self._safely(partial(lost, name))

    # --- who is dead -------------------------------------------------------------------------------

    async def gone(self, name: str) -> bool:
        """Whether a process is gone: one that has been silent for too long is, from now on. Raises `StoreUnavailable`
        if that cannot be found out."""
        if self._roster.is_gone(name):
            return True
        if name == self.name:
            return False
        certain = not self._is_there(name)
        if not certain and not self._sure:
            await self._be_sure()
        if not certain and not self._roster.is_silent(name, self._clock.now()):
            return False
        return await asyncio.shield(self._check(name, certain=certain))

    async def there(self, name: str) -> bool:
        """Whether a process is there to be sent something. Who was lost sight of is waited for, until it is heard of or
        gone. Raises `StoreUnavailable` if that cannot be found out."""
        while name in self._doubts:
            if await self.gone(name):
                return False
            await self._doubts.wait(name, self._seconds / _BEATS)
        return not self._roster.is_gone(name)

    async def _be_sure(self) -> None:
        """Sees whether this process lives."""
        self._beat_now()
        if self._beating is not None:
            await asyncio.wait([self._beating])
        if not self._sure:
            raise StoreUnavailable("this process does not know whether it is taken for dead itself")

    def _is_there(self, name: str) -> bool:
        """False if it is certain that a process is not."""
        return self._bus is None or self._bus.send(name, _CALL)

    def _check(self, name: str, *, certain: bool = False) -> "asyncio.Task[bool]":
        return self._deaths.check(name, self.name, self._found_dead, certain=certain)

    def _found_dead(self, name: str, now: bool) -> None:
        if now:
            self.broadcast(_DEAD, name.encode())
        self._depart(name, "DeclareDead" if now else None)

    def _dead(self, name: str) -> None:
        """Another has declared somebody dead. If it is this process, it had better see for itself."""
        if name == self.name:
            self._beat_now()
        else:
            self._depart(name)

    def _depart(self, name: str, step: str | None = None) -> None:
        if not self._roster.depart(name):
            return
        if step is not None:
            self._tell_observers(step, name)
        self._heard.pop(name, None)
        self._doubts.settle(name)
        self._tellings.gone(name)
        self._say_lost(name)

    def _look(self) -> None:
        """Finds out about those who are waited for and silent, and comes back when the next one may be."""
        if self._next_look is not None:
            self._next_look[1].cancel()
            self._next_look = None
        now, awaited = self._clock.now(), self._tellings.awaited()
        for name in awaited - {self.name} if self._sure else ():
            if self._roster.is_silent(name, now):
                self._check(name)  # again with the next beat, if the store does not say
        due = self._roster.silence(awaited, now)
        if due is not None:
            self._next_look = due, self._clock.call_at(due, self._look)

    # --- telling observers -------------------------------------------------------------------------

    def _safely(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - an error of our own, which must not end the bus
            self._report("what another process has said", error)
            return None

    def _tell_observers(self, step: str, name: str) -> None:
        if self._observers:
            self._observers.on(CrewStep(connection=0, at=self._clock.now(), step=step, process=name))

    def _report(self, what: str, error: BaseException) -> None:
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(
                HandlerFailed(connection=0, at=at, request=None, method=what, reference="-", error=error)
            )
