"""One client, served: what a server keeps for it, beside what every connection has."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trunkline.clock import Clock
from trunkline.conversation import connection
from trunkline.conversation.dispatch import Failure
from trunkline.protocol.inflight import Running
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.refusals import unavailable
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import LOGGING_LEVELS, InputRequiredResult
from trunkline.server.current import CURRENT, Current
from trunkline.server.listening import Listeners, Listening
from trunkline.server.offer import Offer
from trunkline.server.rounds import Seals, ending
from trunkline.server.watchers import Watchers
from trunkline.stores.store import Store
from trunkline.transports.channel import Channel

if TYPE_CHECKING:
    from trunkline.server.ledger import Ledger

__all__ = ["Connection", "Shared"]

_ALL: Final = 1 << 40  # calls: more than there can ever be
_WHILE_PAUSED: Final = frozenset({"initialize", "ping", "server/discover"})


class Shared(connection.Shared, frozen=True, kw_only=True):
    """What the connections of a server have in common."""

    offer: Offer
    watchers: "Watchers[Connection | Listening]"
    on_roots_changed: "list[Callable[[Any], Awaitable[None]]]"
    departed: "Callable[[Connection], None]"
    listeners: "Listeners"
    seals: "Seals"
    store: Store  # open
    wall: Clock  # the time of day, as the store counts it
    ledger: "Callable[[], Ledger]"  # of calls that are done once; made when there is the first
    lifespan: Any = None  # what the server holds while it serves


class Connection(connection.Connection):
    """One client on the line."""

    __slots__ = ("_marks", "_refused_from", "last_call", "log_level", "offer", "shared")

    def __init__(self, shared: Shared, channel: Channel) -> None:
        offer = shared.offer
        session = Session(
            Side.SERVER,
            info=offer.info,
            capabilities=offer.capabilities(),
            instructions=offer.instructions,
            settings=offer.settings,
            stateless=offer.stateless,
        )
        super().__init__(shared, session, channel)
        self.shared = shared
        self.offer = offer
        self.log_level = LOGGING_LEVELS.index("info")
        self.last_call: Running | None = None  # where calls are marked, or something was subscribed to
        self._marks = False
        self._refused_from: float | None = None  # calls that came since then, if it takes none
        if channel.info.revision is not None:
            session.assume(Revision(channel.info.revision))
        if offer.marks_calls:
            self.mark_calls()

    def log_level_of(self, call: Running) -> int:
        """The lowest level that the caller wants to hear of. A request of the modern era has to say that it does."""
        envelope = call.envelope
        if envelope is None:
            return self.log_level
        return len(LOGGING_LEVELS) if envelope.log_level is None else LOGGING_LEVELS.index(envelope.log_level)

    def pause(self, *, wait: bool) -> None:
        """Takes nothing new but a ping, and what a conversation begins with. The rest is refused, or waits; what is
        under way goes on."""
        if wait:
            self._max_calls -= _ALL
            return
        if self.session.allows(Signal.PAUSE):
            self.step(Signal.PAUSE)
        self._refused_from = self.now()
        self._choose_start()

    def resume(self) -> None:
        """Takes everything again, what has waited first."""
        if self.session.phase is Phase.PAUSED:
            self.step(Signal.RESUME)
        self._refused_from = None
        self._choose_start()
        if self._max_calls < 0:
            self.rest(_ALL)

    def _choose_start(self) -> None:
        usual = self._start_marked if self._marks else self._start_call
        self._start = usual if self._refused_from is None else partial(self._start_or_refuse, usual, self._refused_from)

    def _start_or_refuse(self, start: Callable[[Running, Any], None], since: float, call: Running, params: Any) -> None:
        """Refuses what the phase does not: before the handshake is complete, and in the era that has none."""
        if call.started < since or call.method.name in _WHILE_PAUSED:
            start(call, params)
        else:
            error = unavailable(call.method.name, Phase.PAUSED)
            self.conclude(call, Failure(error), error)

    def mark_calls(self) -> None:
        """From now on the call that is being answered can be found without its context, see `CURRENT`, and the last
        one is known: a client may come back as somebody with other rights."""
        self._marks = True
        self._choose_start()

    def _start_marked(self, call: Running, params: Any) -> None:
        self.last_call = call
        mark = CURRENT.set(Current(self, call))
        try:
            self._start_call(call, params)
        finally:
            CURRENT.reset(mark)

    @property
    def standing(self) -> "tuple[Connection, Running | None]":
        """Who it is that has subscribed, as far as is known by now: the sender of the last call."""
        return self, self.last_call

    def fail(self, call: Running, error: BaseException) -> None:
        """Answers a call that failed; one of the modern era perhaps by a question."""
        if call.envelope is not None:
            outcome = ending(call, error)
            if isinstance(outcome, InputRequiredResult):
                self.succeed(call, outcome)
                return
            error = outcome
        super().fail(call, error)

    def situation(self) -> dict[str, Any]:
        """How it stands, without anything that was said on it."""
        session = self.session
        return {
            "number": self.number,
            "transport": self.channel.info.transport,
            "phase": session.phase.name,
            "revision": None if session.revision is None else session.revision.value,
            "pending": [{"id": call.id, "method": call.method.name} for call in session.in_flight.values()],
            "awaited": [{"id": asked.id, "method": asked.method.name} for asked in session.pending.values()],
        }

    def draining(self) -> None:
        """Nothing new is taken any more, and nothing new will be told."""
        self.shared.listeners.end(self)

    def departed(self) -> None:
        """The client has gone, and its subscriptions go with it."""
        self.shared.departed(self)
