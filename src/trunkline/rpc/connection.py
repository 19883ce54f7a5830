"""One connection to a peer: it receives messages, runs the peer's calls, and sends requests and notifications.

Servers and clients share this class; they differ in the dispatcher that they pass, and in a few hooks. A connection
owns its calls: they end when the channel closes. It runs at most `max_calls` calls at a time and queues `max_waiting`
more; when the queue is full it stops reading. Responses and cancellations are still processed while calls are queued,
so a call that waits for the peer cannot block itself.

There may be thousands of idle connections, so the parts that only some of them need are created on first use.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from types import CoroutineType
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
from trunkline.facts import Connected, Observers, PhaseChanged, Received
from trunkline.protocol import types as t
from trunkline.protocol.events import (
    CallCancelled,
    HandshakeCompleted,
    MessageIgnored,
    MessageRefused,
    NotificationReceived,
    ProgressReceived,
    RequestCancelled,
    ResponseReceived,
    ResponseUnusable,
    SessionEvent,
)
from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.meta import RELATED_TASK, timeout_seconds
from trunkline.protocol.methods import Side, TimeLimit, find_method
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.rpc import run_handler
from trunkline.rpc.dispatch import Dispatcher
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.rpc.replies import Replies, failure_kind, too_large_error
from trunkline.rpc.reply_gate import ReplyGate
from trunkline.rpc.run_handler import Task, without_outermost_frame
from trunkline.rpc.threads import ThreadPool
from trunkline.transports.channel import Channel, ChannelClosed, MessageOrigin, Oversized, Receiver, limit_setting
from trunkline.wire.messages import (
    Batch,
    Encoded,
    ErrorResponse,
    Incoming,
    Malformed,
    Message,
    RequestId,
    Response,
)

if TYPE_CHECKING:
    from trunkline.rpc.deadlines import DeadlineTimer
    from trunkline.rpc.keepalive import KeepaliveMonitor
    from trunkline.rpc.outgoing_requests import OutgoingRequests, ResponseWaiter

__all__ = ["KEEPALIVE_FAILED", "LoopResources", "PeerConnection"]

KEEPALIVE_FAILED: Final = "keepalive_failed"
_WITHOUT_HANDLER: Final = frozenset({TimeLimit.QUICK, TimeLimit.HANDSHAKE})  # these methods run no code of the user


def _ignore_call(_call: IncomingRequest, _params: Any) -> None:
    """Replace the function that starts calls once a connection has closed."""


class LoopResources(Struct, frozen=True):
    """Resources that the connections on one event loop share."""

    dispatcher: Dispatcher
    threads: ThreadPool
    clock: Clock
    observers: Observers
    reply_gate: ReplyGate | None = None  # of a server whose sessions outlive the process


class PeerConnection:
    """One connection to a peer, from its first message to its last.

    All methods are called on the event loop, except `post`. `facts` reports to observers, `replies` sends replies.
    """

    __slots__ = (
        *("__weakref__", "_active_calls", "_call_ended", "_clock", "_close_task", "_dispatcher", "_keepalive"),
        *("_lazy_deadline_timer", "_lazy_requests", "_max_calls", "_notification_work", "_queued_calls"),
        *("_reading_paused", "_reply_gate", "_starter", "_starting_queued", "_task_options"),
        *("channel", "close_reason", "facts", "replies", "session", "settings", "threads"),
    )

    def __init__(self, shared: LoopResources, session: Session, channel: Channel) -> None:
        self.session = session
        self.channel = channel
        self.settings = session.settings
        self.threads = shared.threads
        self.facts = FactReporter(shared.clock, shared.observers, channel.info, session)
        self.replies = Replies(session, channel, self.facts)
        self.close_reason: str | None = None
        self._clock = shared.clock
        self._task_options = shared.threads.task_options
        self._dispatcher = shared.dispatcher
        self._reply_gate = shared.reply_gate
        self._lazy_deadline_timer: DeadlineTimer | None = None
        self._lazy_requests: OutgoingRequests | None = None
        self._starter = self._usual_starter
        limit = self.settings.max_connections if channel.info.stateless else self.settings.max_calls
        self._max_calls = limit  # plus one for each call that waits for the peer
        self._active_calls = 0  # started and not ended
        self._queued_calls: deque[tuple[IncomingRequest, Any]] | None = None
        self._starting_queued = False  # `_start_queued` is running
        self._reading_paused = False
        # Work of notification handlers; the session tracks requests only.
        self._notification_work: set[run_handler.Cancellable] | None = None
        self._call_ended: asyncio.Future[None] | None = None  # wakes `_wait_for_calls`
        self._keepalive = self._make_keepalive()
        self._close_task: asyncio.Task[None] | None = None  # a reference, so that the task is not collected
        self.facts.emit(Connected, transport=channel.info.transport, peer=channel.info.peer)
        self.step(Signal.CONNECT)

    def __repr__(self) -> str:
        info = self.channel.info
        return f"<Connection {self.number}: {info.transport}, peer {info.peer!r}, {self.session.phase.name.lower()}>"

    @property
    def number(self) -> int:
        """The number of this connection, unique in the process."""
        return self.facts.number

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of this connection."""
        return self.threads.loop

    def now(self) -> float:
        """Return the time on this connection's clock."""
        return self._clock.now()

    @property
    def _deadline_timer(self) -> "DeadlineTimer":
        if self._lazy_deadline_timer is None:
            from trunkline.rpc.deadlines import DeadlineTimer  # imported here: a call that does not wait needs none

            self._lazy_deadline_timer = DeadlineTimer(self.session.deadlines, self._clock, self._expire_due_requests)
        return self._lazy_deadline_timer

    @property
    def _requests(self) -> "OutgoingRequests":
        if self._lazy_requests is None:
            from trunkline.rpc.outgoing_requests import OutgoingRequests  # imported here: most servers send none

            self._lazy_requests = OutgoingRequests(
                self.session, self.channel, self._clock, self._deadline_timer, self.adjust_call_limit, facts=self.facts
            )
        return self._lazy_requests

    # --- receiving -----------------------------------------------------------------------------

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        """Process the messages of one read."""
        message: Incoming | None = None
        try:
            now = self._clock.now()
            if self._keepalive is not None:
                self._keepalive.last_received = now
            if self.facts.wants_received:
                self.facts.emit(Received, count=len(messages))
            receive = self.session.receive
            for message in messages:
                if type(message) is Batch:
                    self._receive_batch(message, now, origin)
                    continue
                event = receive(message, now, origin)
                if type(event) is IncomingRequest and self._active_calls < self._max_calls:  # most messages of a server
                    self._starter(event, event.params)
                elif type(event) is ResponseReceived:  # most messages of a client
                    (self._lazy_requests or self._requests).deliver_response(event)
                elif type(event) is MessageRefused and (successor := self.start_next_session(message)) is not None:
                    successor.received(messages[_index_of(messages, message) :], origin)
                    return
                else:
                    self._handle(event, origin)
        except Exception as error:  # noqa: BLE001 - an internal error
            at = _index_of(messages, message)
            self.handle_internal_error(error, messages[at])
            if rest := messages[at + 1 :]:
                self.received(rest, origin)

    def _handle(self, event: SessionEvent, origin: MessageOrigin) -> None:
        match event:
            case IncomingRequest():
                self.admit_call(event, event.params)
            case ResponseReceived():
                self._requests.deliver_response(event)
            case NotificationReceived():
                self._dispatch_notification(event, origin)
            case ResponseUnusable(request=request, why=why, too_large=too_large):
                setting = limit_setting(self.channel.info) if too_large else None
                self._requests.reject_response(request, why if setting is None else f"{why} ({setting})")
            case MessageRefused(reply=reply, excerpt=excerpt, method=method):
                self.facts.report_dropped(reply.error.message, "refused")
                self.facts.emit_refused(reply, method, origin.principal)
                if excerpt and self.session.side is Side.CLIENT:
                    self.facts.report_unreadable(reply.error.message, excerpt)
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
                self.facts.report_dropped(why, kind)
                if unassigned:
                    self.facts.report_unreadable(why, excerpt)
            case RequestCancelled(request=request, reason=reason):
                self._requests.fail_cancelled(request, reason)

    def _receive_batch(self, batch: Batch, now: float, origin: MessageOrigin) -> None:
        profile = self.session.profile
        if self.session.revision is not Revision.V2025_03_26 and (profile is None or not profile.batches):
            fault = Malformed(InvalidRequest.code, "batches are part of revision 2025-03-26 only")
            self.channel.send(self.session.malformed_response(fault))
            return
        batches = self.replies.batches
        if batches is None:
            from trunkline.rpc.batches import Batches  # imported here: one revision has batches

            batches = self.replies.batches = Batches(self._send_batch)
        receive = self.session.receive
        for event in batches.receive(batch.messages, lambda message: receive(message, now, origin)):
            self._handle(event, origin)

    def _send_batch(self, replies: Sequence[Message]) -> None:
        try:
            self.channel.send(replies)
        except Oversized as error:
            error_object = self.session.error_object(too_large_error(error))
            failed = [ErrorResponse(one.id, error_object) if isinstance(one, Response) else one for one in replies]
            self.channel.send(failed)

    # --- calls of the peer ---------------------------------------------------------------------

    def running_calls(self) -> Counter[str]:
        """Count the calls whose handlers run, by family. The session tracks its calls anyway, so that counting costs a
        call nothing."""
        return Counter(call.method.family for call in self.session.incoming_requests.values() if not call.queued)

    @property
    def queued_count(self) -> int:
        """The number of calls that wait for their handler to start."""
        return len(self._queued_calls or ())

    def adjust_call_limit(self, change: int) -> None:
        """Change the number of calls that may run at a time.

        A call that only waits, for the peer or for an event, raises the limit by one meanwhile: the message that it
        waits for may be behind a queued call.
        """
        self._max_calls += change
        self._start_queued()

    def admit_call(self, call: IncomingRequest, params: Any) -> None:
        """Start a call, or queue it if too many are running."""
        if self._active_calls < self._max_calls:
            self._starter(call, params)
        else:
            self._queue_call(call, params)

    def _queue_call(self, call: IncomingRequest, params: Any) -> None:
        if call.method.time_limit is TimeLimit.QUICK or call.method.receive_signal is Signal.DRAIN:
            self._starter(call, params)  # ping, lists and shutdown run no code of the user: queueing gains nothing
            return
        call.queued = True
        self.facts.on_call_queued(call, params)
        self._queued_calls = self._queued_calls or deque()
        self._queued_calls.append((call, params))
        if len(self._queued_calls) >= self.settings.max_waiting and not self._reading_paused:
            self._reading_paused = True
            self.channel.pause()

    @property
    def _usual_starter(self) -> Callable[[IncomingRequest, Any], None]:
        """The function that starts calls at most times; whether they are observed is known in advance."""
        if self.facts.tracer is not None:
            return self._start_traced
        return self._start_observed if self.facts.observed else self._start_call

    def _start_traced(self, call: IncomingRequest, params: Any) -> None:
        """Start a call in a copy of the context variables, in which its span becomes the current one. A call that has
        waited was started by the end of another one, whose span is current here."""
        context, call.context = call.context or copy_context(), None
        context.run(self._start_observed, call, params)

    def _start_observed(self, call: IncomingRequest, params: Any) -> None:
        self.facts.on_call_started(call, params, self._dispatcher.decode_early)
        self._start_call(call, params)

    def _start_call(self, call: IncomingRequest, params: Any) -> None:
        self._active_calls += 1
        try:
            work = self._dispatcher.dispatch(self, call, params)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the reply
            self._on_call_ended(call, None, error)
            return
        if type(work) is CoroutineType:
            work = Task(work, **self._task_options)
            if work.done():  # most calls; `start_work` would take 4 % longer for a request over stdio
                try:
                    value = work.result()
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # noqa: BLE001 - becomes the reply
                    work = None  # break the cycle: the task refers to the error, and the error's frames to this one
                    self._on_call_ended(call, None, without_outermost_frame(error))
                else:
                    if self._reply_gate is not None:
                        self._on_call_ended(call, value, None)
                        return
                    self._active_calls -= 1  # the same as in `_on_call_ended`, without what only a wait can change
                    try:
                        self.replies.reply_result(call, value)
                    except Exception as raised:  # noqa: BLE001 - an internal error
                        self.handle_internal_error(raised, call)
                    if call.input_round is not None or call.once is not None or call.task is not None:
                        call.input_round = call.once = call.task = None
                    if self._queued_calls or self._call_ended is not None:
                        self._start_queued()
                return
        working = run_handler.start_work(work, self.threads, self._on_call_ended, call)
        if working is not None and not call.done:
            call.work, call.params = working, None
            if call.deadline is None:  # unless the feature has set one
                self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))
            (self._lazy_deadline_timer or self._deadline_timer).watch(call)

    def set_call_timeout(self, call: IncomingRequest, seconds: float | None) -> None:
        """Set the deadline of a call to `seconds` from now; None means no deadline."""
        longest = None if call.method.time_limit is TimeLimit.ENDLESS else self.settings.longest_call
        call.set_timeout(self._clock.now(), seconds, longest)
        if call.scheduled_at is not None:  # the timer watches it already, perhaps for a later time
            self._deadline_timer.watch(call)

    def shorten_deadline(self, call: IncomingRequest, meta: Mapping[str, Any]) -> None:
        """Shorten the deadline of a call to the time that its sender waits, if the metadata of the request states it.
        The time that the call was queued counts."""
        asked = timeout_seconds(meta)
        if asked is None:
            return
        own = call.method.time_limit.seconds(self.settings) if call.deadline is None else call.timeout
        left = max(asked - (self._clock.now() - call.started), 0.0)
        if own is None or left < own:
            self.set_call_timeout(call, left)

    def _on_call_ended(self, call: IncomingRequest, value: Any, error: BaseException | None) -> None:
        """Reply to a call whose work has ended, unless it was cancelled or has been answered."""
        gate = self._reply_gate
        if gate is not None and not gate.open and not call.held and self._hold_reply(gate, call, value, error):
            return
        self._active_calls -= 1
        try:
            if error is None:
                self.replies.reply_result(call, value)
            elif not call.done:
                self.reply_error(call, error)
            elif not isinstance(error, asyncio.CancelledError | TrunklineError):  # those are raised on purpose
                self.facts.report_failure(call, "-", error)
        except Exception as raised:  # noqa: BLE001 - an internal error
            self.handle_internal_error(raised, call)
        if call.work is not None:
            call.work = None  # it refers to the call and to its result
        if call.input_round is not None:
            call.input_round = None
        if call.once is not None or call.task is not None:
            call.once = call.task = None
        if call.scheduled_at is not None and call.origin.stream is not None:  # the deadline queue keeps it
            call.origin = MessageOrigin(call.origin.principal, call.origin.headers)
        if self._queued_calls or self._call_ended is not None:
            self._start_queued()

    def _hold_reply(self, gate: ReplyGate, call: IncomingRequest, value: Any, error: BaseException | None) -> bool:
        """End a call later if its reply has to wait for changes; return False if it has not."""
        pending = gate.find_pending()
        if pending is None or call.done:
            return False
        if call.scheduled_at is None:  # it has no deadline yet
            self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))
            self._deadline_timer.watch(call)
        call.held = True
        pending.add_done_callback(lambda _: self._on_call_ended(call, value, error))
        return True

    def reply_error(self, call: IncomingRequest, error: BaseException) -> None:
        """Reply to a call with the part of an exception that the peer may see."""
        self.replies.reply_error(call, error)

    def reply_now(self, call: IncomingRequest, result: Any, outcome: str = "ok") -> None:
        """Reply to a call and stop its work."""
        reply = self.session.reply(call, result)
        if reply is not None:
            size = self.replies.send_reply(reply, call.id)
            self.facts.emit_call_ended(call, outcome, response_size=size)
            self._stop_work(call)
            self._start_queued()

    def fail_now(self, call: IncomingRequest, error: BaseException) -> None:
        """Reply to a call with an error and stop its work. A plain function on a thread may run on."""
        if not call.done:
            self.reply_error(call, error)
            self._stop_work(call)
            self._start_queued()

    def _start_queued(self) -> None:
        """Start queued calls up to the limit. A call that ends at once calls this again; the outer loop goes on."""
        if self._starting_queued:
            return
        self._starting_queued = True
        while self._queued_calls and self._active_calls < self._max_calls:
            call, params = self._queued_calls.popleft()
            if not call.done:
                call.queued = False
                (self._starter if call.method.is_request else self._start_notification)(call, params)
        self._starting_queued = False
        if self._reading_paused and len(self._queued_calls or ()) <= self.settings.max_waiting // 2:
            self._reading_paused = False
            self.channel.resume()
        self._wake_drain()

    def _wake_drain(self) -> None:
        """Wake the callers of `_wait_for_calls`."""
        if self._call_ended is not None and not self._call_ended.done():
            self._call_ended.set_result(None)

    def _cancel_call(self, call: IncomingRequest) -> None:
        self._stop_work(call)
        self.replies.skip_reply(call)
        self._start_queued()

    def _stop_work(self, call: IncomingRequest) -> None:
        if call.work is not None:
            call.work.cancel()

    def drain_of(self, call: IncomingRequest) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a function that waits while the peer reads too slowly. On a shared channel it waits for the sender
        of the call only."""
        return call.origin.stream.drain if self.channel.info.stateless else self.channel.drain

    def report_progress(
        self, call: IncomingRequest, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Send the progress of a call if the caller has asked for it. It must grow, and renews the call's deadline."""
        if call.done:
            self.facts.report_dropped("progress of a call that has ended", "progress_token_expired")
        elif not call.record_progress(progress, self.now()):
            self.facts.report_dropped(f"progress {progress:g} does not grow", "progress_value_invalid")
        elif call.token is not None:
            meta = None if call.related_task is None else {RELATED_TASK: {"taskId": call.related_task}}
            params = t.ProgressParams(
                progress_token=call.token, progress=progress, total=total, message=message, meta=meta
            )
            self.notify("notifications/progress", params, about=call)
            if call.timing is not None:
                call.timing.report_step(call, "progress")

    # --- requests to the peer ------------------------------------------------------------------

    async def request(
        self,
        name: str,
        params: Any = UNSET,
        *,
        about: IncomingRequest | None = None,
        timeout: float | None = None,
        needs: str | None = None,
        on_progress: "Callable[[t.ProgressParams], None] | None" = None,
    ) -> Any:
        """Send a request and return its result (Raw).

        `about` is the call on whose behalf it is sent. The deadline of that call is suspended meanwhile, but not while
        the request waits for the handshake to complete.

        Raises `PeerError` for an error response, `RequestTimeout` without a response in time, `ConnectionClosed` if the
        connection closes, and `ProtocolError` if the request may not be sent at all.
        """
        return await self._requests.request(
            name, params, about=about, timeout=timeout, needs=needs, on_progress=on_progress
        )

    def send_request(
        self,
        name: str,
        params: Any,
        *,
        timeout: float | None = None,
        on_progress: "Callable[[t.ProgressParams], None] | None" = None,
        waiter: "ResponseWaiter | None" = None,
    ) -> OutgoingRequest:
        """Send a request at once; its `waiter` receives the response, a future without one. Call `cancel_request` to
        stop waiting."""
        requests = self._lazy_requests or self._requests
        return requests.send(name, params, timeout=timeout, on_progress=on_progress, waiter=waiter)

    def cancel_request(self, request: OutgoingRequest) -> None:
        """Stop waiting for a response, and tell the peer."""
        self._requests.cancel(request, "no longer needed")

    def fail_pending_requests(self, reason: str) -> None:
        """Fail all requests to the peer: it sends no more, though it may still read."""
        pending = self.session.abandon_requests()
        if pending:
            self._requests.fail_all(pending, ChannelClosed(reason))

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        """Fail one request: its response cannot arrive any more, though the channel is open."""
        self._requests.fail_request(request, closed)

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        """Suspend the deadline of a request while a person authorizes it, or resume it."""
        self._requests.suspend_deadline(request, suspended=begun)

    def suspend_request(self, request: OutgoingRequest, *, suspended: bool) -> None:
        """Suspend the deadline of a request while a person answers a question of the peer, or resume it."""
        self._requests.suspend_deadline(request.id, suspended=suspended)

    def suspend_call(self, call: IncomingRequest, *, suspended: bool) -> None:
        """Suspend the deadline of a call of the peer while a person answers a question, or resume it."""
        if suspended:
            call.suspend_deadline(self.now())
            return
        call.resume_deadline(self.now())
        if not call.done:
            self._deadline_timer.watch(call)

    def deliver_progress(self, event: ProgressReceived) -> None:
        """Pass progress that the peer reports to the caller of the request."""
        self._requests.deliver_progress(event, self.facts.report_failure)

    # --- deadlines and keepalive ---------------------------------------------------------------

    def _expire_due_requests(self) -> None:
        try:
            now = self._clock.now()
            for late in self.session.expired(now):
                if isinstance(late, IncomingRequest) and not late.method.is_request:
                    self.facts.report_failure(late, "-", RequestTimeout(late.method.name, round(now - late.started, 3)))
                    self._stop_work(late)
                elif isinstance(late, IncomingRequest):
                    self.fail_now(late, RequestTimeout(late.method.name, round(now - late.started, 3)))
                elif isinstance(late, OutgoingRequest):
                    self._requests.time_out(late, now)
        except Exception as error:  # noqa: BLE001 - an internal error
            self.handle_internal_error(error)

    def _make_keepalive(self) -> "KeepaliveMonitor | None":
        interval = self.settings.keepalive_interval
        if interval is None or not self.channel.info.needs_keepalive:
            return None
        from trunkline.rpc.keepalive import KeepaliveMonitor

        return KeepaliveMonitor(
            interval, self.settings.keepalive_timeout, self._clock, self._send_ping, self._on_keepalive_failed
        )

    @property
    def liveness_method(self) -> str:
        """The request method that checks whether the peer responds."""
        return "ping"

    def _send_ping(self) -> bool:
        if self._reading_paused or self.session.phase is not Phase.READY:
            return False
        self._requests.ping(self.liveness_method, self.settings.keepalive_timeout)
        return True

    def _on_keepalive_failed(self) -> None:
        self.close_now(KEEPALIVE_FAILED)

    def close_now(self, reason: str) -> None:
        """Close the connection without waiting for calls."""
        self.close_reason = reason
        self._close_task = self.loop.create_task(self.drain_and_close(0))

    # --- notifications -------------------------------------------------------------------------

    def notify(self, name: str, params: Any = UNSET, *, about: IncomingRequest | None = None) -> bool:
        """Send a notification; return False if the session does not allow it now.

        A notification above the size limit is reported to observers and not sent: most are not sent by a handler, so
        there is no caller that could react to an exception.
        """
        if about is not None:
            message = self.session.notify_about(about, name, params)
        else:
            message = self.session.notify(name, params) if self.session.may_send(name) else None
        if message is None:
            return False
        try:
            self.channel.send(message, about=None if about is None else about.id)
        except Oversized as error:
            self.facts.report_dropped(f"{name}: {error}", MessageTooLarge.kind)
            row = find_method(name)
            if row is not None:
                call = IncomingRequest(f"notification {name}", row, self._clock.now())
                self.facts.report_failure(call, "-", error)
            return False
        return True

    def broadcast(self, name: str, frame: Encoded, params: Any) -> None:  # noqa: ARG002 - listen requests need it
        """Send a notification that was encoded once for many connections. Never raises, for the sake of the others."""
        try:
            if self.session.may_send(name):
                self.channel.send(frame if self.session.profile is None else self.session.reshape(name, frame))
        except Exception as error:  # noqa: BLE001 - an internal error
            self.handle_internal_error(error)

    def post(self, action: Callable[[], object]) -> bool:
        """Run an action on the loop: at once on the loop's thread, soon from another. Return whether it has run."""
        return self.threads.run_on_loop(action)

    def _dispatch_notification(self, event: NotificationReceived, origin: MessageOrigin) -> None:
        name = event.method.name
        if not self._dispatcher.has_handler(name):
            self.facts.report_dropped(f"no handler for {name}", "unhandled_notification")
            return
        call = IncomingRequest(id=f"notification {name}", method=event.method, started=self._clock.now(), origin=origin)
        if event.method.custom and self._active_calls >= self._max_calls:  # its handler may take as long as a request
            if self.channel.info.stateless and len(self._queued_calls or ()) >= self.settings.max_waiting:
                self.facts.report_dropped(f"too many notifications wait, such as {name}", "notification_queue_full")
            else:
                self._queue_call(call, event.params)
        else:
            self._start_notification(call, event.params)

    def _start_notification(self, call: IncomingRequest, params: Any) -> None:
        self._active_calls += 1
        try:
            work = self._dispatcher.dispatch(self, call, params)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - reported to observers; a notification has no reply
            self._on_notification_handled(call, None, error)
            return
        call.work = run_handler.start_work(work, self.threads, self._on_notification_handled, call)
        if call.work is not None:
            self._notification_work = self._notification_work or set()
            self._notification_work.add(call.work)
            if call.method.custom:
                if call.deadline is None:  # unless the feature has set one
                    self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))
                self._deadline_timer.watch(call)

    def _on_notification_handled(self, call: IncomingRequest, _: Any, error: BaseException | None) -> None:
        self._active_calls -= 1
        call.done = True
        if self._notification_work is not None:
            self._notification_work.discard(call.work)
            call.work = None
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.facts.report_failure(call, "-", error)
        self._start_queued()

    # --- internal errors -----------------------------------------------------------------------

    def handle_internal_error(
        self,
        error: Exception,
        during: Incoming | IncomingRequest | None = None,  # noqa: ARG002 - for servers
    ) -> None:
        """Handle a bug of ours that was hit by a message or a call. A server replaces the session; others raise."""
        raise error

    def replace_session(self, session: Session, error: ProtocolError) -> None:
        """Continue with another session on the same channel, in place of one that has failed.

        Calls and requests under way fail with `error`; a call whose handler has started fails as interrupted.
        """
        running = list(self.session.incoming_requests.values())
        for call in running:
            call.done = True
            reason = Interrupted(error.message) if _was_started(call) else error
            size = self.replies.send_reply(ErrorResponse(call.id, self.session.error_object(reason)), call.id)
            kind, message = failure_kind(reason), reason.message
            self.facts.emit_call_ended(call, "error", reason.code, kind=kind, message=message, response_size=size)
        self._drop_requests(self.session.abandon_requests(), ChannelClosed(error.message))
        self.session = self.replies.session = self.facts.session = session
        self._queued_calls = self.replies.batches = None
        for call in running:
            self._stop_work(call)
        self._start_queued()

    def _drop_requests(self, pending: Sequence[OutgoingRequest], closed: ChannelClosed) -> None:
        """Fail pending requests without telling the peer, and stop the deadline timer. Both refer to the connection."""
        if self._lazy_requests is not None:
            self._lazy_requests.fail_all(pending, closed)
        if self._lazy_deadline_timer is not None:
            self._lazy_deadline_timer.stop()
        self._lazy_deadline_timer = self._lazy_requests = None

    # --- phases and closing --------------------------------------------------------------------

    def step(self, signal: Signal) -> None:
        """Advance the session's lifecycle and report the change."""
        before = self.session.phase
        self.session.transition(signal)
        self.report_phase_change(before)

    def report_phase_change(self, before: Phase) -> None:
        """Report that the session has left the phase `before`, if it has."""
        if before is not self.session.phase:
            self.facts.emit(PhaseChanged, before=before.name, after=self.session.phase.name)

    async def drain_and_close(self, timeout: float | None) -> None:
        """Accept no more calls, wait up to `timeout` seconds for running ones, and close the channel."""
        until = None if timeout is None else self.loop.time() + timeout
        for step in (self.wait_drained, self.close):
            with contextlib.suppress(TimeoutError):  # a peer that does not read must not block the shutdown
                async with asyncio.timeout_at(until):
                    await step()

    def drain(self) -> None:
        """Accept no more calls."""
        if self.session.allows(Signal.DRAIN):
            self.step(Signal.DRAIN)
        self.on_draining()

    async def wait_drained(self) -> None:
        """Accept no more calls, and wait until all have ended."""
        self.drain()
        await self._wait_for_calls(0)

    async def drain_other_calls(self, timeout: float | None) -> None:
        """Accept no more calls, and wait up to `timeout` seconds until only the calling one is left."""
        self.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wait_for_calls(1)

    async def close(self) -> None:
        """Fail every call that is still under way, and close the channel."""
        self.close_reason = self.close_reason or "closed"
        self._interrupt_calls(self.close_reason)
        await self.channel.close()

    def _interrupt_calls(self, reason: str) -> None:
        """End every call that is under way, and reply to it while the channel still sends.

        A call whose handler has started may have had its effect, so its error says that the outcome is unknown. The
        peer may safely send any other call again.
        """
        for call in list(self.session.incoming_requests.values()):
            error = (
                Interrupted(f"the call was interrupted: {reason}")
                if _was_started(call)
                else NotNow(f"the call was not started: {reason}")
            )
            reply = self.session.fail(call, error)
            size = None if reply is None else self.replies.send_reply(reply, call.id)
            kind, message = failure_kind(error), error.message
            self.facts.emit_call_ended(call, "closed", kind=kind, message=message, response_size=size)
            self._stop_work(call)

    async def _wait_for_calls(self, at_most: int) -> None:
        """Wait until at most so many calls are left."""
        while self.close_reason is None and (self._active_calls > at_most or self._queued_calls):
            if self._call_ended is None or self._call_ended.done():
                self._call_ended = self.loop.create_future()
            await asyncio.shield(self._call_ended)

    def closed(self, closed: ChannelClosed) -> None:
        """End everything that this connection owns: its channel has closed."""
        if self.close_reason is not None:  # a reason of ours is more precise
            closed = replace(closed, reason=self.close_reason)
        self.close_reason = closed.reason
        before = self.session.phase
        self._interrupt_calls(closed.reason)
        self._drop_requests(self.session.close(self.closing_signal(closed)), closed)
        self._queued_calls = self.replies.batches = None
        for working in list(self._notification_work or ()):
            working.cancel()
        if self._keepalive is not None:
            self._keepalive.stop()
        self._keepalive = None  # it refers to this connection
        self._starter = _ignore_call
        self._wake_drain()
        self.on_closed()
        self.report_phase_change(before)
        failure = None if closed.error is None else type(closed.error).__name__
        self.facts.report_closed(closed.reason, KEEPALIVE_FAILED if closed.reason == KEEPALIVE_FAILED else failure)

    # --- hooks ---------------------------------------------------------------------------------

    def start_next_session(self, message: Incoming) -> Receiver | None:  # noqa: ARG002 - for servers
        """Close this connection if a refused request starts another session on its channel; return the new one."""
        return None

    def closing_signal(self, closed: ChannelClosed) -> Signal:  # noqa: ARG002 - for clients
        """Return the lifecycle signal that the end of the channel stands for."""
        return Signal.CLOSE

    def on_draining(self) -> None:
        """End the work that would never end by itself; the connection accepts no more calls."""

    def on_closed(self) -> None:
        """Release the peer's resources; its calls have ended."""


def _index_of(messages: Sequence[Incoming], message: Incoming | None) -> int:
    return next((number for number, one in enumerate(messages) if one is message), 0)


def _was_started(call: IncomingRequest) -> bool:
    """Return whether a handler has started, so that the call may have had its effect."""
    return not call.queued and call.method.time_limit not in _WITHOUT_HANDLER
