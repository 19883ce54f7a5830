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
from trunkline.conversation import drive
from trunkline.conversation.alarm import Alarm
from trunkline.conversation.answering import Answering
from trunkline.conversation.batches import Batches
from trunkline.conversation.dispatch import Dispatcher
from trunkline.conversation.requests import Requests
from trunkline.conversation.threads import Threads
from trunkline.errors import InvalidRequest, RequestTimeout, TrunklineError
from trunkline.facts import CallStarted, Connected, Observers, PhaseChanged, Received
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
from trunkline.protocol.methods import Wait
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import ProgressParams
from trunkline.transports.channel import Channel, Closed, Origin
from trunkline.wire.messages import (
    Batch,
    Encoded,
    Incoming,
    Malformed,
    RequestId,
)

if TYPE_CHECKING:
    from trunkline.conversation.heartbeat import Heartbeat

__all__ = ["KEEPALIVE_FAILED", "Connection", "Shared"]

KEEPALIVE_FAILED: Final = "keepalive_failed"


class Shared(Struct, frozen=True):
    """What the connections on one loop have in common."""

    dispatcher: Dispatcher
    threads: Threads
    clock: Clock
    observers: Observers


class Connection(Answering):
    """One peer on the line, from the first message to the last. There may be thousands that do nothing: what only some
    of them need is made when they do."""

    __slots__ = (
        *("__weakref__", "_active", "_advancing", "_burial", "_dispatcher", "_heartbeat", "_idle", "_loop"),
        *("_made_alarm", "_made_requests", "_max_calls", "_notices", "_paused", "_start", "_thread", "_waiting"),
        *("close_reason", "settings", "threads"),
    )

    def __init__(self, shared: Shared, session: Session, channel: Channel) -> None:
        super().__init__(session, channel, shared.clock, shared.observers)
        self.settings = session.settings
        self.threads = shared.threads
        self.close_reason: str | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._dispatcher = shared.dispatcher
        self._start = self._start_call
        most = self.settings.max_connections if channel.info.shared else self.settings.max_calls
        self._max_calls = most  # and one more for each call that waits for the peer
        self._active = 0  # calls that have been started and not ended
        self._waiting: deque[tuple[Running, Any]] | None = None  # calls whose turn has not come
        self._advancing = False  # among those who wait
        self._paused = False
        self._notices: set[drive.Working] | None = None  # notifications being taken; the session keeps requests only
        self._made_alarm: Alarm | None = None
        self._made_requests: Requests | None = None
        self._idle: asyncio.Future[None] | None = None
        self._heartbeat = self._make_heartbeat()
        self._burial: asyncio.Task[None] | None = None  # of a peer that is dead
        self.tell(Connected, transport=channel.info.transport, peer=channel.info.peer)
        self.step(Signal.CONNECT)

    @property
    def _alarm(self) -> Alarm:
        made = self._made_alarm = self._made_alarm or Alarm(self.session.timetable, self._clock, self._expire)
        return made

    @property
    def _requests(self) -> Requests:
        if self._made_requests is None:
            self._made_requests = Requests(self.session, self.channel, self._clock, self._alarm, self.rest)
        return self._made_requests

    # --- receiving -----------------------------------------------------------------------------

    def received(self, messages: Sequence[Incoming], origin: Origin) -> None:
        """Takes what one read brought."""
        now = self._clock.now()
        if self._heartbeat is not None:
            self._heartbeat.heard = now
        if self.watched:
            self.tell(Received, count=len(messages))
        receive, headers = self.session.receive, None if origin.named is None else origin.headers
        for message in messages:
            if type(message) is Batch:
                self._receive_batch(message, now, origin)
                continue
            event = receive(message, now, headers)
            if type(event) is CallReceived and self._active < self._max_calls:  # the short way of most messages
                event.call.origin = origin
                self._start(event.call, event.params)
            elif type(event) is Answered:  # and that of a client's
                self._requests.answered(event)
            else:
                self._handle(event, origin)

    def _handle(self, event: Event, origin: Origin) -> None:
        match event:
            case CallReceived(call=call, params=params):
                call.origin = origin
                if self._active < self._max_calls:
                    self._start(call, params)
                else:
                    self._put_off(call, params)
            case Answered():
                self._requests.answered(event)
            case NoticeReceived():
                self._notice(event, origin)
            case Refused(reply=reply):
                self.dropped(reply.error.message, "refused")
                self.channel.send(reply, about=reply.id if isinstance(reply.id, int | str) else None)
            case Cancelled(call=call):
                self._cancelled(call)
            case Opened():
                self.phase_changed(Phase.INITIALIZING)
                if self._made_requests is not None:
                    self._made_requests.opened()
            case ProgressHeard():
                self._requests.progressed(event, self.report_failure)
            case Ignored(why=why, kind=kind):
                self.dropped(why, kind)

    def _receive_batch(self, batch: Batch, now: float, origin: Origin) -> None:
        if self.session.revision is not Revision.V2025_03_26:
            fault = Malformed(InvalidRequest.code, "batches are part of revision 2025-03-26 only")
            self.channel.send(self.session.complaint(fault))
            return
        if self._batches is None:
            self._batches = Batches(self.channel.send)
        receive = self.session.receive
        for event in self._batches.take_apart(batch.messages, lambda message: receive(message, now)):
            self._handle(event, origin)

    # --- calls ---------------------------------------------------------------------------------

    def rest(self, calls: int) -> None:
        """Calls that wait for the peer make room for others: among what is read then may be what they wait for. So do
        those that wait for nothing in particular."""
        self._max_calls += calls
        self._next()

    def _put_off(self, call: Running, params: Any) -> None:
        if call.method.wait is Wait.QUICK:
            self._start(call, params)  # ping and lists run no user code: nothing is gained by letting them wait
            return
        self._waiting = self._waiting or deque()
        self._waiting.append((call, params))
        if len(self._waiting) >= self.settings.max_waiting and not self._paused:
            self._paused = True
            self.channel.pause()

    def _start_call(self, call: Running, params: Any) -> None:
        if self.watched:
            self.tell(CallStarted, request=call.id, method=call.method.name)
        self._active += 1
        try:
            work = self._dispatcher.dispatch(self, call, params)
        except Exception as error:  # noqa: BLE001 - becomes an answer
            self._ended(call, None, error)
            return
        working = drive.start(work, self.threads, self._ended, call)
        if working is not None and not call.done:
            call.work = working
            if call.deadline is None:  # unless the feature has set one
                self.limit(call, call.method.wait.seconds(self.settings))
            self._alarm.watch(call)

    def limit(self, call: Running, seconds: float | None) -> None:
        """Gives a call so much time from now on."""
        longest = None if call.method.wait is Wait.ENDLESS else self.settings.longest_call
        call.limit(self._clock.now(), seconds, longest)
        if call.noted is not None:  # it is watched already, and perhaps for a later time
            self._alarm.watch(call)

    def _ended(self, call: Running, value: Any, error: BaseException | None) -> None:
        """A call has come to its end, however it did; its answer goes out unless nobody wants it any more."""
        self._active -= 1
        if error is None:
            self.succeed(call, value)
        elif not call.done:
            self.fail(call, error)
        elif not isinstance(error, asyncio.CancelledError | TrunklineError):  # what was raised on purpose is no failure
            self.report_failure(call, "-", error)
        if self._waiting or self._paused or self._idle is not None:
            self._next()

    def answer(self, call: Running, result: Any, outcome: str = "ok") -> None:
        """Answers a call now, and stops whoever works on it."""
        answer = self.session.reply(call, result)
        if answer is not None:
            self.send_answer(answer, call.id)
            self.tell_end(call, outcome)
            self._stop(call)
            self._next()

    def abandon(self, call: Running, error: BaseException) -> None:
        """Answers a call now that cannot go on, and stops whoever works on it: even if a thread goes on."""
        if not call.done:
            self.fail(call, error)
            self._stop(call)
            self._next()

    def _next(self) -> None:
        """Gives those who wait their turn. One that is done at once ends in here again, where the loop goes on."""
        if self._advancing:
            return
        self._advancing = True
        while self._waiting and self._active < self._max_calls:
            call, params = self._waiting.popleft()
            if not call.done:
                self._start(call, params)
        self._advancing = False
        if self._paused and len(self._waiting or ()) <= self.settings.max_waiting // 2:
            self._paused = False
            self.channel.resume()
        if self._idle is not None and not self._active and not self._waiting and not self._idle.done():
            self._idle.set_result(None)

    def _cancelled(self, call: Running) -> None:
        self._stop(call)
        self.leave_unanswered(call)
        self._next()

    def _stop(self, call: Running) -> None:
        if call.work is not None:
            call.work.cancel()

    # --- time ----------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        for late in self.session.expired(now):
            if isinstance(late, Running):
                self.abandon(late, RequestTimeout(late.method.name, round(now - late.started, 3)))
            elif isinstance(late, Awaited):
                self._requests.expired(late, now)

    def _make_heartbeat(self) -> "Heartbeat | None":
        interval = self.settings.keepalive_interval
        if interval is None or not self.channel.info.may_vanish:
            return None
        from trunkline.conversation.heartbeat import Heartbeat

        return Heartbeat(interval, self.settings.keepalive_timeout, self._clock, self._ping, self._bury)

    @property
    def sign_of_life(self) -> str:
        """What the peer is asked that shall only show that it is there."""
        return "ping"

    def _ping(self) -> bool:
        if self._paused or self.session.phase is not Phase.READY:
            return False
        self._requests.ping(self.sign_of_life, self.settings.keepalive_timeout)
        return True

    def _bury(self) -> None:
        """The peer is dead, and nothing is waited for."""
        self.close_reason = KEEPALIVE_FAILED
        self._burial = self._loop.create_task(self.finish(0))

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
        """Asks the peer and waits for its answer (Raw). `about` is the call on whose behalf; its time stands still
        from then on, not while the peer has yet to complete the handshake.

        Raises `PeerError` for an error that the peer answers with, `RequestTimeout` when it does not answer in time,
        `ConnectionClosed` when it goes, and `ProtocolError` when the request may not be sent at all.
        """
        return await self._requests.send(
            name, params, about=about, timeout=timeout, needs=needs, on_progress=on_progress
        )

    def ask(
        self,
        name: str,
        params: Any,
        *,
        timeout: float | None = None,
        on_progress: Callable[[ProgressParams], None] | None = None,
    ) -> Awaited:
        """Asks the peer, now; the answer comes to the `waiter` of what it gives back. Whoever stops waiting for it says
        so to `forget`."""
        return self._requests.ask(name, params, timeout=timeout, on_progress=on_progress)

    def forget(self, asked: Awaited) -> None:
        """Nobody waits for an answer any more: the peer is told."""
        self._requests.stop_waiting(asked, "no longer needed")

    # --- telling the peer ----------------------------------------------------------------------

    def notify(self, name: str, params: Any = UNSET, *, about: Running | None = None) -> bool:
        """Sends a notification if it may be sent now; callable on the loop only."""
        if about is not None:
            message = self.session.tell_about(about, name, params)
        else:
            message = self.session.notify(name, params) if self.session.may_send(name) else None
        if message is not None:
            self.channel.send(message, about=None if about is None else about.id)
        return message is not None

    def broadcast(self, name: str, frame: Encoded, params: Any) -> None:  # noqa: ARG002 - others mark each one
        """Sends a notification that was encoded once for many."""
        if self.session.may_send(name):
            self.channel.send(frame)

    def post(self, action: Callable[[], object]) -> None:
        """Does something on the loop: now if this is its thread, soon if not."""
        if threading.get_ident() == self._thread:
            action()
        else:
            self.threads.post(action)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that all of it happens on."""
        return self._loop

    def now(self) -> float:
        """The time on this connection's clock."""
        return self._clock.now()

    def _notice(self, event: NoticeReceived, origin: Origin) -> None:
        name = event.method.name
        if not self._dispatcher.answers(name):
            self.dropped(f"nobody handles {name}", "unhandled_notification")
            return
        call = Running(id=f"notification {name}", method=event.method, started=self._clock.now(), origin=origin)
        self._active += 1
        try:
            work = self._dispatcher.dispatch(self, call, event.params)
        except Exception as error:  # noqa: BLE001 - reported, never answered
            self._noticed(call, None, error)
            return
        call.work = drive.start(work, self.threads, self._noticed, call)
        if call.work is not None:
            self._notices = self._notices or set()
            self._notices.add(call.work)

    def _noticed(self, call: Running, _: Any, error: BaseException | None) -> None:
        """A notification has been taken; it has no answer."""
        self._active -= 1
        if self._notices is not None:
            self._notices.discard(call.work)
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.report_failure(call, "-", error)
        self._next()

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

    def deafen(self, reason: str) -> None:
        """Nothing more will be heard from the peer, though it may still listen: what was asked of it fails now."""
        self._requests.closed(self.session.stop_waiting(), Closed(reason))

    def unanswered(self, request: RequestId, closed: Closed) -> None:
        """The answer to a request of ours cannot come any more, though the peer is still there."""
        self._requests.unanswered(request, closed)

    def asking(self, request: RequestId, *, begun: bool) -> None:
        """Somebody is asked who we are before a request of ours goes on, or has been; its time stands still then."""
        self._requests.asking(request, begun=begun)

    async def finish(self, timeout: float | None) -> None:
        """Ends in good order: nothing new is taken, what runs may finish within the time, then the line is closed."""
        until = None if timeout is None else self._loop.time() + timeout
        for step in (self.drained, self.channel.close):
            with contextlib.suppress(TimeoutError):  # a peer that does not read keeps nobody
                async with asyncio.timeout_at(until):
                    await step()

    def drain(self) -> None:
        """Takes nothing new from now on."""
        if self.session.allows(Signal.DRAIN):
            self.step(Signal.DRAIN)
        self.draining()

    async def drained(self) -> None:
        """Takes nothing new, and waits until what runs has ended."""
        self.drain()
        if self._active or self._waiting:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def closed(self, closed: Closed) -> None:
        """The channel is gone: everything that this connection owns ends."""
        if self.close_reason is not None:  # we know better
            closed = replace(closed, reason=self.close_reason)
        self.close_reason = closed.reason
        before = self.session.phase
        running, awaited = self.session.close(self.ending(closed))
        if self._made_requests is not None:
            self._made_requests.closed(awaited, closed)
        self._waiting = self._batches = None
        for call in running:
            self.tell_end(call, "closed")
            self._stop(call)
        for working in list(self._notices or ()):
            working.cancel()
        if self._made_alarm is not None:
            self._made_alarm.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self.departed()
        self.phase_changed(before)
        self.tell(ClosedFact, reason=closed.reason)

    def ending(self, closed: Closed) -> Signal:  # noqa: ARG002 - for whoever can tell one end from another
        """What the end of the channel means to the conversation."""
        return Signal.CLOSE

    def draining(self) -> None:
        """Nothing new is taken any more: what would never end by itself ends now."""

    def departed(self) -> None:
        """The peer has gone, and its calls with it: what else is kept for it can go."""
