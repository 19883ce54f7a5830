"""The client's channel over HTTP: every message is a POST.

Requests of the modern era are independent. For the handshake era, the response to `initialize` decides between
Streamable HTTP and the older HTTP+SSE. The transport classes implement HTTP; the channel implements ordering, tasks,
limits and closing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, TransportError
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, MirrorLookup, Oversized, Receiver
from trunkline.transports.http.client.call_permits import CallPermits
from trunkline.transports.http.client.credentials import OnAuthorizing
from trunkline.transports.http.client.http_backend import Cancel, HttpBackend, Reply, RequestNotSent
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.http_sse import HttpSse, NoStream
from trunkline.transports.http.client.modern import ModernHttp
from trunkline.transports.http.client.outbox import INITIALIZE, Outbox, PendingPost
from trunkline.transports.http.client.session import StreamableHttp
from trunkline.transports.http.client.status import answers_request, negotiated_revision
from trunkline.wire.messages import Encoded, ErrorResponse, Incoming, Message, RequestId

__all__ = ["HttpClientChannel"]

_log: Final = logging.getLogger("trunkline")
_ORIGIN: Final = MessageOrigin()
_LOSS_GRACE: Final = 1.0  # seconds for POSTs in flight to complete after the session is lost
# requests without a permit of max_calls
_UNLIMITED_METHODS: Final = frozenset({INITIALIZE, "ping", "server/discover", "subscriptions/listen"})


class HttpClientChannel:
    """Channel to one server."""

    def __init__(
        self,
        backend: HttpBackend,
        peer: HttpPeer,
        settings: Settings,
        on_transport_chosen: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_transport_chosen` is called with the name of the transport, once `initialize` is answered."""
        self._backend = backend
        self._peer = peer
        self._settings = settings
        self._on_transport_chosen = on_transport_chosen
        self._session_transport: StreamableHttp | HttpSse = StreamableHttp(peer, self, settings)
        self._modern_transport = ModernHttp(peer, self, settings)
        self._last_was_modern = False  # the last request was modern: there is no session for notifications
        self._mirrors: MirrorLookup = lambda _: ()
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._outbox = Outbox()
        self._call_permits = CallPermits(settings.max_calls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[RequestId, asyncio.Task[None] | _DirectCall] = {}
        self._unposted: dict[RequestId, None] = {}  # requests that were not sent yet
        self._unsent_size = 0  # bytes
        self._posts_in_flight = 0  # POSTs that the server has not accepted yet
        self._drained: asyncio.Future[None] | None = None  # resolved when fewer bytes are unsent
        self._idle: asyncio.Future[None] | None = None  # resolved when no POST is in flight
        self._resumed: asyncio.Future[None] | None = None  # pending while reading is paused
        self._loss_task: asyncio.Task[None] | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._closed: ChannelClosed | None = None

    @property
    def info(self) -> ChannelInfo:
        """The kind of this channel."""
        return ChannelInfo(self._session_transport.transport, self._peer.endpoint.origin)

    def set_mirrors(self, mirrors: MirrorLookup) -> None:
        """Repeat these tool arguments in headers, in calls of the modern era."""
        self._mirrors = mirrors

    def open(self, receiver: Receiver) -> None:
        """Set the receiver."""
        self._receiver = receiver
        if isinstance(self._session_transport, HttpSse):
            self.listen()

    async def try_http_sse(self, on_authorizing: OnAuthorizing) -> None:
        """Switch to HTTP+SSE. Raise `TransportError` if the server does not offer it."""
        http_sse = HttpSse(self._peer, self, self._settings)
        await http_sse.open(on_authorizing)
        self._session_transport = http_sse

    # --- out -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:  # noqa: ARG002 - the server knows the related request
        """Queue a message; it is posted when the messages before it allow."""
        pending = PendingPost.from_message(message, self._mirrors)
        if self._closed is not None:
            return None
        if len(pending.body) > self._settings.http_body_size_limit and not isinstance(message, ErrorResponse):
            raise Oversized(len(pending.body), self._settings.http_body_size_limit, "http_body_size_limit")
        if pending.modern_headers is not None or pending.method == INITIALIZE:
            self._last_was_modern = pending.modern_headers is not None
        if self._last_was_modern and pending.request_id is None and pending.modern_headers is None:
            self._cancel_call(pending.cancels)
            return None
        if pending.request_id is not None:
            self._unposted[pending.request_id] = None
        if self._loss_task is not None:
            return None  # the session is lost; requests get `unanswered`
        self._unsent_size += len(pending.body)
        if self._unsent_size > self._settings.unsent_limit:
            self.lose(f"the server left {self._unsent_size} bytes unread")
        else:
            self._post(self._outbox.put(pending))
        return len(pending.body)

    def _cancel_call(self, request: RequestId | None) -> None:
        """Close the response of a cancelled request. Without a session there is no other way to notify the server."""
        if request is not None and (call := self._calls.get(request)) is not None:
            call.cancel()

    def _post(self, ready: list[PendingPost]) -> None:
        for pending in ready:
            if self._post_directly(pending):
                continue
            task = self._spawn(self._post_in_turn(pending))
            if pending.request_id is not None:
                self._calls[pending.request_id] = task
            if pending.request_id is None or pending.method in _UNLIMITED_METHODS:
                self._mark_started(pending)

    def _post_directly(self, pending: PendingPost) -> bool:
        """Post a request without a task; return False if it has to wait for a permit, credentials or a connection."""
        if (
            pending.request_id is None
            or pending.method in _UNLIMITED_METHODS
            or isinstance(self._session_transport, HttpSse)
            or not self._call_permits.try_acquire()
        ):
            return False
        call = _DirectCall(self, pending)
        cancel = None
        with contextlib.suppress(RequestNotSent):  # the task reports it
            cancel = self._peer.start(pending.body, pending.modern_headers, call.on_outcome, pending.trace_headers)
        if cancel is None:
            self._call_permits.release()
            return False
        call.cancel_request = cancel
        pending.has_permit = True
        self._mark_started(pending)
        self._unposted.pop(pending.request_id, None)
        self._calls[pending.request_id] = call
        return True

    def on_direct_outcome(self, call: "_DirectCall", outcome: Reply | TransportError) -> None:
        """Deliver the response to a request that was posted without a task. If it takes waiting, start a task."""
        pending = call.pending
        answer = None
        if not isinstance(outcome, TransportError) and self._resumed is None and self._outbox.barrier is None:
            answer = self._transport_for(pending).parse_complete_answer(outcome, pending)
        if answer is None:
            pending.outcome = outcome
            task = self._spawn(self._post_in_turn(pending), call.context)
            task.add_done_callback(partial(self._discard_outcome, pending))
            if pending.request_id is not None and self._calls.get(pending.request_id) is call:
                self._calls[pending.request_id] = task
            return
        self.finish_post(pending, call)
        if self._receiver is not None and self._closed is None:
            try:
                self._receiver.received((answer,), _ORIGIN)
            except Exception as error:  # noqa: BLE001 - reported to the receiver
                self.unanswered(pending, f"{type(error).__name__}: {error}")

    def _discard_outcome(self, pending: PendingPost, task: "asyncio.Task[None]") -> None:
        """Close the response of a call that was cancelled before its task began to run."""
        outcome, pending.outcome = pending.outcome, None
        if outcome is not None:
            if not isinstance(outcome, TransportError):
                outcome.close()
            self.finish_post(pending, task)

    def _mark_started(self, pending: PendingPost) -> None:
        pending.started = True
        self._posts_in_flight += 1

    async def _post_in_turn(self, pending: PendingPost) -> None:
        try:
            if not pending.started:
                await self._call_permits.acquire()
                pending.has_permit = True
            if self._loss_task is None or pending.outcome is not None:
                await self._post_now(pending)
        except Exception as error:  # noqa: BLE001 - reported to the receiver
            self.unanswered(pending, f"{type(error).__name__}: {error}")
        finally:
            self.finish_post(pending, asyncio.current_task())
        if pending.cancels is not None and (call := self._calls.get(pending.cancels)) is not None:
            call.cancel()  # the server has accepted the cancellation; ignore its response

    def finish_post(self, pending: PendingPost, call: "asyncio.Task[Any] | _DirectCall | None") -> None:
        """Record that a POST has ended, however it did."""
        self.accepted(pending)
        if pending.has_permit:
            pending.has_permit = False
            self._call_permits.release()
        if pending.request_id is not None:
            if self._calls.get(pending.request_id) is call:
                del self._calls[pending.request_id]
            if self._loss_task is None:
                self._unposted.pop(pending.request_id, None)

    def _transport_for(self, pending: PendingPost) -> StreamableHttp | HttpSse | ModernHttp:
        return self._session_transport if pending.modern_headers is None else self._modern_transport

    async def _post_now(self, pending: PendingPost) -> None:
        if not pending.started:
            self._mark_started(pending)
        if pending.request_id is not None:
            self._unposted.pop(pending.request_id, None)
        await self._transport_for(pending).post(pending)

    def accepted(self, pending: PendingPost) -> None:
        """Record that a POST was accepted, or never will be."""
        if pending.accepted:
            return
        pending.accepted = True
        self._unsent_size -= len(pending.body)
        if pending.started:
            self._posts_in_flight -= 1
        if pending.method != INITIALIZE:  # complete only when it is answered
            self._post(self._outbox.complete(pending))
        if self._drained is not None and self._unsent_size <= self._settings.unsent_high // 2:
            self._drained = _wake(self._drained)
        if self._idle is not None and not self._posts_in_flight:
            self._idle = _wake(self._idle)

    async def drain(self) -> None:
        """Wait while too much is unsent."""
        if self._unsent_size > self._settings.unsent_high and self._closed is None:
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)

    # --- in ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop delivering messages."""
        self._resumed = self._resumed or self._loop.create_future()

    def resume(self) -> None:
        """Deliver messages again."""
        if self._resumed is not None:
            self._resumed = _wake(self._resumed)

    async def deliver(self, messages: Sequence[Incoming]) -> None:
        """Pass messages to the receiver, waiting while it has paused."""
        while self._resumed is not None:
            await asyncio.shield(self._resumed)
        opening = self._outbox.barrier
        if opening is not None and opening.request_id is not None:
            self._check_initialize_answer(messages, opening, opening.request_id)
        if self._receiver is not None and self._closed is None:
            self._receiver.received(messages, _ORIGIN)

    def _check_initialize_answer(self, messages: Sequence[Incoming], opening: PendingPost, request: RequestId) -> None:
        """Record revision and transport if the messages contain the response to `initialize`."""
        for message in messages:
            if answers_request(message, request):
                self._peer.revision = negotiated_revision(message, request)
                if self._peer.revision is not None:
                    self._on_transport_chosen(self._session_transport.transport)
                self._post(self._outbox.complete(opening))

    def listen(self) -> None:
        """Start reading the server's own stream."""
        self._spawn(self._session_transport.listen())

    async def fall_back(self, pending: PendingPost, refused: ErrorResponse) -> None:
        """Try HTTP+SSE because the server refused `initialize`."""
        try:
            await self.try_http_sse(partial(self.authorizing, pending))
        except AuthorizationFailed as error:
            self.authorization_failed(pending, error)
        except TransportError as error:
            if not _is_same_status(refused, error):
                text = f"{refused.error.message}; HTTP+SSE of 2024-11-05 failed, too: {error}"
                refused = replace(refused, error=replace(refused.error, message=text))
            await self.deliver([refused])
        else:
            self.listen()
            await self._session_transport.post(pending)

    # --- authorization -------------------------------------------------------------------------

    def authorizing(self, pending: PendingPost, begun: bool) -> None:
        """Report that authorization for a request has begun or ended."""
        if pending.request_id is not None and self._receiver is not None and self._closed is None:
            self._receiver.authorizing(pending.request_id, begun=begun)

    def authorization_failed(self, pending: PendingPost, error: AuthorizationFailed) -> None:
        """Report that the server did not accept a message because authorization failed."""
        if pending.request_id is None:
            _log.warning("%s did not accept %s: %s", self._peer.endpoint.name, pending.method or "a response", error)
        elif self._receiver is not None and self._closed is None:
            self._receiver.unanswered(pending.request_id, ChannelClosed(str(error), error, reached=False))

    # --- closing --------------------------------------------------------------------------------

    def unanswered(self, pending: PendingPost, reason: str) -> None:
        """Report that a message, which may have arrived, will get no response."""
        if pending.request_id is not None and self._receiver is not None and self._closed is None:
            self._receiver.unanswered(pending.request_id, ChannelClosed(reason))

    def lose(self, reason: str, pending: PendingPost | None = None) -> None:
        """Close because the server or the session is gone. Requests that never arrived may be retried."""
        if pending is not None and pending.request_id is not None:
            self._unposted[pending.request_id] = None
        if self._loss_task is None and self._closed is None:
            self._loss_task = self._spawn(self._lose(ChannelClosed(reason), pending))

    async def _lose(self, closed: ChannelClosed, pending: PendingPost | None) -> None:
        if pending is not None:
            self.accepted(pending)
        if self._posts_in_flight:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=_LOSS_GRACE)
        self._end(closed)

    def _end(self, closed: ChannelClosed) -> None:
        if self._closed is not None:
            return
        if self._receiver is not None:
            for request in list(self._unposted):
                self._receiver.unanswered(request, replace(closed, reached=False))
        self._closed = closed
        for waiting in (self._drained, self._resumed, self._idle):
            if waiting is not None:
                _wake(waiting)
        self._drained = self._resumed = self._idle = None
        if self._receiver is not None:
            self._receiver.closed(closed)
        self._close_task = self._close_task or self._loop.create_task(self._finish())

    async def close(self) -> None:
        """Send the pending messages, end the session, and close; all within `stop_timeout`."""
        self._close_task = self._close_task or self._loop.create_task(self._finish())
        await asyncio.shield(self._close_task)

    async def _finish(self) -> None:
        if self._loss_task is None and self._closed is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.stop_timeout):
                    await self._end_session()
        self._end(ChannelClosed("closed"))
        for call in (*self._calls.values(), *self._tasks):
            call.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if isinstance(self._session_transport, HttpSse):
            self._session_transport.close()
        await self._backend.close()

    async def _end_session(self) -> None:
        """Wait for the last notifications and end the session; cancel open requests."""
        for call in list(self._calls.values()):
            call.cancel()
        if self._posts_in_flight:
            self._idle = self._loop.create_future()
            await self._idle
        await self._session_transport.end_session()

    def _spawn(self, work: "Coroutine[Any, Any, None]", context: Context | None = None) -> "asyncio.Task[None]":
        task = self._loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _DirectCall:
    """A request that was posted without a task, until its outcome is known."""

    __slots__ = ("_channel", "cancel_request", "context", "pending")

    def __init__(self, channel: HttpClientChannel, pending: PendingPost) -> None:
        self._channel = channel
        self.pending = pending
        self.context = copy_context()  # of the caller: a task that continues the call runs in it
        self.cancel_request: Cancel = bool

    def on_outcome(self, outcome: Reply | TransportError) -> None:
        """Handle the response, or its failure."""
        self.context.run(self._channel.on_direct_outcome, self, outcome)

    def cancel(self) -> None:
        """Close the connection of the request."""
        self.cancel_request()
        self._channel.finish_post(self.pending, self)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _is_same_status(refused: ErrorResponse, error: TransportError) -> bool:
    """Return whether HTTP+SSE failed with the same status, so that its error adds nothing."""
    text: Any = refused.error.data
    data = cast("dict[str, Any]", text) if isinstance(text, dict) else {}
    return isinstance(error, NoStream) and data.get("status") == error.status
