"""Connection of a server to one client, and the services that connections share."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import UNSET, Raw, UnsetType

from trunkline.protocol.capabilities import NegotiatedCapabilities
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.refusals import unavailable_refusal
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import LOGGING_LEVELS, Implementation
from trunkline.rpc.connection import PeerConnection
from trunkline.rpc.current_call import CURRENT_CALL, CurrentCall
from trunkline.server.runtime_services import RuntimeServices
from trunkline.transports.channel import Channel, ChannelClosed, Receiver, ReusableChannel
from trunkline.wire.messages import Incoming, Request, RequestId

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile
    from trunkline.receipts.writer import ReceiptWriter
    from trunkline.server.call_peer import ClientFacts
    from trunkline.server.call_receipts import CallReceipts
    from trunkline.server.idempotency.ledger import Ledger
    from trunkline.server.input.ask import Asker
    from trunkline.server.input.multi_round import StateSealers
    from trunkline.server.limits.rate_limits import CallerLimits, RateLimited, RateLimits
    from trunkline.server.notifications.listen import ListenStream, ListenStreams
    from trunkline.server.notifications.subscription_hooks import SubscriptionHooks
    from trunkline.server.notifications.update_relay import UpdateRelay
    from trunkline.server.pause_queue import PauseQueue
    from trunkline.server.resilience.circuit_breaker import CircuitBreakers
    from trunkline.server.sessions.durable import DurableSession
    from trunkline.server.tasks.service import TaskService
    from trunkline.supervision.restart_policy import History

__all__ = ["Connection", "ConnectionOwner", "SharedServices"]

NEW_SESSION_STARTED: Final = "the client began another session"
_ALLOWED_WHILE_PAUSED: Final = frozenset({"initialize", "ping", "server/discover", "shutdown"})
_MAX_ID_LENGTH: Final = 100  # characters of a request id in a crash dump
_FLUSH_GRACE: Final = 0.5  # seconds for replies sent at the end of the drain to leave


class ConnectionOwner(Protocol):
    """Owner of the connections of a server. All methods are called on the event loop and return at once."""

    def connect(self, channel: Channel) -> "Connection":
        """Serve one channel; return its connection."""
        ...

    def on_connection_closed(self, connection: "Connection") -> None:
        """Forget a connection and its subscriptions."""
        ...

    def on_client_shutdown(self, connection: "Connection") -> None:
        """End the session of a client that sent `shutdown`."""
        ...

    def end_listen_streams(self, connection: "Connection") -> None:
        """End the open `subscriptions/listen` requests of a connection."""
        ...

    def on_call_cancelled(self, work: Any) -> None:
        """Remember the work of a cancelled call until it has ended."""
        ...


class SharedServices(RuntimeServices, frozen=True, kw_only=True):
    """Services of one server runtime that its connections share."""

    get_subscription_hooks: (
        "Callable[[], SubscriptionHooks[Connection | ListenStream | UpdateRelay]]"  # made on first use
    )
    on_roots_changed: "list[Callable[[Any], Awaitable[None]]]"
    owner: "ConnectionOwner"
    get_listen_streams: "Callable[[], ListenStreams]"  # made on first use
    get_state_tokens: "Callable[[], StateSealers]"  # made on first use
    get_ledger: "Callable[[], Ledger]"  # idempotency ledger, made on first use
    get_tasks: "Callable[[], TaskService]"  # made on first use

    @property
    def subscription_hooks(self) -> "SubscriptionHooks[Connection | ListenStream | UpdateRelay]":
        """The resource subscriptions of all clients."""
        return self.get_subscription_hooks()

    @property
    def listen_streams(self) -> "ListenStreams":
        """The open `subscriptions/listen` requests."""
        return self.get_listen_streams()

    @property
    def state_tokens(self) -> "StateSealers":
        """The sealers of request states."""
        return self.get_state_tokens()

    @property
    def tasks(self) -> "TaskService":
        """The tasks of the server."""
        return self.get_tasks()


class Connection(PeerConnection):
    """Connection to one client: session state, log level, pause, and the interface that contexts use (`CallPeer`)."""

    __slots__ = (
        "_caller_limits",
        "_follows_caller",
        "_limits_rate",
        "_pause_queue",
        "_receipts",
        "_tracks_current_call",
        "catalog",
        "close_callbacks",
        "durable_session",
        "failure_history",
        "last_call",
        "log_level",
        "shared",
    )

    def __init__(self, shared: SharedServices, channel: Channel) -> None:
        catalog = self.catalog = shared.catalog
        self.channel = channel  # the new session depends on it
        session = self.new_session()
        super().__init__(shared, session, channel)
        self.shared = shared
        self.failure_history: History | None = None  # of sessions, by internal errors
        self._receipts = None if shared.receipts is None else _make_receipts(self, shared.receipts)
        self.log_level = LOGGING_LEVELS.index("info")
        self.close_callbacks: list[Callable[[], object]] | None = None  # called once the connection has closed
        self.last_call: IncomingRequest | None = None  # of a subscriber: the call that authorizes its notifications
        self._follows_caller = False
        self._tracks_current_call = False
        self._caller_limits: CallerLimits | None = None  # of the last caller
        self._pause_queue: PauseQueue | None = None  # while paused
        self.durable_session: DurableSession | None = None  # its stored session
        if shared.durable_sessions is not None and channel.info.session is not None:
            self.durable_session = shared.durable_sessions.attach(self, channel.info.session)
        if channel.info.revision is not None:
            session.assume_handshake(Revision(channel.info.revision))
        settings = catalog.settings
        self._limits_rate = not (settings.principal_rate is settings.session_rate is settings.server_rate is None)
        if catalog.tracks_current_call:
            self.track_current_call()
        elif self._limits_rate or self._receipts is not None:
            self._choose_start()

    def new_session(self) -> Session:
        """Make a session in its initial phase."""
        catalog = self.catalog
        return Session(
            Side.SERVER,
            info=catalog.info,
            capabilities=catalog.capabilities(),
            instructions=catalog.instructions,
            settings=catalog.settings,
            get_modern=None if self.channel.info.handshake_only else catalog.get_modern,
            profile=catalog.profile,
            find_custom=catalog.find_custom_row,
        )

    def handle_internal_error(self, error: Exception, during: Incoming | IncomingRequest | None = None) -> None:
        """Replace the failed session by one in the same state."""
        from trunkline.server.session_recovery import record_failure, recover_session

        if recover_session(self, error, during, self.new_session):
            self.failure_history = record_failure(self, error, self.failure_history)

    def log_level_of(self, call: IncomingRequest) -> int:
        """Return the lowest log level that the caller wants. A modern request that states none wants no log
        messages."""
        envelope = call.envelope
        if envelope is None:
            return self.log_level
        return len(LOGGING_LEVELS) if envelope.log_level is None else LOGGING_LEVELS.index(envelope.log_level)

    # --- CallPeer, for contexts --------------------------------------------------------------------

    @property
    def session_id(self) -> int | None:
        """Number of the session; None where requests are independent of each other."""
        return None if self.channel.info.stateless else self.number

    @property
    def local(self) -> bool:
        """Whether the client needs no authorization, as on stdio."""
        return self.channel.info.local

    @property
    def transport(self) -> str:
        """Kind of the transport."""
        return self.channel.info.transport

    @property
    def profile(self) -> "Profile | None":
        """Compatibility profile of the session."""
        return self.session.profile

    @property
    def lifespan(self) -> Any:
        """Value of the server's lifespan."""
        return self.shared.get_lifespan_value()

    @property
    def breakers(self) -> "CircuitBreakers":
        """Circuit breakers of the server."""
        return self.shared.get_breakers()

    def revision_of(self, call: IncomingRequest) -> Revision:
        """Return the revision that a call uses."""
        return self.session.revision_of(call)

    def client_of(self, call: IncomingRequest) -> "ClientFacts":
        """Return the name and capabilities of the client that sent a call."""
        from trunkline.server.call_peer import ClientFacts  # imported here: few handlers ask

        if call.envelope is not None:
            return ClientFacts(call.envelope.info, call.envelope.capabilities)
        agreed = self.session.negotiated
        return ClientFacts(self.session.peer, agreed.client if agreed is not None else {})

    def asker_of(self, call: IncomingRequest) -> "Asker":
        """Return the asker that sends the requests of a handler to the client."""
        if call.envelope is None:
            from trunkline.server.input.ask import RequestAsker  # imported here: few handlers ask for input

            return RequestAsker(self, call)
        from trunkline.server.input.multi_round import MultiRoundAsker

        return MultiRoundAsker(call)

    def progress(self, call: IncomingRequest, progress: float, total: float | None, message: str | None) -> None:
        """Report progress of a call."""
        self.report_progress(call, progress, total, message)

    def checkpoint_of(self, call: IncomingRequest) -> Raw | UnsetType:  # noqa: ARG002 - part of CallPeer
        """Return UNSET: only tasks have checkpoints."""
        return UNSET

    async def save_checkpoint(self, call: IncomingRequest, checkpoint: Raw) -> None:
        """Do nothing: a call that is not a task ends with its connection and cannot be resumed."""

    async def begin_task(self, call: IncomingRequest) -> None:
        """Convert the call into a task, if it can become one."""
        if call.task is not None:
            await call.task()

    # --- pause, current call, end --------------------------------------------------------------------

    def pause(self, *, wait: bool) -> None:
        """Refuse or queue new requests, except ping and those that begin and end a session. Running
        requests continue."""
        from trunkline.server.pause_queue import PauseQueue  # imported here: most servers are never paused

        if not wait and self.session.allows(Signal.PAUSE):
            self.step(Signal.PAUSE)
        self._pause_queue = PauseQueue(self.now(), self._max_queued if wait else 0)
        self._choose_start()

    @property
    def _max_queued(self) -> int:
        return self.settings.max_connections if self.channel.info.stateless else self.settings.max_waiting

    def resume(self) -> None:
        """Accept requests again; queued requests start first."""
        if self.session.phase is Phase.PAUSED:
            self.step(Signal.RESUME)
        paused_queue, self._pause_queue = self._pause_queue, None
        self._choose_start()
        if paused_queue is not None:
            for call, params in paused_queue.pending:
                call.queued = False
                self.admit_call(call, params)

    def _choose_start(self) -> None:
        usual = self._start_tracked if self._tracks_current_call else self._usual_starter
        if self._limits_rate:
            usual = partial(self._start_within_rates, self.shared.get_rate_limits(), usual)
        if self._pause_queue is not None:
            usual = partial(self._start_or_queue, usual, self._pause_queue)
        self._starter = usual if self._receipts is None else partial(self._receipts.start, usual)

    def _start_or_queue(
        self, start: Callable[[IncomingRequest, Any], None], queue: "PauseQueue", call: IncomingRequest, params: Any
    ) -> None:
        """Queue or refuse a new call: in every phase, and in the modern era, which has no phases."""
        if call.started < queue.since or call.method.name in _ALLOWED_WHILE_PAUSED:
            start(call, params)
        elif queue.enqueue(call, params):
            self.facts.on_call_queued(call, params)
            self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))  # also while it waits
            self._deadline_timer.watch(call)
        else:
            self._refuse(call, Phase.PAUSED)

    def _start_within_rates(
        self, limits: "RateLimits", start: Callable[[IncomingRequest, Any], None], call: IncomingRequest, params: Any
    ) -> None:
        """Start a call unless its sender, or the server, is above its rate. Other processes may have to be asked."""
        if call.method.name in _ALLOWED_WHILE_PAUSED:
            start(call, params)
            return
        self._caller_limits = limits.limits_of(self, call, self._caller_limits)
        answer = limits.check(self._caller_limits.limiters)
        if answer is None:
            start(call, params)
        elif isinstance(answer, BaseException):
            self.reply_error(call, answer)
        else:
            call.queued = True
            self.facts.on_call_queued(call, params)
            self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))
            self._deadline_timer.watch(call)
            call.work = self.loop.create_task(self._start_when_admitted(answer, start, call, params))

    async def _start_when_admitted(
        self,
        answer: "Callable[[], Awaitable[RateLimited | None]]",
        start: Callable[[IncomingRequest, Any], None],
        call: IncomingRequest,
        params: Any,
    ) -> None:
        refusal = await answer()
        call.work, call.deadline = None, None
        if call.done:
            return
        try:
            if refusal is not None:
                self.reply_error(call, refusal)
                return
            call.queued = False
            start(call, params)
        except Exception as error:  # noqa: BLE001 - an internal error
            self.handle_internal_error(error, call)

    def _refuse(self, call: IncomingRequest, phase: Phase) -> None:
        from trunkline.rpc.failures import Failure

        error = unavailable_refusal(call.method.name, phase)
        self.replies.reply_failure(call, Failure(error), error)

    def track_current_call(self) -> None:
        """Set `CURRENT_CALL` for every call from now on."""
        self._tracks_current_call = True
        self._choose_start()

    def follow_caller(self) -> None:
        """Remember the last call from now on: a subscriber of a protected resource may come back with other rights."""
        self._follows_caller = True
        self.track_current_call()

    def _start_tracked(self, call: IncomingRequest, params: Any) -> None:
        if self._follows_caller:
            self.last_call = call
        token = CURRENT_CALL.set(CurrentCall(self, call))
        try:
            self._usual_starter(call, params)
        finally:
            CURRENT_CALL.reset(token)

    @property
    def authorizing_call(self) -> "tuple[Connection, IncomingRequest | None]":
        """The last call, whose principal decides which notifications this subscriber may receive."""
        return self, self.last_call

    def reply_error(self, call: IncomingRequest, error: BaseException) -> None:
        """Reply to a failed call; in the modern era the reply may be a request for input."""
        if call.envelope is not None:
            from trunkline.server.input.multi_round import to_modern_outcome  # imported here: for the modern era only

            outcome = to_modern_outcome(call, error)
            if not isinstance(outcome, BaseException):
                self.replies.reply_result(call, outcome)
                return
            error = outcome
        super().reply_error(call, error)

    def snapshot(self) -> dict[str, Any]:
        """Describe the connection for a crash dump, without any contents of messages."""
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

    def subscribed_uris(self) -> list[str]:
        """Return the URIs of the resources that the client has subscribed to."""
        return self.shared.subscription_hooks.subscriptions.uris(self)

    async def subscribe(self, uri: str) -> bool:
        """Subscribe the client to a resource; return False if it is subscribed already. A hook that raises prevents
        it."""
        return await self.shared.subscription_hooks.subscribe(uri, self)

    def on_draining(self) -> None:
        """Refuse queued requests and end the open `subscriptions/listen` requests."""
        paused_queue, self._pause_queue = self._pause_queue, None
        self._choose_start()
        for call, _ in () if paused_queue is None else paused_queue.pending:
            self._refuse(call, Phase.DRAINING)
        self.shared.owner.end_listen_streams(self)

    async def end_session(self) -> None:
        """Drain, close the connection and delete the stored session."""
        drain = self.settings.drain_timeout
        await self.drain_and_close(None if drain is None else drain + _FLUSH_GRACE)
        if self.durable_session is not None:
            await self.durable_session.delete()

    def report_phase_change(self, before: Phase) -> None:
        """Report a phase change; store the session once the handshake is complete."""
        super().report_phase_change(before)
        if before is Phase.INITIALIZING and self.durable_session is not None:
            self.durable_session.write_soon()

    def reply_once_persisted(self, reply: Any) -> Any:
        """Send a reply that depends on a change of the session after that change is stored."""
        return reply if self.durable_session is None else self.durable_session.reply_after_write(reply)

    def restore(
        self,
        revision: Revision,
        agreed: NegotiatedCapabilities,
        client: Implementation | None,
        *,
        complete: bool,
        profile: str | None = None,
    ) -> None:
        """Continue a session that another process began, under its profile."""
        before = self.session.phase
        if profile is not None:
            from trunkline.protocol.profiles import find_profile  # imported here: few sessions have a profile

            self.session.use_profile(find_profile(profile))
            self.settings = self.session.settings
        self.session.restore_handshake(revision, agreed, client, complete=complete)
        super().report_phase_change(before)

    def _stop_work(self, call: IncomingRequest) -> None:
        self.shared.owner.on_call_cancelled(call.work)
        super()._stop_work(call)

    def start_next_session(self, message: Incoming) -> Receiver | None:
        """Begin a new session for a second `initialize` on stdio, unless calls are running: gateways serve clients one
        after another with one process. The new session inherits nothing."""
        channel = self.channel
        if not channel.info.sole_peer or not isinstance(channel, ReusableChannel):
            return None
        if not isinstance(message, Request) or not self.session.replaced_by(message):
            return None
        self.closed(ChannelClosed(NEW_SESSION_STARTED))
        successor = self.shared.owner.connect(channel)
        channel.replace_receiver(successor)
        return successor

    def on_closed(self) -> None:
        """Drop the subscriptions of this connection; a stored session keeps its own."""
        if self.durable_session is not None:
            self.durable_session.connection = None
        self._receipts = self.replies.recorder = None  # it refers to this connection
        self.shared.owner.on_connection_closed(self)
        callbacks, self.close_callbacks = self.close_callbacks, None
        for callback in callbacks or ():
            callback()


def _make_receipts(connection: Connection, writer: "ReceiptWriter") -> "CallReceipts":
    from trunkline.server.call_receipts import CallReceipts  # imported here: few servers write receipts

    receipts = connection.replies.recorder = CallReceipts(connection, writer)
    return receipts


def _truncate_id(request_id: RequestId) -> RequestId:
    """Shorten a request id: the client chose it, and it may be long."""
    return request_id if isinstance(request_id, int) else request_id[:_MAX_ID_LENGTH]
