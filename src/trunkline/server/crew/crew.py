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
from trunkline.errors import StoreError
from trunkline.facts import CrewStep, Dropped, HandlerFailed, Observers
from trunkline.server.crew.standing import Standing, declare
from trunkline.server.crew.tellings import Heard, Telling, Tellings
from trunkline.stores.bus import Bus
from trunkline.stores.store import Held, Lease, Store

__all__ = ["Crew", "Handler"]

Handler = Callable[[str, bytes], "asyncio.Future[Any] | None"]
"""Is told who says something, and what. Of what was told it may give what is done when that can be confirmed."""

_ALIVE: Final = b"\x00"  # a process has renewed its lease
_TOLD: Final = b"\x01"
_CONFIRMED: Final = b"\x02"
_LEAVING: Final = b"\x03"
_DEAD: Final = b"\x04"  # who was declared dead
_LOOK: Final = b"\x05"  # who is told this should see whether it is still there
_BEATS: Final = 3  # in the time of a lease
_PATIENCE: Final = 6  # leases, after which nobody waits any longer for one who lives and does not confirm
_REMEMBERED: Final = 1000  # names of those who are gone; of others it is found out again
_NEVER: Final = float("-inf")
_FAILED: Final = (StoreError, TimeoutError)


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
        self._next_bus: Bus | None = bus
        self._bus: Bus | None = None  # open
        self._standing = self._new_standing()
        self._joining = asyncio.Lock()
        self._ears: _Ears | None = None
        self._fresh: dict[str, float] = {}  # of those who were met: until when nobody needs to ask whether they live
        self._gone: dict[str, None] = {}
        self._checking: dict[str, asyncio.Task[bool]] = {}
        self._tellings = Tellings()
        self._heard: dict[str, Heard] = {}
        self._handlers: dict[bytes, Handler] = {}
        self._on_lost: list[Callable[[str | None], None]] = []
        self._on_deposed: list[Callable[[], None]] = []
        self._on_missed: list[Callable[[], None]] = []
        self._beating: asyncio.Task[None] | None = None
        self._beat_timer: Timer | None = None
        self._look_timer: Timer | None = None

    # --- being one of them -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What this process is called. It has another name once it was declared dead."""
        return self._standing.name

    @property
    def sure_until(self) -> float:
        """The time, on the clock of the loop, until which nobody can have declared this process dead."""
        return self._standing.sure_until

    @property
    def others(self) -> frozenset[str]:
        """The names of those who were met and are not gone."""
        return frozenset(self._fresh)

    async def join(self) -> None:
        """Becomes one of them: from then on this process has met the others, and they have met it."""
        async with self._joining:
            if self._bus is None:
                await self._enter()
                self._beat_timer = self._clock.call_at(self._clock.now() + self._seconds / _BEATS, self._beat)

    def _new_standing(self) -> Standing:
        return Standing(self._store, self._seconds, self._clock, self._wall)

    async def _enter(self) -> None:
        bus, self._next_bus = self._next_bus or self._store.bus(), None
        standing = self._new_standing()
        if bus is None or not await standing.take():  # which nobody can have, the name being new
            raise RuntimeError("a name that was just made up is taken")
        ears = _Ears(self)
        try:
            await bus.open(standing.name, ears)
        except BaseException:
            ears.close()
            with suppress(StoreError):
                await bus.close()
            raise
        self._standing, self._bus, self._ears = standing, bus, ears
        ears.open()
        bus.publish(_ALIVE)
        self._tell_observers("Join", standing.name)

    async def leave(self) -> None:
        """Is no longer one of them. All that needs its name has been given back."""
        for timer in (self._beat_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        tasks: list[asyncio.Task[Any]] = [
            task for task in (self._beating, *self._checking.values()) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tellings.anew(())
        if self._bus is not None:
            self._bus.publish(_LEAVING)
        try:
            await self._standing.release()
        except StoreError:
            pass  # it runs out by itself
        finally:
            await self._close_bus()
        self._tell_observers("Leave", self.name)

    async def _close_bus(self) -> None:
        bus, self._bus = self._bus, None
        if self._ears is not None:
            self._ears.close()
        if bus is not None:
            await bus.close()

    # --- the lease ---------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = self._clock.now()
        self._beat_timer = self._clock.call_at(now + self._seconds / _BEATS, self._beat)
        self._beat_now()
        self._tell_again(now)
        self._look()
        silent = min(self._fresh, key=self._fresh.__getitem__, default=None)
        if silent is not None and self._fresh[silent] <= now:
            self._check(silent, certain=False)  # one at a time: it is no matter who it is that finds out

    def _beat_now(self) -> None:
        if self._beating is None and self._beat_timer is not None:
            self._beating = asyncio.get_running_loop().create_task(self._renew())
            self._beating.add_done_callback(self._beaten)

    def _beaten(self, beating: "asyncio.Task[None]") -> None:
        self._beating = None
        if not beating.cancelled() and (error := beating.exception()) is not None and not isinstance(error, _FAILED):
            self._report("the lease of this process", error)

    async def _renew(self) -> None:
        """Says in the store and on the bus that this process lives. If the store cannot be reached, that is tried again
        with the next beat."""
        if self._bus is None:
            await self._enter()
            self._again_to_all()
        elif await self._standing.renew():
            self._bus.publish(_ALIVE)
        elif await self._standing.take():
            self._tell_observers("Regain", self.name)
            self._bus.publish(_ALIVE)
            self._missed()
        else:
            await self._deposed()

    async def _deposed(self) -> None:
        """Lets go of everything, and becomes one of them again, under another name."""
        name = self.name
        self._tell_observers("Deposed", name)
        self._forget(name)
        self._standing.sure_until = _NEVER
        for deposed in self._on_deposed:
            self._safely(deposed)
        await self._close_bus()
        self._fresh.clear()
        self._heard.clear()
        await self._enter()
        self._again_to_all()

    def _again_to_all(self) -> None:
        """What was told under a name that nobody knows any more is told again, under the new one; and what others have
        told meanwhile may be anything."""
        for telling in self._tellings.anew(self._fresh):
            self._publish(telling)
        self._missed()

    def _missed(self) -> None:
        for missed in self._on_missed:
            self._safely(missed)

    # --- saying ------------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Sends something to one process; False if it is certain that nobody is there."""
        return self._bus is not None and to not in self._gone and self._bus.send(to, kind + body)

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
        if not self._fresh:
            return None
        telling = self._tellings.tell(kind, body, self._fresh, self._clock.now())
        self._publish(telling)
        if self._look_timer is None:
            self._look()
        return telling.done

    def _publish(self, telling: Telling) -> None:
        if self._bus is not None:
            self._bus.publish(_TOLD + self._tellings.written(telling))

    def _tell_again(self, now: float) -> None:
        """Tells those again who live and have not confirmed something for long; gives up what is too old."""
        for telling in self._tellings.overdue(now - _PATIENCE * self._seconds):
            if self._observers:
                self._observers.on(
                    Dropped(connection=0, at=now, why="another process has not confirmed it", kind=telling.kind.hex())
                )
        for name in self._tellings.awaited():
            self._send_again(name, now - self._seconds)

    def _send_again(self, name: str, before: float = float("inf")) -> None:
        for telling in self._tellings.awaited_of(name, before):
            self.send(name, _TOLD, self._tellings.written(telling))

    # --- hearing -----------------------------------------------------------------------------------

    def on(self, kind: bytes, heard: Handler) -> None:
        """Has a function be told what comes of a kind, which is one byte above 15."""
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
        if name not in self._fresh and name not in self._gone and name != self.name:
            self._fresh[name] = self._clock.now() + self._seconds
            self._tell_observers("Meet", name)

    def heard(self, sender: str, message: bytes) -> None:
        """Something came over the bus."""
        if sender in self._gone:
            if self._bus is not None:
                self._bus.send(sender, _LOOK)
            return
        self.met(sender)
        kind, body = message[:1], message[1:]
        if kind == _ALIVE:
            self._fresh[sender] = self._clock.now() + self._seconds
        elif kind == _TOLD:
            self._told(sender, body)
        elif kind == _CONFIRMED:
            self._tellings.confirmed(sender, int.from_bytes(body))
        elif kind == _LEAVING:
            self._depart(sender, "Depart")
        elif kind == _DEAD:
            self._dead(body.decode())
        elif kind == _LOOK:
            self._beat_now()
        else:
            self._handle(sender, message)

    def _told(self, sender: str, body: bytes) -> None:
        known = self._heard.setdefault(sender, Heard())
        number, text = known.take(body)
        if text is None:
            if known.is_done(number):
                self.send(sender, _CONFIRMED, number.to_bytes(8))
            return
        waiting = self._handle(sender, text)
        if waiting is None:
            self._confirm(sender, known, number)
        else:
            waiting.add_done_callback(lambda _: self._confirm(sender, known, number))

    def _confirm(self, sender: str, known: Heard, number: int) -> None:
        known.done(number)
        self.send(sender, _CONFIRMED, number.to_bytes(8))

    def _handle(self, sender: str, text: bytes) -> "asyncio.Future[Any] | None":
        handler = self._handlers.get(text[:1])
        return None if handler is None else self._safely(partial(handler, sender, text[1:]))

    def lost(self, name: str | None) -> None:
        """Something may not have arrived: what is not confirmed is told again, unless nobody is there."""
        self._say_lost(name)
        for other in list(self._fresh) if name is None else [name]:
            if other in self._gone:
                continue
            if self._bus is not None and not self._bus.send(other, _LOOK):
                self._check(other, certain=True)
            else:
                self._send_again(other)

    def _say_lost(self, name: str | None) -> None:
        for lost in self._on_lost:
            self._safely(partial(lost, name))

    # --- who is dead -------------------------------------------------------------------------------

    async def gone(self, name: str) -> bool:
        """Whether a process is gone; one that has been silent for too long is from now on. Raises `StoreUnavailable` if
        that cannot be found out."""
        if name in self._gone:
            return True
        if name == self.name:
            return False
        certain = self._bus is not None and not self._bus.send(name, _LOOK)
        if not certain and self._fresh.get(name, _NEVER) > self._clock.now():
            return False
        return await asyncio.shield(self._check(name, certain=certain))

    def _check(self, name: str, *, certain: bool) -> "asyncio.Task[bool]":
        """What finds out whether a process is gone: one for each, however many ask."""
        checking = self._checking.get(name)
        if checking is None:
            checking = asyncio.get_running_loop().create_task(self._find_out(name, certain=certain))
            self._checking[name] = checking
            checking.add_done_callback(partial(self._checked, name))
        return checking

    def _checked(self, name: str, checking: "asyncio.Task[bool]") -> None:
        del self._checking[name]
        if not checking.cancelled():
            error = checking.exception()
            if error is not None and not isinstance(error, _FAILED):
                self._report("whether a process is gone", error)
            if error is None:
                self._look()

    async def _find_out(self, name: str, *, certain: bool) -> bool:
        async with asyncio.timeout(self._seconds):
            found = await declare(self._store, name, self.name, certain=certain)
        if isinstance(found, Held) and found.holder == name:
            left = min(max(found.expires - self._wall.now(), 0.0), self._seconds)
            if name in self._fresh:
                self._fresh[name] = self._clock.now() + left
            return False
        if isinstance(found, Lease):
            self._tell_observers("DeclareDead", name)
            self.broadcast(_DEAD, name.encode())
        self._depart(name)
        return True

    def _dead(self, name: str) -> None:
        """Somebody was declared dead by another; if it is this process, it had better see for itself."""
        if name == self.name:
            self._beat_now()
        else:
            self._depart(name)

    def _depart(self, name: str, step: str | None = None) -> None:
        if name in self._gone:
            return
        if step is not None:
            self._tell_observers(step, name)
        self._forget(name)
        self._tellings.gone(name)
        self._say_lost(name)

    def _forget(self, name: str) -> None:
        self._fresh.pop(name, None)
        self._heard.pop(name, None)
        self._gone[name] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _look(self) -> None:
        """Finds out about those who are waited for and silent, and comes back when the next may be."""
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        now = self._clock.now()
        awaited = self._tellings.awaited()
        for name in awaited:
            if self._fresh.get(name, _NEVER) <= now:
                self._check(name, certain=False)
        due = [self._fresh[name] for name in awaited if self._fresh.get(name, _NEVER) > now]
        if due:
            self._look_timer = self._clock.call_at(min(due), self._look)

    # --- telling observers -------------------------------------------------------------------------

    def _safely(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - an error of our own, which is no matter of the bus
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


class _Ears:
    """Hears what comes over one bus, once this process is one of them and for as long as it is."""

    def __init__(self, crew: Crew) -> None:
        self._crew: Crew | None = crew
        self._early: list[Callable[[Crew], object]] | None = []  # until then

    def open(self) -> None:
        """Now it is."""
        early, self._early = self._early or [], None
        for said in early:
            self._say(said)

    def close(self) -> None:
        """It is no more."""
        self._crew = None

    def _say(self, said: Callable[[Crew], object]) -> None:
        if self._early is not None:
            self._early.append(said)
        elif self._crew is not None:
            said(self._crew)

    def heard(self, sender: str, message: bytes) -> None:
        self._say(lambda crew: crew.heard(sender, message))

    def met(self, name: str) -> None:
        self._say(lambda crew: crew.met(name))

    def lost(self, name: str | None) -> None:
        self._say(lambda crew: crew.lost(name))
