"""One client, served: what a server keeps for it, beside what every connection has."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw, UnsetType

from trunkline.clock import Clock
from trunkline.protocol.capabilities import Negotiated
from trunkline.protocol.inflight import Running
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.refusals import unavailable
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import LOGGING_LEVELS, Implementation, InputRequiredResult
from trunkline.rpc import connection
from trunkline.rpc.dispatch import Failure
from trunkline.rpc.progress import report
from trunkline.server.call_peer import ClientFacts
from trunkline.server.catalog import Offer
from trunkline.server.connections import Resting
from trunkline.server.current_call import CURRENT, Current
from trunkline.server.input.ask import Asker, LiveAsker
from trunkline.server.input.multi_round import RoundAsker, Seals, ending
from trunkline.server.notifications.listen import Listeners, Listening
from trunkline.server.notifications.subscription_hooks import Watchers
from trunkline.stores.store import Store
from trunkline.supervision.restart_policy import History
from trunkline.transports.channel import Channel, Closed, Receiver, Reusable
from trunkline.wire.messages import Incoming, Request, RequestId

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Crew
    from trunkline.server.cluster.notifications import News
    from trunkline.server.idempotency.ledger import Ledger
    from trunkline.server.limits.shared_semaphore import Slots
    from trunkline.server.sessions.durable import Keeper, KeptSession
    from trunkline.server.tasks.service import Tasks

__all__ = ["Connection", "KeptConnection", "Shared"]

NEXT_SESSION: Final = "the client began another session"
_NO_LOSSES: Final = History()
_WHILE_PAUSED: Final = frozenset({"initialize", "ping", "server/discover", "shutdown"})
_LONGEST_ID: Final = 100  # characters, in a crash dump
_LAST_MOMENT: Final = 0.5  # seconds: what is answered when the time is over can still leave


class Shared(connection.Shared, frozen=True, kw_only=True):
    """What the connections of a server have in common."""

    offer: Offer
    watchers: "Watchers[Connection | Listening]"
    on_roots_changed: "list[Callable[[Any], Awaitable[None]]]"
    departed: "Callable[[Connection], None]"
    left: "Callable[[Connection], None]"  # by its client, which has said so
    connect: "Callable[[Channel], Connection]"
    listeners: "Listeners"
    seals: "Seals"
    store: Store  # open
    wall: Clock  # the time of day, as the store counts it
    ledger: "Callable[[], Ledger]"  # of calls that are done once; made when there is the first
    tasks: "Tasks"
    keeper: "Keeper | None" = None  # of sessions, where they outlive the process
    crew: "Crew | None" = None  # the other processes that share the store, where they can be reached
    news: "News | None" = None  # for clients of all of them, where sessions outlive the process
    slots: "Slots | None" = None  # of tools that all who share the store may call only so often at once
    lifespan: "Callable[[], Any]"  # gives what the server holds while it serves
    stopped: "Callable[[Any], None]"  # is told of the work of calls that is cancelled


class Connection(connection.Connection):
    """One client on the line."""

    __slots__ = ("_marks", "_resting", "kept", "last_call", "log_level", "losses", "offer", "shared")

    def __init__(self, shared: Shared, channel: Channel) -> None:
        offer = self.offer = shared.offer
        session = self.new_session()
        super().__init__(shared, session, channel)
        self.shared = shared
        self.losses = _NO_LOSSES  # of conversations on this line, by errors of our own
        self.log_level = LOGGING_LEVELS.index("info")
        self.last_call: Running | None = None  # where calls are marked, or something was subscribed to
        self._marks = False
        self._resting: Resting | None = None  # while it takes nothing new
        self.kept: KeptSession | None = None  # what is kept of its session, to go on with elsewhere
        if shared.keeper is not None and channel.info.session is not None:
            self.kept = shared.keeper.held_by(self, channel.info.session)
        if channel.info.revision is not None:
            session.assume(Revision(channel.info.revision))
        if offer.marks_calls:
            self.mark_calls()

    def new_session(self) -> Session:
        """A conversation that has yet to begin."""
        offer = self.offer
        return Session(
            Side.SERVER,
            info=offer.info,
            capabilities=offer.capabilities(),
            instructions=offer.instructions,
            settings=offer.settings,
            stateless=offer.stateless,
            profile=None if offer.profile is None else offer.profile.name,
        )

    def crashed(self, error: Exception, over: Incoming | Running | None = None) -> None:
        """Begins the conversation anew, as what it was."""
        from trunkline.server.session_recovery import fail_over

        fail_over(self, error, over)

    def log_level_of(self, call: Running) -> int:
        """The lowest level that the caller wants to hear of. A request of the modern era has to say that it does."""
        envelope = call.envelope
        if envelope is None:
            return self.log_level
        return len(LOGGING_LEVELS) if envelope.log_level is None else LOGGING_LEVELS.index(envelope.log_level)

    # --- what contexts ask for ---------------------------------------------------------------------

    @property
    def session_id(self) -> int | None:
        """A number for the conversation; None where each call stands for itself."""
        return None if self.channel.info.shared else self.number

    @property
    def local(self) -> bool:
        """Whether the client is somebody who has not to say who it is."""
        return self.channel.info.local

    @property
    def lifespan(self) -> Any:
        """What the server holds while it serves."""
        return self.shared.lifespan()

    def revision_of(self, call: Running) -> Revision:
        """The revision that a call is written in."""
        return self.session.revision_of(call)

    def client_of(self, call: Running) -> ClientFacts:
        """Who sent a call, by its own account."""
        if call.envelope is not None:
            return ClientFacts(call.envelope.info, call.envelope.capabilities)
        agreed = self.session.negotiated
        return ClientFacts(self.session.peer, agreed.client if agreed is not None else {})

    def asker_of(self, call: Running) -> Asker:
        """Who puts questions of a call to its client."""
        return LiveAsker(self, call) if call.envelope is None else RoundAsker(self, call)

    def drain_of(self, call: Running) -> Callable[[], Coroutine[Any, Any, None]]:
        """What waits while the client reads too slowly; nobody waits for another's client."""
        return call.origin.stream.drain if self.channel.info.shared else self.channel.drain

    def progress(self, call: Running, progress: float, total: float | None, message: str | None) -> None:
        """Reports progress of a call."""
        report(self, call, progress, total, message)

    def checkpoint_of(self, call: Running) -> Raw | UnsetType:  # noqa: ARG002 - tasks have some
        """What an earlier run has kept: of a call that is no task there was none."""
        return UNSET

    async def keep_checkpoint(self, call: Running, checkpoint: Raw) -> None:
        """A call that is no task ends with its connection, and nobody goes on with it."""

    async def begin_task(self, call: Running) -> None:
        """Goes on as a task, if that is how a call goes on."""
        if call.task is not None:
            await call.task()

    # --- what is known of calls --------------------------------------------------------------------

    def pause(self, *, wait: bool) -> None:
        """Takes nothing new but a ping, and what a conversation begins and ends with. The rest is refused, or waits if
        not too much does; what is under way goes on."""
        if not wait and self.session.allows(Signal.PAUSE):
            self.step(Signal.PAUSE)
        self._resting = Resting(self.now(), self._most_held if wait else 0)
        self._choose_start()

    @property
    def _most_held(self) -> int:
        return self.settings.max_connections if self.channel.info.shared else self.settings.max_waiting

    def resume(self) -> None:
        """Takes everything again, what has waited first."""
        if self.session.phase is Phase.PAUSED:
            self.step(Signal.RESUME)
        rested, self._resting = self._resting, None
        self._choose_start()
        if rested is not None:
            for call, params in rested.waiting:
                call.queued = False
                self.take(call, params)

    def _choose_start(self) -> None:
        usual = self._start_marked if self._marks else self._start_call
        self._start = usual if self._resting is None else partial(self._start_or_rest, usual, self._resting)

    def _start_or_rest(
        self, start: Callable[[Running, Any], None], resting: Resting, call: Running, params: Any
    ) -> None:
        """Lets what comes wait, or refuses it: also before the handshake is complete, and in the era that has none."""
        if call.started < resting.since or call.method.name in _WHILE_PAUSED:
            start(call, params)
        elif resting.holds(call, params):
            self.limit(call, call.method.wait.seconds(self.settings))  # its time runs
            self._alarm.watch(call)
        else:
            self._refuse(call, Phase.PAUSED)

    def _refuse(self, call: Running, phase: Phase) -> None:
        error = unavailable(call.method.name, phase)
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
            "pending": [{"id": _short(call.id), "method": call.method.name} for call in session.in_flight.values()],
            "awaited": [{"id": asked.id, "method": asked.method.name} for asked in session.pending.values()],
        }

    def draining(self) -> None:
        """Nothing new is taken any more, be it that it has waited, and nothing new will be told."""
        rested, self._resting = self._resting, None
        self._choose_start()
        for call, _ in () if rested is None else rested.waiting:
            self._refuse(call, Phase.DRAINING)
        self.shared.listeners.end(self)

    async def leave(self) -> None:
        """Ends for good, as soon as all that runs has ended: the line is closed, and nothing is kept of the session."""
        drain = self.settings.drain_timeout
        await self.finish(None if drain is None else drain + _LAST_MOMENT)
        if self.kept is not None:
            await self.kept.drop()

    def phase_changed(self, before: Phase) -> None:
        """Tells that the session has left a phase; that the handshake is complete is kept."""
        super().phase_changed(before)
        if before is Phase.INITIALIZING and self.kept is not None:
            self.kept.changed()

    def keep(self, answer: Any) -> Any:
        """An answer to a call that has changed something about the session: it leaves once that is kept."""
        return answer if self.kept is None else self.kept.kept(answer)

    def restore(self, revision: Revision, agreed: Negotiated, client: Implementation | None, *, complete: bool) -> None:
        """Goes on with a conversation that another process has begun."""
        before = self.session.phase
        self.session.restore(revision, agreed, client, complete=complete)
        super().phase_changed(before)

    def _stop(self, call: Running) -> None:
        self.shared.stopped(call.work)
        super()._stop(call)

    def succeeded_by(self, message: Incoming) -> Receiver | None:
        """Begin another session for a second `initialize` on standard input and output, unless calls are under way:
        gateways serve one client after the other by one process. Nothing of this session is left to the next."""
        channel = self.channel
        if not channel.info.sole or not isinstance(channel, Reusable):
            return None
        if not isinstance(message, Request) or not self.session.replaced_by(message):
            return None
        self.closed(Closed(NEXT_SESSION))
        successor = self.shared.connect(channel)
        channel.hand_over(successor)
        return successor

    def departed(self) -> None:
        """The client has gone, and its subscriptions go with it; what is kept of them stays."""
        if self.kept is not None:
            self.kept.connection = None
        self.shared.departed(self)


class KeptConnection(Connection):
    """One client of a server that keeps what its clients are told."""

    __slots__ = ("_news",)

    def __init__(self, shared: Shared, channel: Channel, news: "News") -> None:
        super().__init__(shared, channel)
        self._news = news

    def _ended(self, call: Running, value: Any, error: BaseException | None) -> None:
        """Answers a call that has come to its end, once everything is kept, here and elsewhere, that others are told:
        it may have been the reason, and who is answered counts on it."""
        if call.done or (news := self._news.unsettled) is None:
            super()._ended(call, value, error)
            return
        if call.noted is None:  # it has no time yet
            self.limit(call, call.method.wait.seconds(self.settings))
            self._alarm.watch(call)
        end = super()._ended
        news.add_done_callback(lambda _: end(call, value, error))


def _short(ident: RequestId) -> RequestId:
    """An id that somebody else has chosen."""
    return ident if isinstance(ident, int) else ident[:_LONGEST_ID]
