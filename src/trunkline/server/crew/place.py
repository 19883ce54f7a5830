"""The place of this process among the others: its name, the lease that goes with it, and the bus on which it is known
by it. Who was declared dead has no place, until it comes back under another name."""

from contextlib import suppress

from trunkline.clock import Clock
from trunkline.errors import StoreError, StoreUnavailable
from trunkline.server.cluster.membership import Standing
from trunkline.server.cluster.messages import Audience
from trunkline.server.crew.ears import CrewEars
from trunkline.server.crew.kinds import ALIVE, CALL, LOOK
from trunkline.server.crew.roster import Roster
from trunkline.stores.bus import Bus, Ears
from trunkline.stores.store import Store

__all__ = ["Place"]


class Place:
    """One place at a time."""

    def __init__(
        self, store: Store, bus: Bus, roster: Roster, audience: Audience, *, seconds: float, clock: Clock, wall: Clock
    ) -> None:
        """`bus` is for the first place; the store has others."""
        self._store = store
        self._roster = roster
        self._audience = audience
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._unused: Bus | None = bus
        self._bus: Bus | None = None  # open, between entering and leaving
        self._ears: CrewEars | None = None
        self.standing = self._new_standing()

    def _new_standing(self) -> Standing:
        return Standing(self._store, self._seconds, self._clock, self._wall)

    @property
    def name(self) -> str:
        """What this process is called, or was called last."""
        return self.standing.name

    @property
    def sure(self) -> bool:
        """Whether nobody can have declared this process dead."""
        return self._clock.now() < self.standing.sure_until

    @property
    def may_evict(self) -> bool:
        """Whether this process may declare others dead that are silent: it is sure that it lives itself, and all that
        were sure of it before the store lost its data have found out."""
        return self.sure and self._clock.now() >= self.standing.settled_at

    @property
    def taken(self) -> bool:
        """Whether this process has a place now."""
        return self._bus is not None

    async def enter(self, crew: Ears) -> None:
        """Makes up a name, and has it known."""
        bus, self._unused = self._unused or self._store.bus(), None
        standing = self._new_standing()
        ears = CrewEars(crew)
        try:
            if bus is None or not await standing.take() or standing.identity is None:
                raise StoreUnavailable("there is no way to the processes that share the store")
            await bus.open(standing.name, ears, standing.identity)
        except BaseException:
            with suppress(StoreError):
                await standing.release()
            raise
        self.standing, self._bus, self._ears = standing, bus, ears
        self._audience.step("Join", standing.name)
        ears.begin()
        bus.publish(ALIVE)

    async def leave(self) -> None:
        """Says and hears nothing any more."""
        bus, self._bus = self._bus, None
        self._roster.forget()
        if self._ears is not None:
            self._ears.end()
        if bus is not None:
            await bus.close()

    # --- saying ------------------------------------------------------------------------------------

    def send(self, to: str, kind: bytes, body: bytes = b"") -> bool:
        """Sends something to one process. False if nothing was sent: it is certain that nobody is there, or this
        process has no name for now."""
        if self._roster.is_gone(to):
            return False
        return self._bus is not None and self._bus.send(to, kind + body)

    def broadcast(self, kind: bytes, body: bytes = b"") -> None:
        """Sends something to all others."""
        if self._bus is not None:
            self._bus.publish(kind + body)

    async def sent(self) -> None:
        """Waits while much of what was sent has not left yet."""
        if self._bus is not None:
            await self._bus.sent()

    def reaches(self, name: str) -> bool:
        """False if it is certain that a process is not there; otherwise it is asked to say that it is."""
        return self._bus is None or self._bus.send(name, CALL)

    def warn(self, name: str) -> None:
        """Tells a process that others take for dead, and that does not know, to see for itself."""
        if self._bus is not None:
            self._bus.send(name, LOOK)
