"""One peer on the line: messages in, events out of its session, calls started and answered, requests of ours awaited.

Servers and clients have it in common; what they differ in is whom they dispatch to. A connection owns its calls. When
the channel closes they end; nothing outlives it. It takes so many calls at once, lets so many wait, and reads no more
beyond that: answers and cancellations keep coming in while calls wait, so nothing can block itself.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trunkline.clock import Clock
from trunkline.errors import (
    Interrupted,
    InvalidRequest,
    MessageTooLarge,
    NotNow,
    ProtocolError,
    RequestTimeout,
    TrunklineError,
)
from trunkline.facts import CallStarted, Connected, Observers, PhaseChanged, Received
from trunkline.facts import Closed as ClosedFact
from trunkline.protocol.events import (
    CallCancelled,
    CallReceived,
    HandshakeCompleted,
    MessageIgnored,
    MessageRefused,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
    ResponseUnusable,
    SessionEvent,
)
from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import Side, TimeLimit, find_method
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.rpc import run_handler
from trunkline.rpc.asking import RequestingConnection
from trunkline.rpc.batches import Batches
from trunkline.rpc.dispatch import Dispatcher
from trunkline.rpc.replies import too_large_error
from trunkline.rpc.threads import ThreadPool
from trunkline.transports.channel import Channel, ChannelClosed, MessageOrigin, Oversized, Receiver, limit_setting
from trunkline.wire.messages import (
    Batch,
    Encoded,
    ErrorResponse,
    Incoming,
    Malformed,
    Message,
    Response,
)

if TYPE_CHECKING:
    from trunkline.rpc.heartbeat import KeepaliveMonitor

__all__ = ["KEEPALIVE_FAILED", "Connection", "LoopResources"]

KEEPALIVE_FAILED: Final = "keepalive_failed"
_WITHOUT_HANDLER: Final = frozenset({TimeLimit.QUICK, TimeLimit.HANDSHAKE})  # these methods run no code of the user


def _ignore_call(_call: IncomingRequest, _params: Any) -> None:
    """Stands in for what starts calls once a connection has closed."""


class LoopResources(Struct, frozen=True):
    """What the connections on one loop have in common."""

    dispatcher: Dispatcher
    threads: ThreadPool
    clock: Clock
    observers: Observers


class Connection(RequestingConnection):
    """One peer on the line, from the first message to the last. There may be thousands that do nothing: what only some
    of them need is made when they do."""

    __slots__ = (
        *(
            "__weakref__",
            "_active_calls",
            "_starting_queued",
            "_close_task",
            "_dispatcher",
            "_keepalive",
            "_call_ended",
            "_loop",
        ),
        *("_max_calls", "_notification_work", "_reading_paused", "_starter", "_thread", "_queued_calls"),
        *("close_reason", "settings", "threads"),
    )

    def __init__(self, shared: LoopResources, session: Session, channel: Channel) -> None:
        super().__init__(session, channel, shared.clock, shared.observers)
        self.settings = session.settings
        self.threads = shared.threads
        self.close_reason: str | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._dispatcher = shared.dispatcher
        self._starter = self._start_call
        most = self.settings.max_connections if channel.info.shared else self.settings.max_calls
        self._max_calls = most  # and one more for each call that waits for the peer
        self._active_calls = 0  # calls that have been started and not ended
        self._queued_calls: deque[tuple[IncomingRequest, Any]] | None = None  # calls whose turn has not come
        self._starting_queued = False  # among those who wait
        self._reading_paused = False
        self._notification_work: set[run_handler.Cancellable] | None = (
            None  # notifications being taken; the session keeps requests only
        )
        self._call_ended: asyncio.Future[None] | None = None  # calls than before
        self._keepalive = self._make_keepalive()
        self._close_task: asyncio.Task[None] | None = None  # of a peer that is dead
        self.emit(Connected, transport=channel.info.transport, peer=channel.info.peer)
        self.step(Signal.CONNECT)

    def __repr__(self) -> str:
        info = self.channel.info
        return f"<Connection {self.number}: {info.transport}, peer {info.peer!r}, {self.session.phase.name.lower()}>"

    # --- receiving -----------------------------------------------------------------------------

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        """Takes what one read brought."""
        message: Incoming | None = None
        try:
            now = self._clock.now()
            if self._keepalive is not None:
                self._keepalive.last_received = now
            if self.observed:
                self.emit(Received, count=len(messages))
            receive, headers = self.session.receive, None if origin.named is None else origin.headers
            for message in messages:
                if type(message) is Batch:
                    self._receive_batch(message, now, origin)
                    continue
                event = receive(message, now, headers)
                if (
                    type(event) is CallReceived and self._active_calls < self._max_calls
                ):  # the short way of most messages
                    event.call.origin = origin
                    self._starter(event.call, event.params)
                elif type(event) is ResponseReceived:  # and that of a client's
                    self._requests.deliver_response(event)
                elif type(event) is MessageRefused and (successor := self.start_next_session(message)) is not None:
                    successor.received(messages[_index_of(messages, message) :], origin)
                    return
                else:
                    self._handle(event, origin)
        except Exception as error:  # noqa: BLE001 - an error of our own
            at = _index_of(messages, message)
            self.handle_internal_error(error, messages[at])
            if rest := messages[at + 1 :]:
                self.received(rest, origin)

    def _handle(self, event: SessionEvent, origin: MessageOrigin) -> None:
        match event:
            case CallReceived(call=call, params=params):
                call.origin = origin
                self.admit_call(call, params)
            case ResponseReceived():
                self._requests.deliver_response(event)
            case NotificationReceived():
                self._dispatch_notification(event, origin)
            case ResponseUnusable(request=request, why=why, too_large=too_large):
                setting = limit_setting(self.channel.info) if too_large else None
                self._requests.reject_response(request, why if setting is None else f"{why} ({setting})")
            case MessageRefused(reply=reply, excerpt=excerpt):
                self.report_dropped(reply.error.message, "refused")
                if excerpt and self.session.side is Side.CLIENT:
                    self.report_unreadable(reply.error.message, excerpt)
                self.channel.send(reply, about=reply.id if isinstance(reply.id, int | str) else None)
            case CallCancelled(call=call):
                self._cancel_call(call)
            case HandshakeCompleted():
                self.report_phase_change(Phase.INITIALIZING)
                if self._lazy_requests is not None:
                    self._lazy_requests.on_initialized()
            case ProgressReceived():
                self.deliver_progress(event)
            case MessageIgnored(why=why, kind=kind, unassigned=unassigned, excerpt=excerpt):
                self.report_dropped(why, kind)
                if unassigned:
                    self.report_unreadable(why, excerpt)

    def deliver_progress(self, event: ProgressReceived) -> None:
        """Tell the caller of a request of ours how far that has come."""
        self._requests.deliver_progress(event, self.report_failure)

    def _receive_batch(self, batch: Batch, now: float, origin: MessageOrigin) -> None:
        if self.session.revision is not Revision.V2025_03_26:
            fault = Malformed(InvalidRequest.code, "batches are part of revision 2025-03-26 only")
            self.channel.send(self.session.malformed_response(fault))
            return
        if self._batches is None:
            self._batches = Batches(self._send_batch)
        receive = self.session.receive
        for event in self._batches.receive(batch.messages, lambda message: receive(message, now)):
            self._handle(event, origin)

    def _send_batch(self, answers: Sequence[Message]) -> None:
        try:
            self.channel.send(answers)
        except Oversized as error:
            told = self.session.error_object(too_large_error(error))
            failed = [ErrorResponse(one.id, told) if isinstance(one, Response) else one for one in answers]
            self.channel.send(failed)

    # --- calls ---------------------------------------------------------------------------------

    def adjust_call_limit(self, change: int) -> None:
        """Calls that wait for the peer make room for others: among what is read then may be what they wait for. So do
        those that wait for nothing in particular."""
        self._max_calls += change
        self._start_queued()

    def admit_call(self, call: IncomingRequest, params: Any) -> None:
        """Starts a call, or lets it wait for its turn."""
        if self._active_calls < self._max_calls:
            self._starter(call, params)
        else:
            self._queue_call(call, params)

    def _queue_call(self, call: IncomingRequest, params: Any) -> None:
        if call.method.time_limit is TimeLimit.QUICK or call.method.receive_signal is Signal.DRAIN:
            self._starter(
                call, params
            )  # ping, lists and an end run no user code: nothing is gained by letting them wait
            return
        call.queued = True
        self._queued_calls = self._queued_calls or deque()
        self._queued_calls.append((call, params))
        if len(self._queued_calls) >= self.settings.max_waiting and not self._reading_paused:
            self._reading_paused = True
            self.channel.pause()

    def _start_call(self, call: IncomingRequest, params: Any) -> None:
        if self.observed:
            target = self._dispatcher.read_target(call, params)
            self.emit(CallStarted, request=call.id, method=call.method.name, target=target)
        self._active_calls += 1
        try:
            work = self._dispatcher.dispatch(self, call, params)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - becomes an answer
            self._on_call_ended(call, None, error)
            return
        working = run_handler.start_work(work, self.threads, self._on_call_ended, call)
        if working is not None and not call.done:
            call.work = working
            if call.deadline is None:  # unless the feature has set one
                self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))
            self._deadline_timer.watch(call)

    def set_call_timeout(self, call: IncomingRequest, seconds: float | None) -> None:
        """Gives a call so much time from now on."""
        longest = None if call.method.time_limit is TimeLimit.ENDLESS else self.settings.longest_call
        call.set_timeout(self._clock.now(), seconds, longest)
        if call.scheduled_at is not None:  # it is watched already, and perhaps for a later time
            self._deadline_timer.watch(call)

    def _on_call_ended(self, call: IncomingRequest, value: Any, error: BaseException | None) -> None:
        """A call has come to its end, however it did; its answer goes out unless nobody wants it any more."""
        self._active_calls -= 1
        try:
            if error is None:
                self.reply_result(call, value)
            elif not call.done:
                self.reply_error(call, error)
            elif not isinstance(error, asyncio.CancelledError | TrunklineError):  # that was raised on purpose
                self.report_failure(call, "-", error)
        except Exception as raised:  # noqa: BLE001 - an error of our own
            self.handle_internal_error(raised, call)
        call.work = None  # which refers to the call, and to its result
        if call.input_round is not None or call.once is not None:
            call.input_round = call.once = call.task = None
        if call.scheduled_at is not None and call.origin.stream is not None:  # the timetable holds the call for a while
            call.origin = MessageOrigin(call.origin.principal, call.origin.headers)
        if self._queued_calls or self._reading_paused or self._call_ended is not None:
            self._start_queued()

    def reply_now(self, call: IncomingRequest, result: Any, outcome: str = "ok") -> None:
        """Answers a call now, and stops whoever works on it."""
        answer = self.session.reply(call, result)
        if answer is not None:
            self.send_reply(answer, call.id)
            self.emit_call_ended(call, outcome)
            self._stop_work(call)
            self._start_queued()

    def fail_now(self, call: IncomingRequest, error: BaseException) -> None:
        """Answers a call now that cannot go on, and stops whoever works on it: even if a thread goes on."""
        if not call.done:
            self.reply_error(call, error)
            self._stop_work(call)
            self._start_queued()

    def _start_queued(self) -> None:
        """Gives those who wait their turn. One that is done at once ends in here again, where the loop goes on."""
        if self._starting_queued:
            return
        self._starting_queued = True
        while self._queued_calls and self._active_calls < self._max_calls:
            call, params = self._queued_calls.popleft()
            if not call.done:
                call.queued = False
                self._starter(call, params)
        self._starting_queued = False
        if self._reading_paused and len(self._queued_calls or ()) <= self.settings.max_waiting // 2:
            self._reading_paused = False
            self.channel.resume()
        self._wake_drain()

    def _wake_drain(self) -> None:
        """Rouses whoever waits until there are fewer calls."""
        if self._call_ended is not None and not self._call_ended.done():
            self._call_ended.set_result(None)

    def _cancel_call(self, call: IncomingRequest) -> None:
        self._stop_work(call)
        self.skip_reply(call)
        self._start_queued()

    def _stop_work(self, call: IncomingRequest) -> None:
        if call.work is not None:
            call.work.cancel()

    # --- time ----------------------------------------------------------------------------------

    def _expire_due_requests(self) -> None:
        try:
            now = self._clock.now()
            for late in self.session.expired(now):
                if isinstance(late, IncomingRequest):
                    self.fail_now(late, RequestTimeout(late.method.name, round(now - late.started, 3)))
                elif isinstance(late, OutgoingRequest):
                    self._requests.time_out(late, now)
        except Exception as error:  # noqa: BLE001 - an error of our own
            self.handle_internal_error(error)

    def _make_keepalive(self) -> "KeepaliveMonitor | None":
        interval = self.settings.keepalive_interval
        if interval is None or not self.channel.info.needs_keepalive:
            return None
        from trunkline.rpc.heartbeat import KeepaliveMonitor

        return KeepaliveMonitor(
            interval, self.settings.keepalive_timeout, self._clock, self._send_ping, self._on_keepalive_failed
        )

    @property
    def liveness_method(self) -> str:
        """What the peer is asked that shall only show that it is there."""
        return "ping"

    def _send_ping(self) -> bool:
        if self._reading_paused or self.session.phase is not Phase.READY:
            return False
        self._requests.ping(self.liveness_method, self.settings.keepalive_timeout)
        return True

    def _on_keepalive_failed(self) -> None:
        self.close_now(KEEPALIVE_FAILED)

    def close_now(self, reason: str) -> None:
        """The peer is dead, or as good as that: the line is closed, and nothing is waited for."""
        self.close_reason = reason
        self._close_task = self._loop.create_task(self.drain_and_close(0))

    # --- telling the peer ----------------------------------------------------------------------

    def notify(self, name: str, params: Any = UNSET, *, about: IncomingRequest | None = None) -> bool:
        """Sends a notification if it may be sent now; callable on the loop only. One above the size limit is reported
        and not sent: most are not sent by a handler, which could do something about it."""
        if about is not None:
            message = self.session.notify_about(about, name, params)
        else:
            message = self.session.notify(name, params) if self.session.may_send(name) else None
        if message is None:
            return False
        try:
            self.channel.send(message, about=None if about is None else about.id)
        except Oversized as error:
            self.report_dropped(f"{name}: {error}", MessageTooLarge.kind)
            row = find_method(name)
            if row is not None:
                self.report_failure(IncomingRequest(f"notification {name}", row, self._clock.now()), "-", error)
            return False
        return True

    def broadcast(self, name: str, frame: Encoded, params: Any) -> None:  # noqa: ARG002 - others mark each one
        """Sends a notification that was encoded once for many, of whom none shall suffer for another."""
        try:
            if self.session.may_send(name):
                self.channel.send(frame)
        except Exception as error:  # noqa: BLE001 - an error of our own
            self.handle_internal_error(error)

    def post(self, action: Callable[[], object]) -> bool:
        """Does something on the loop: now if this is its thread, soon if not. Returns whether it is done."""
        if threading.get_ident() == self._thread:
            action()
            return True
        self.threads.post(action)
        return False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that all of it happens on."""
        return self._loop

    def now(self) -> float:
        """The time on this connection's clock."""
        return self._clock.now()

    def _dispatch_notification(self, event: NotificationReceived, origin: MessageOrigin) -> None:
        name = event.method.name
        if not self._dispatcher.has_handler(name):
            self.report_dropped(f"nobody handles {name}", "unhandled_notification")
            return
        call = IncomingRequest(id=f"notification {name}", method=event.method, started=self._clock.now(), origin=origin)
        self._active_calls += 1
        try:
            work = self._dispatcher.dispatch(self, call, event.params)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - reported, never answered
            self._on_notification_handled(call, None, error)
            return
        call.work = run_handler.start_work(work, self.threads, self._on_notification_handled, call)
        if call.work is not None:
            self._notification_work = self._notification_work or set()
            self._notification_work.add(call.work)

    def _on_notification_handled(self, call: IncomingRequest, _: Any, error: BaseException | None) -> None:
        """A notification has been taken; it has no answer."""
        self._active_calls -= 1
        if self._notification_work is not None:
            self._notification_work.discard(call.work)
            call.work = None
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.report_failure(call, "-", error)
        self._start_queued()

    # --- errors of our own ---------------------------------------------------------------------

    def handle_internal_error(self, error: Exception, during: Incoming | IncomingRequest | None = None) -> None:  # noqa: ARG002 - see below
        """Something in here has failed that never should, over a message or a call. Whoever can go on does."""
        raise error

    def replace_session(self, session: Session, told: ProtocolError) -> None:
        """Goes on with another session on the same line, in the place of one that has failed. What was under way has
        failed with it: the peer is told so, and nobody waits for the peer any more."""
        running = list(self.session.incoming_requests.values())
        for call in running:
            call.done = True
            error = Interrupted(told.message) if _was_started(call) else told
            self.send_reply(ErrorResponse(call.id, self.session.error_object(error)), call.id)
            self.emit_call_ended(call, "error", error.code)
        self.abandon_requests(ChannelClosed(told.message))
        self.session = session
        self._queued_calls = self._batches = None
        for call in running:
            self._stop_work(call)
        self._start_queued()

    # --- phases and endings --------------------------------------------------------------------

    def step(self, signal: Signal) -> None:
        """Moves the session on and tells of it."""
        before = self.session.phase
        self.session.transition(signal)
        self.report_phase_change(before)

    def report_phase_change(self, before: Phase) -> None:
        """Tells that the session has left a phase."""
        if before is not self.session.phase:
            self.emit(PhaseChanged, before=before.name, after=self.session.phase.name)

    async def drain_and_close(self, timeout: float | None) -> None:
        """Ends in good order: nothing new is taken, what runs may finish within the time, then the line is closed."""
        until = None if timeout is None else self._loop.time() + timeout
        for step in (self.wait_drained, self.close):
            with contextlib.suppress(TimeoutError):  # a peer that does not read keeps nobody
                async with asyncio.timeout_at(until):
                    await step()

    def drain(self) -> None:
        """Takes nothing new from now on."""
        if self.session.allows(Signal.DRAIN):
            self.step(Signal.DRAIN)
        self.on_draining()

    async def wait_drained(self) -> None:
        """Takes nothing new, and waits until what runs has ended."""
        self.drain()
        await self._wait_for_calls(0)

    async def drain_other_calls(self, timeout: float | None) -> None:
        """Takes nothing new, and waits until every call has ended but the one that asks for this; or the time has."""
        self.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wait_for_calls(1)

    async def close(self) -> None:
        """Answer every call that is still under way, and close the line."""
        self.close_reason = self.close_reason or "closed"
        self._interrupt_calls(self.close_reason)
        await self.channel.close()

    def _interrupt_calls(self, reason: str) -> None:
        """End every call that is under way, and answer it as long as the channel takes answers.

        A call that was begun may have had its effect, which is what the peer is told. It is safe to send any other one
        again.
        """
        for call in list(self.session.incoming_requests.values()):
            begun = _was_started(call)
            error = (
                Interrupted(f"the call was cut off: {reason}") if begun else NotNow(f"the call was not begun: {reason}")
            )
            answer = self.session.fail(call, error)
            if answer is not None:
                self.send_reply(answer, call.id)
            self.emit_call_ended(call, "closed")
            self._stop_work(call)

    async def _wait_for_calls(self, at_most: int) -> None:
        """Waits until so many calls are left at most."""
        while self.close_reason is None and (self._active_calls > at_most or self._queued_calls):
            if self._call_ended is None or self._call_ended.done():
                self._call_ended = self._loop.create_future()
            await asyncio.shield(self._call_ended)

    def closed(self, closed: ChannelClosed) -> None:
        """The channel is gone: everything that this connection owns ends."""
        if self.close_reason is not None:  # we know better
            closed = replace(closed, reason=self.close_reason)
        self.close_reason = closed.reason
        before = self.session.phase
        self._interrupt_calls(closed.reason)
        awaited = self.session.close(self.closing_signal(closed))
        if self._lazy_requests is not None:
            self._lazy_requests.fail_all(awaited, closed)
        self._queued_calls = self._batches = None
        for working in list(self._notification_work or ()):
            working.cancel()
        if self._lazy_deadline_timer is not None:
            self._lazy_deadline_timer.stop()
        if self._keepalive is not None:
            self._keepalive.stop()
        self._lazy_deadline_timer = self._lazy_requests = self._keepalive = None  # each refers to this connection
        self._starter = _ignore_call
        self._wake_drain()
        self.on_closed()
        self.report_phase_change(before)
        self.emit(ClosedFact, reason=closed.reason)

    def start_next_session(self, message: Incoming) -> Receiver | None:  # noqa: ARG002 - for servers
        """Close this connection if a request that was refused begins another session on its channel; return the
        connection of that."""
        return None

    def closing_signal(self, closed: ChannelClosed) -> Signal:  # noqa: ARG002 - for whoever can tell one end from another
        """What the end of the channel means to the conversation."""
        return Signal.CLOSE

    def on_draining(self) -> None:
        """Nothing new is taken any more: what would never end by itself ends now."""

    def on_closed(self) -> None:
        """The peer has gone, and its calls with it: what else is kept for it can go."""


def _index_of(messages: Sequence[Incoming], message: Incoming | None) -> int:
    return next((number for number, one in enumerate(messages) if one is message), 0)


def _was_started(call: IncomingRequest) -> bool:
    """Whether the handler of a call has been started, so that the call may have had its effect."""
    return not call.queued and call.method.time_limit not in _WITHOUT_HANDLER
