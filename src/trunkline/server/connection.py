"""One peer, served: messages in, events out of its session, calls started, answers sent.

A connection owns its calls. When the channel closes they end, and so do its subscriptions; nothing outlives it. It
takes so many calls at once, lets so many wait, and reads no more beyond that: answers and cancellations keep coming
in while calls wait, so nothing can block itself.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from msgspec import UNSET, Struct

from trunkline.clock import Clock, Timer
from trunkline.errors import ConnectionClosed, InvalidRequest, PeerError, ProtocolError, RequestTimeout
from trunkline.facts import (
    CallEnded,
    CallStarted,
    Connected,
    Dropped,
    HandlerFailed,
    Observers,
    PhaseChanged,
    Received,
)
from trunkline.facts import Closed as ClosedFact
from trunkline.protocol.events import (
    Answered,
    CallReceived,
    Cancelled,
    Event,
    Ignored,
    NoticeReceived,
    Opened,
    ProgressHeard,
    Refused,
)
from trunkline.protocol.inflight import Awaited, Running
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import LOGGING_LEVELS, CallToolResult, ProgressParams
from trunkline.server import drive
from trunkline.server.dispatch import Dispatcher, Failure, failure_of
from trunkline.server.offer import Offer
from trunkline.server.threads import Threads
from trunkline.server.watchers import Watchers
from trunkline.transports.channel import Channel, Closed, Origin
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

__all__ = ["Connection", "Shared"]

_numbers: Final = count(1)


class Shared(Struct, frozen=True):
    """What the connections of a server have in common."""

    offer: Offer
    dispatcher: Dispatcher
    threads: Threads
    clock: Clock
    observers: Observers
    watchers: "Watchers[Connection]"
    on_roots_changed: "list[Callable[[Any], Awaitable[None]]]"
    departed: "Callable[[Connection], None]"


class _Gather(Struct):
    """The answers to a batch, until all of them are there."""

    waiting: int
    answers: list[Message]


class Connection:
    """One peer on the line, from the first message to the last."""

    def __init__(self, shared: Shared, channel: Channel) -> None:
        offer = shared.offer
        self.number = next(_numbers)
        self.shared = shared
        self.offer = offer
        self.settings = offer.settings
        self.channel = channel
        self.session = Session(
            Side.SERVER,
            info=offer.info,
            capabilities=offer.capabilities(),
            instructions=offer.instructions,
            settings=offer.settings,
        )
        self.log_level = LOGGING_LEVELS.index("info")
        self.close_reason: str | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._clock = shared.clock
        self._watched = bool(shared.observers)
        self._active = 0  # calls that have been started and not ended
        self._waiting: deque[tuple[Running, Any]] = deque()  # calls whose turn has not come
        self._paused = False
        self._batches: dict[RequestId, _Gather] = {}
        self._timer: Timer | None = None
        self._timer_due: float | None = None
        self._opened: asyncio.Future[None] | None = None  # for requests of ours that came too early
        self._idle: asyncio.Future[None] | None = None
        self.tell(Connected, transport=channel.info.transport, peer=channel.info.peer)
        self.step(Signal.CONNECT)

    # --- receiving -----------------------------------------------------------------------------

    def received(self, messages: Sequence[Incoming], origin: Origin) -> None:
        """Takes what one read brought."""
        now = self._clock.now()
        if self._watched:
            self.tell(Received, count=len(messages))
        receive = self.session.receive
        for message in messages:
            if isinstance(message, Batch):
                self._receive_batch(message, now, origin)
            else:
                self._handle(receive(message, now), origin)

    def _handle(self, event: Event, origin: Origin) -> None:
        if type(event) is CallReceived:
            event.call.origin = origin
            if self._active < self.settings.max_calls:
                self._start(event.call, event.params)
            else:
                self._put_off(event.call, event.params)
        else:
            self._handle_other(event)

    def _handle_other(self, event: Event) -> None:
        match event:
            case Answered():
                _settle(event)
            case NoticeReceived():
                self._notice(event)
            case Refused(reply=reply):
                self.dropped(reply.error.message, "refused")
                self.channel.send(reply, about=reply.id if isinstance(reply.id, int | str) else None)
            case Cancelled(call=call):
                self._cancelled(call)
            case Opened():
                self.phase_changed(Phase.INITIALIZING)
                if self._opened is not None:
                    self._opened.set_result(None)
                    self._opened = None
            case ProgressHeard(request=request, progress=progress):
                if request.on_progress is not None:
                    request.on_progress(progress)
            case Ignored(why=why, kind=kind):
                self.dropped(why, kind)
            case CallReceived():
                pass  # handled above, before all others

    def _receive_batch(self, batch: Batch, now: float, origin: Origin) -> None:
        if self.session.revision is not Revision.V2025_03_26:
            fault = Malformed(InvalidRequest.code, "batches are part of revision 2025-03-26 only")
            self.channel.send(self.session.complaint(fault))
            return
        gather = _Gather(1, [])
        for message in batch.messages:
            event = self.session.receive(message, now)
            match event:
                case CallReceived(call=call):
                    gather.waiting += 1
                    self._batches[call.id] = gather
                    self._handle(event, origin)
                case Refused(reply=reply):
                    gather.answers.append(reply)
                case _:
                    self._handle(event, origin)
        self._gathered(gather)

    def _gathered(self, gather: _Gather) -> None:
        gather.waiting -= 1
        if not gather.waiting and gather.answers:
            self.channel.send(gather.answers)

    # --- calls ---------------------------------------------------------------------------------

    def _put_off(self, call: Running, params: Any) -> None:
        self._waiting.append((call, params))
        if len(self._waiting) >= self.settings.max_waiting and not self._paused:
            self._paused = True
            self.channel.pause()

    def _start(self, call: Running, params: Any) -> None:
        if self._watched:
            self.tell(CallStarted, request=call.id, method=call.method.name)
        self._active += 1
        done = partial(self._ended, call)
        try:
            work = self.shared.dispatcher.dispatch(self, call, params)
        except Exception as error:  # noqa: BLE001 - becomes an answer
            done(None, error)
            return
        working = drive.start(work, self.shared.threads, done)
        if working is not None and not call.done:
            call.work = working
            if call.deadline is None:  # unless the feature has set one
                self.limit(call, call.method.wait.seconds(self.settings))
            self._watch(call)

    def limit(self, call: Running, seconds: float | None) -> None:
        """Gives a call so much time from now on."""
        call.limit(self._clock.now(), seconds, self.settings.longest_call)

    def _ended(self, call: Running, value: Any, error: BaseException | None) -> None:
        """A call has come to its end, however it did; its answer goes out unless nobody wants it any more."""
        self._active -= 1
        if error is None:
            self._reply(call, value)
        elif not call.done:
            self._fail(call, error)
        elif not isinstance(error, asyncio.CancelledError):
            self._report_failure(call, "-", error)
        if self._waiting or self._paused or self._idle is not None:
            self._next()

    def _reply(self, call: Running, value: Any) -> None:
        try:
            answer = self.session.reply(call, value)
            if answer is not None:
                self._send_answer(answer, call.id)
        except Exception as error:  # noqa: BLE001 - a value without JSON, for one
            self._unsendable(call, error)
        else:
            if answer is not None and self._watched:
                failed = isinstance(value, CallToolResult) and value.is_error
                self._tell_end(call, "failed" if failed else "ok")

    def _unsendable(self, call: Running, error: Exception) -> None:
        failure = failure_of(error, call, self.session.spoken)
        self._report_failure(call, failure.reference or "-", error)
        answer = (
            ErrorResponse(call.id, self.session.error_object(failure.answer))
            if isinstance(failure.answer, ProtocolError)
            else Response(call.id, failure.answer)
        )
        self._send_answer(answer, call.id)

    def _fail(self, call: Running, error: BaseException) -> None:
        self.conclude(call, failure_of(error, call, self.session.spoken), error)

    def conclude(self, call: Running, failure: Failure, error: BaseException) -> None:
        """Answers a call that failed."""
        if failure.reference is not None:
            self._report_failure(call, failure.reference, error)
        if isinstance(failure.answer, ProtocolError):
            answer: Message | None = self.session.fail(call, failure.answer)
        else:
            answer = self.session.reply(call, failure.answer)
        if answer is not None:
            self._send_answer(answer, call.id)
        if self._watched:
            code = answer.error.code if isinstance(answer, ErrorResponse) else None
            self._tell_end(call, "failed" if code is None else "error", code)

    def _next(self) -> None:
        while self._waiting and self._active < self.settings.max_calls:
            call, params = self._waiting.popleft()
            if not call.done:
                self._start(call, params)
        if self._paused and len(self._waiting) < self.settings.max_waiting // 2:
            self._paused = False
            self.channel.resume()
        if self._idle is not None and not self._active and not self._waiting and not self._idle.done():
            self._idle.set_result(None)

    def _cancelled(self, call: Running) -> None:
        self._stop(call)
        self._leave_batch(call)
        self._tell_end(call, "cancelled")
        self._next()

    def _stop(self, call: Running) -> None:
        if call.work is not None and not call.work.cancel():
            self._active -= 1  # a thread goes on with it, but nobody waits for that any more

    def _leave_batch(self, call: Running) -> None:
        gather = self._batches.pop(call.id, None)
        if gather is not None:
            self._gathered(gather)

    def _send_answer(self, answer: Message, ident: RequestId) -> None:
        if self._batches and (gather := self._batches.pop(ident, None)) is not None:
            gather.answers.append(answer)
            self._gathered(gather)
        else:
            self.channel.send(answer, about=ident)

    # --- time ----------------------------------------------------------------------------------

    def _watch(self, call: Running) -> None:
        self.session.timetable.watch(call)
        self._arm()

    def _arm(self) -> None:
        due = self.session.timetable.next_due()
        if due is None or (self._timer_due is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = self._timer_due = None
        now = self._clock.now()
        for late in self.session.expired(now):
            if isinstance(late, Running):
                self._give_up(late, now)
            elif isinstance(late, Awaited):
                self._stop_waiting(late, RequestTimeout(late.method.name, round(now - late.started, 3)), "timed out")
        self._arm()

    def _give_up(self, call: Running, now: float) -> None:
        """Time is up: the caller is answered at once, even if a thread goes on."""
        self._fail(call, RequestTimeout(call.method.name, round(now - call.started, 3)))
        self._stop(call)
        self._next()

    # --- asking the peer -----------------------------------------------------------------------

    async def request(
        self,
        name: str,
        params: Any = UNSET,
        *,
        about: Running | None = None,
        timeout: float | None = None,
        needs: str | None = None,
        on_progress: Callable[[ProgressParams], None] | None = None,
    ) -> Any:
        """Asks the peer and waits for its answer (Raw). `about` is the call on whose behalf; its time stands still.

        Raises `PeerError` for an error that the peer answers with, `RequestTimeout` when it does not answer in time,
        `ConnectionClosed` when it goes, and `ProtocolError` when the request may not be sent at all.
        """
        if about is not None:
            about.hold(self._clock.now())
        try:
            await self._until_open(name)
            waiter: asyncio.Future[Any] = self._loop.create_future()
            awaited, message = self.session.call(
                name, params, self._clock.now(), timeout=timeout, needs=needs, on_progress=on_progress, waiter=waiter
            )
            self.channel.send(message, about=None if about is None else about.id)
            self._arm()
            try:
                return await waiter
            except asyncio.CancelledError:
                self._stop_waiting(awaited, None, "no longer needed")
                raise
        finally:
            if about is not None:
                about.release(self._clock.now())
                if not about.done:
                    self._watch(about)

    async def _until_open(self, name: str) -> None:
        """Requests of ours wait for `initialized` (lifecycle, "Initialization"); ping need not."""
        if self.session.phase is Phase.INITIALIZING and name != "ping":
            self._opened = self._opened or self._loop.create_future()
            await asyncio.shield(self._opened)

    def _stop_waiting(self, awaited: Awaited, error: Exception | None, why: str) -> None:
        notice = self.session.cancel(awaited, why)
        if notice is not None:
            self.channel.send(notice)
        if error is not None and not awaited.waiter.done():
            awaited.waiter.set_exception(error)

    # --- telling the peer ----------------------------------------------------------------------

    def notify(self, name: str, params: Any = UNSET, *, about: Running | None = None) -> bool:
        """Sends a notification if it may be sent now; callable on the loop only."""
        if not self.session.may_send(name):
            return False
        self.channel.send(self.session.notify(name, params), about=None if about is None else about.id)
        return True

    def broadcast(self, name: str, frame: Encoded) -> None:
        """Sends a notification that was encoded once for many."""
        if self.session.may_send(name):
            self.channel.send(frame)

    def post(self, action: Callable[[], object]) -> None:
        """Does something on the loop: now if this is its thread, soon if not."""
        if threading.get_ident() == self._thread:
            action()
        else:
            self._loop.call_soon_threadsafe(action)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that all of it happens on."""
        return self._loop

    def now(self) -> float:
        """The time on this connection's clock."""
        return self._clock.now()

    def _notice(self, event: NoticeReceived) -> None:
        name = event.method.name
        if not self.shared.dispatcher.answers(name):
            self.dropped(f"nobody handles {name}", "unhandled_notification")
            return
        call = Running(id=f"notification {name}", method=event.method, started=self._clock.now())

        def done(value: Any, error: BaseException | None) -> None:  # noqa: ARG001 - a notification has no answer
            self._active -= 1
            if error is not None and not isinstance(error, asyncio.CancelledError):
                self._report_failure(call, "-", error)
            self._next()

        self._active += 1
        try:
            work = self.shared.dispatcher.dispatch(self, call, event.params)
        except Exception as error:  # noqa: BLE001 - reported, never answered
            done(None, error)
        else:
            drive.start(work, self.shared.threads, done)

    # --- phases and endings --------------------------------------------------------------------

    def step(self, signal: Signal) -> None:
        """Moves the session on and tells of it."""
        before = self.session.phase
        self.session.step(signal)
        self.phase_changed(before)

    def phase_changed(self, before: Phase) -> None:
        """Tells that the session has left a phase."""
        if before is not self.session.phase:
            self.tell(PhaseChanged, before=before.name, after=self.session.phase.name)

    async def finish(self, timeout: float | None) -> None:
        """Ends in good order: nothing new is taken, what runs may finish within the time, then the line is closed."""
        if self.session.allows(Signal.DRAIN):
            self.step(Signal.DRAIN)
        if self._active or self._waiting:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=timeout)
        await self.channel.close()

    def closed(self, closed: Closed) -> None:
        """The channel is gone: everything that this connection owns ends."""
        self.close_reason = closed.reason
        before = self.session.phase
        running, awaited = self.session.close()
        for request in awaited:
            if not request.waiter.done():
                request.waiter.set_exception(ConnectionClosed(f"the connection closed: {closed.reason}"))
                request.waiter.exception()  # whoever waits still gets it; nobody is warned if nobody waits
        for call in running:
            if call.work is not None:
                call.work.cancel()
        self._waiting.clear()
        self._batches.clear()
        if self._opened is not None:
            self._opened.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self.shared.departed(self)
        self.phase_changed(before)
        self.tell(ClosedFact, reason=closed.reason)

    # --- facts ---------------------------------------------------------------------------------

    def tell(self, fact: Callable[..., Any], **members: Any) -> None:
        """Reports a fact of this connection, if anybody listens."""
        if self._watched:
            self.shared.observers.on(fact(connection=self.number, at=self._clock.now(), **members))

    def _tell_end(self, call: Running, outcome: str, code: int | None = None) -> None:
        seconds = self._clock.now() - call.started
        self.tell(CallEnded, request=call.id, method=call.method.name, outcome=outcome, code=code, seconds=seconds)

    def _report_failure(self, call: Running, reference: str, error: BaseException) -> None:
        self.shared.observers.on(
            HandlerFailed(
                connection=self.number,
                at=self._clock.now(),
                request=call.id,
                method=call.method.name,
                reference=reference,
                error=error,
            )
        )

    def dropped(self, why: str, kind: str) -> None:
        """Tells of something that went nowhere."""
        self.tell(Dropped, why=why, kind=kind)


def _settle(event: Answered) -> None:
    waiter: asyncio.Future[Any] = event.request.waiter
    if waiter.done():
        return
    if event.error is None:
        waiter.set_result(event.result)
    else:
        waiter.set_exception(PeerError(event.error.code, event.error.message, event.error.data))
