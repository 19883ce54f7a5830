"""One client, served: what a server keeps for it, beside what every connection has."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw, UnsetType

from trunkline.clock import Clock
from trunkline.protocol.capabilities import NegotiatedCapabilities
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.refusals import unavailable_refusal
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import LOGGING_LEVELS, Implementation, InputRequiredResult
from trunkline.rpc import connection
from trunkline.rpc.dispatch import Failure
from trunkline.server.call_peer import ClientFacts
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connections import PauseQueue
from trunkline.server.current_call import CURRENT_CALL, CurrentCall
from trunkline.server.input.ask import Asker, RequestAsker
from trunkline.server.input.multi_round import MultiRoundAsker, StateSealers, to_modern_outcome
from trunkline.server.notifications.listen import ListenStream, ListenStreams
from trunkline.server.notifications.subscription_hooks import SubscriptionHooks
from trunkline.stores.store import Store
from trunkline.supervision.restart_policy import History
from trunkline.transports.channel import Channel, ChannelClosed, Receiver, ReusableChannel
from trunkline.wire.messages import Incoming, Request, RequestId

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.cluster.notifications import ClusterNotifications
    from trunkline.server.idempotency.ledger import Ledger
    from trunkline.server.limits.shared_semaphore import SharedSemaphores
    from trunkline.server.sessions.durable import DurableSession, DurableSessions
    from trunkline.server.tasks.service import TaskService

__all__ = ["Connection", "DurableConnection", "SharedServices"]

NEW_SESSION_STARTED: Final = "the client began another session"
_NO_FAILURES: Final = History()
_ALLOWED_WHILE_PAUSED: Final = frozenset({"initialize", "ping", "server/discover", "shutdown"})
_MAX_ID_LENGTH: Final = 100  # characters, in a crash dump
_FLUSH_GRACE: Final = 0.5  # seconds: what is answered when the time is over can still leave


class SharedServices(connection.LoopResources, frozen=True, kw_only=True):
    """What the connections of a server have in common."""

    catalog: ServerCatalog
    subscription_hooks: "SubscriptionHooks[Connection | ListenStream]"
    on_roots_changed: "list[Callable[[Any], Awaitable[None]]]"
    on_connection_closed: "Callable[[Connection], None]"
    on_client_shutdown: "Callable[[Connection], None]"  # by its client, which has said so
    connect: "Callable[[Channel], Connection]"
    listen_streams: "ListenStreams"
    state_tokens: "StateSealers"
    store: Store  # open
    wall_clock: Clock  # the time of day, as the store counts it
    get_ledger: "Callable[[], Ledger]"  # of calls that are done once; made when there is the first
    tasks: "TaskService"
    durable_sessions: "DurableSessions | None" = None  # of sessions, where they outlive the process
    cluster: "Cluster | None" = None  # the other processes that share the store, where they can be reached
    cluster_notifications: "ClusterNotifications | None" = (
        None  # for clients of all of them, where sessions outlive the process
    )
    shared_semaphores: "SharedSemaphores | None" = (
        None  # of tools that all who share the store may call only so often at once
    )
    get_lifespan_value: "Callable[[], Any]"  # gives what the server holds while it serves
    on_call_cancelled: "Callable[[Any], None]"  # is told of the work of calls that is cancelled


class Connection(connection.Connection):
    """One client on the line."""

    __slots__ = (
        "_pause_queue",
        "_tracks_current_call",
        "catalog",
        "durable_session",
        "failure_history",
        "last_call",
        "log_level",
        "shared",
    )

    def __init__(self, shared: SharedServices, channel: Channel) -> None:
        catalog = self.catalog = shared.catalog
        session = self.new_session()
        super().__init__(shared, session, channel)
        self.shared = shared
        self.failure_history = _NO_FAILURES  # of conversations on this line, by errors of our own
        self.log_level = LOGGING_LEVELS.index("info")
        self.last_call: IncomingRequest | None = None  # where calls are marked, or something was subscribed to
        self._tracks_current_call = False
        self._pause_queue: PauseQueue | None = None  # while it takes nothing new
        self.durable_session: DurableSession | None = None  # what is kept of its session, to go on with elsewhere
        if shared.durable_sessions is not None and channel.info.session is not None:
            self.durable_session = shared.durable_sessions.attach(self, channel.info.session)
        if channel.info.revision is not None:
            session.assume_handshake(Revision(channel.info.revision))
        if catalog.tracks_current_call:
            self.track_current_call()

    def new_session(self) -> Session:
        """A conversation that has yet to begin."""
        catalog = self.catalog
        return Session(
            Side.SERVER,
            info=catalog.info,
            capabilities=catalog.capabilities(),
            instructions=catalog.instructions,
            settings=catalog.settings,
            modern=catalog.stateless,
            profile=None if catalog.profile is None else catalog.profile.name,
        )

    def handle_internal_error(self, error: Exception, during: Incoming | IncomingRequest | None = None) -> None:
        """Begins the conversation anew, as what it was."""
        from trunkline.server.session_recovery import recover_session

        recover_session(self, error, during)

    def log_level_of(self, call: IncomingRequest) -> int:
        """The lowest level that the caller wants to hear of. A request of the modern era has to say that it does."""
        envelope = call.envelope
        if envelope is None:
            return self.log_level
        return len(LOGGING_LEVELS) if envelope.log_level is None else LOGGING_LEVELS.index(envelope.log_level)

    # --- what contexts ask for ---------------------------------------------------------------------

    @property
    def session_id(self) -> int | None:
        """A number for the conversation; None where each call stands for itself."""
        return None if self.channel.info.stateless else self.number

    @property
    def local(self) -> bool:
        """Whether the client is somebody who has not to say who it is."""
        return self.channel.info.local

    @property
    def lifespan(self) -> Any:
        """What the server holds while it serves."""
        return self.shared.get_lifespan_value()

    def revision_of(self, call: IncomingRequest) -> Revision:
        """The revision that a call is written in."""
        return self.session.revision_of(call)

    def client_of(self, call: IncomingRequest) -> ClientFacts:
        """Who sent a call, by its own account."""
        if call.envelope is not None:
            return ClientFacts(call.envelope.info, call.envelope.capabilities)
        agreed = self.session.negotiated
        return ClientFacts(self.session.peer, agreed.client if agreed is not None else {})

    def asker_of(self, call: IncomingRequest) -> Asker:
        """Who puts questions of a call to its client."""
        return RequestAsker(self, call) if call.envelope is None else MultiRoundAsker(self, call)

    def drain_of(self, call: IncomingRequest) -> Callable[[], Coroutine[Any, Any, None]]:
        """What waits while the client reads too slowly; nobody waits for another's client."""
        return call.origin.stream.drain if self.channel.info.stateless else self.channel.drain

    def progress(self, call: IncomingRequest, progress: float, total: float | None, message: str | None) -> None:
        """Reports progress of a call."""
        self.report_progress(call, progress, total, message)

    def checkpoint_of(self, call: IncomingRequest) -> Raw | UnsetType:  # noqa: ARG002 - tasks have some
        """What an earlier run has kept: of a call that is no task there was none."""
        return UNSET

    async def save_checkpoint(self, call: IncomingRequest, checkpoint: Raw) -> None:
        """A call that is no task ends with its connection, and nobody goes on with it."""

    async def begin_task(self, call: IncomingRequest) -> None:
        """Goes on as a task, if that is how a call goes on."""
        if call.task is not None:
            await call.task()

    # --- what is known of calls --------------------------------------------------------------------

    def pause(self, *, wait: bool) -> None:
        """Takes nothing new but a ping, and what a conversation begins and ends with. The rest is refused, or waits if
        not too much does; what is under way goes on."""
        if not wait and self.session.allows(Signal.PAUSE):
            self.step(Signal.PAUSE)
        self._pause_queue = PauseQueue(self.now(), self._max_queued if wait else 0)
        self._choose_start()

    @property
    def _max_queued(self) -> int:
        return self.settings.max_connections if self.channel.info.stateless else self.settings.max_waiting

    def resume(self) -> None:
        """Takes everything again, what has waited first."""
        if self.session.phase is Phase.PAUSED:
            self.step(Signal.RESUME)
        rested, self._pause_queue = self._pause_queue, None
        self._choose_start()
        if rested is not None:
            for call, params in rested.pending:
                call.queued = False
                self.admit_call(call, params)

    def _choose_start(self) -> None:
        usual = self._start_tracked if self._tracks_current_call else self._start_call
        self._starter = usual if self._pause_queue is None else partial(self._start_or_queue, usual, self._pause_queue)

    def _start_or_queue(
        self, start: Callable[[IncomingRequest, Any], None], queue: PauseQueue, call: IncomingRequest, params: Any
    ) -> None:
        """Lets what comes wait, or refuses it: also before the handshake is complete, and in the era that has none."""
        if call.started < queue.since or call.method.name in _ALLOWED_WHILE_PAUSED:
            start(call, params)
        elif queue.enqueue(call, params):
            self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))  # its time runs
            self._deadline_timer.watch(call)
        else:
            self._refuse(call, Phase.PAUSED)

    def _refuse(self, call: IncomingRequest, phase: Phase) -> None:
        error = unavailable_refusal(call.method.name, phase)
        self.replies.reply_failure(call, Failure(error), error)

    def track_current_call(self) -> None:
        """From now on the call that is being answered can be found without its context, see `CURRENT`, and the last
        one is known: a client may come back as somebody with other rights."""
        self._tracks_current_call = True
        self._choose_start()

    def _start_tracked(self, call: IncomingRequest, params: Any) -> None:
        self.last_call = call
        mark = CURRENT_CALL.set(CurrentCall(self, call))
        try:
            self._start_call(call, params)
        finally:
            CURRENT_CALL.reset(mark)

    @property
    def authorizing_call(self) -> "tuple[Connection, IncomingRequest | None]":
        """Who it is that has subscribed, as far as is known by now: the sender of the last call."""
        return self, self.last_call

    def reply_error(self, call: IncomingRequest, error: BaseException) -> None:
        """Answers a call that failed; one of the modern era perhaps by a question."""
        if call.envelope is not None:
            outcome = to_modern_outcome(call, error)
            if isinstance(outcome, InputRequiredResult):
                self.replies.reply_result(call, outcome)
                return
            error = outcome
        super().reply_error(call, error)

    def snapshot(self) -> dict[str, Any]:
        """How it stands, without anything that was said on it."""
        session = self.session
        return {
            "number": self.number,
            "transport": self.channel.info.transport,
            "phase": session.phase.name,
            "revision": None if session.revision is None else session.revision.value,
            "pending": [
                {"id": _truncate_id(call.id), "method": call.method.name} for call in session.incoming_requests.values()
            ],
            "awaited": [{"id": asked.id, "method": asked.method.name} for asked in session.outgoing_requests.values()],
        }

    def on_draining(self) -> None:
        """Nothing new is taken any more, be it that it has waited, and nothing new will be told."""
        rested, self._pause_queue = self._pause_queue, None
        self._choose_start()
        for call, _ in () if rested is None else rested.pending:
            self._refuse(call, Phase.DRAINING)
        self.shared.listen_streams.end(self)

    async def end_session(self) -> None:
        """Ends for good, as soon as all that runs has ended: the line is closed, and nothing is kept of the session."""
        drain = self.settings.drain_timeout
        await self.drain_and_close(None if drain is None else drain + _FLUSH_GRACE)
        if self.durable_session is not None:
            await self.durable_session.delete()

    def report_phase_change(self, before: Phase) -> None:
        """Tells that the session has left a phase; that the handshake is complete is kept."""
        super().report_phase_change(before)
        if before is Phase.INITIALIZING and self.durable_session is not None:
            self.durable_session.write_soon()

    def reply_once_persisted(self, reply: Any) -> Any:
        """An answer to a call that has changed something about the session: it leaves once that is kept."""
        return reply if self.durable_session is None else self.durable_session.reply_after_write(reply)

    def restore(
        self, revision: Revision, agreed: NegotiatedCapabilities, client: Implementation | None, *, complete: bool
    ) -> None:
        """Goes on with a conversation that another process has begun."""
        before = self.session.phase
        self.session.restore_handshake(revision, agreed, client, complete=complete)
        super().report_phase_change(before)

    def _stop_work(self, call: IncomingRequest) -> None:
        self.shared.on_call_cancelled(call.work)
        super()._stop_work(call)

    def start_next_session(self, message: Incoming) -> Receiver | None:
        """Begin another session for a second `initialize` on standard input and output, unless calls are under way:
        gateways serve one client after the other by one process. Nothing of this session is left to the next."""
        channel = self.channel
        if not channel.info.sole_peer or not isinstance(channel, ReusableChannel):
            return None
        if not isinstance(message, Request) or not self.session.replaced_by(message):
            return None
        self.closed(ChannelClosed(NEW_SESSION_STARTED))
        successor = self.shared.connect(channel)
        channel.replace_receiver(successor)
        return successor

    def on_closed(self) -> None:
        """The client has gone, and its subscriptions go with it; what is kept of them stays."""
        if self.durable_session is not None:
            self.durable_session.connection = None
        self.shared.on_connection_closed(self)


class DurableConnection(Connection):
    """One client of a server that keeps what its clients are told."""

    __slots__ = ("_cluster_notifications",)

    def __init__(self, shared: SharedServices, channel: Channel, notification_fanout: "ClusterNotifications") -> None:
        super().__init__(shared, channel)
        self._cluster_notifications = notification_fanout

    def _on_call_ended(self, call: IncomingRequest, value: Any, error: BaseException | None) -> None:
        """Answers a call that has come to its end, once everything is kept, here and elsewhere, that others are told:
        it may have been the reason, and who is answered counts on it."""
        if call.done or (news := self._cluster_notifications.pending_changes) is None:
            super()._on_call_ended(call, value, error)
            return
        if call.scheduled_at is None:  # it has no time yet
            self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))
            self._deadline_timer.watch(call)
        end = super()._on_call_ended
        news.add_done_callback(lambda _: end(call, value, error))


def _truncate_id(request_id: RequestId) -> RequestId:
    """An id that somebody else has chosen."""
    return request_id if isinstance(request_id, int) else request_id[:_MAX_ID_LENGTH]
