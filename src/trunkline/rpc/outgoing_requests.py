"""Requests to a peer: sent, then answered, timed out, cancelled or failed."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol, cast

from msgspec import UNSET

from trunkline.clock import Clock
from trunkline.errors import (
    AuthorizationFailed,
    BadAnswer,
    ConnectionClosed,
    MessageTooLarge,
    MisuseError,
    PeerError,
    RequestCancelled,
    RequestTimeout,
    TransportError,
    again,
)
from trunkline.protocol.events import ProgressReceived, ResponseReceived
from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.session import Session
from trunkline.protocol.types import ProgressParams
from trunkline.rpc.deadlines import DeadlineTimer
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.transports.channel import Channel, ChannelClosed, Oversized
from trunkline.wire.messages import RequestId

__all__ = ["OutgoingRequests", "ResponseWaiter", "closed_error"]

_DISCOVER: Final = "server/discover"


class ResponseWaiter(Protocol):
    """Receives the outcome of a request: a future, or work that continues within the read of the response. Its methods
    do not raise."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...
    def exception(self) -> object: ...


class OutgoingRequests:
    """The requests of one connection to its peer."""

    __slots__ = (
        *("_adjust_call_limit", "_channel", "_clock", "_create_future", "_deadline_timer", "_facts", "_initialized"),
        *("_loop", "_session"),
    )

    def __init__(
        self,
        session: Session,
        channel: Channel,
        clock: Clock,
        deadline_timer: DeadlineTimer,
        adjust_call_limit: Callable[[int], None],
        *,
        facts: FactReporter,
    ) -> None:
        """`adjust_call_limit` is called with 1 when a call of the peer begins to wait for a request, and with -1 when
        that ends: a call that only waits does not count against the limit."""
        self._session = session
        self._channel = channel
        self._clock = clock
        self._deadline_timer = deadline_timer
        self._adjust_call_limit = adjust_call_limit
        self._facts = facts
        loop = self._loop = asyncio.get_running_loop()
        # asyncio's own loops create these futures; doing so directly saves a call.
        own = type(loop).create_future is asyncio.BaseEventLoop.create_future
        self._create_future: Callable[[], asyncio.Future[Any]] = (
            partial(asyncio.Future, loop=loop) if own else loop.create_future
        )
        self._initialized: asyncio.Future[None] | None = None  # for requests before the end of the handshake

    async def request(
        self,
        name: str,
        params: Any,
        *,
        about: IncomingRequest | None,
        timeout: float | None,
        needs: str | None,
        on_progress: Callable[[ProgressParams], None] | None,
    ) -> Any:
        """Send a request and return its result."""
        await self._wait_until_initialized(name)
        if about is not None:
            about.suspend_deadline(self._clock.now())
            self._adjust_call_limit(1)
        try:
            request = self.send(name, params, about=about, timeout=timeout, needs=needs, on_progress=on_progress)
            try:
                return await request.waiter
            except asyncio.CancelledError:
                self.cancel(request, "no longer needed")
                raise
            finally:
                request.waiter = None  # its error refers to the frames that hold the request
        finally:
            if about is not None:
                self._adjust_call_limit(-1)
                about.resume_deadline(self._clock.now())
                if not about.done:
                    self._deadline_timer.watch(about)

    def ping(self, name: str, timeout: float) -> None:
        """Send a request without side effects and ignore its response; the keepalive monitor sees every message."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        waiter.add_done_callback(lambda done: done.exception())  # retrieve the error, so that asyncio does not log it
        request, message = self._session.call(name, UNSET, self._clock.now(), timeout=timeout, waiter=waiter)
        self._channel.send(message)
        self._deadline_timer.watch(request)

    async def probe(self, timeout: float | None, on_sent: Callable[[], None]) -> Any:
        """Send `server/discover` as the first message and return its result (Raw)."""
        params, observed = self._facts.begin_request(_DISCOVER, UNSET)
        waiter: asyncio.Future[Any] = self._loop.create_future()
        request, message = self._session.start_probe(self._clock.now(), timeout, waiter, params)
        size = self._channel.send(message)
        if observed is not None:
            self._facts.observe_request(request, params, size, waiter, observed)
        self._deadline_timer.reschedule()
        self._loop.call_soon(on_sent)
        return await waiter

    def send(
        self,
        name: str,
        params: Any,
        *,
        about: IncomingRequest | None = None,
        timeout: float | None = None,
        needs: str | None = None,
        on_progress: Callable[[ProgressParams], None] | None = None,
        waiter: Any = None,
    ) -> OutgoingRequest:
        """Send a request at once; its `waiter` receives the response: a `ResponseWaiter`, or a new future without one.
        An observed request needs a future. Raises if it may not be sent now."""
        observed = None
        if self._facts.observed:
            params, observed = self._facts.begin_request(name, params)
        if waiter is None:
            waiter = self._create_future()
        request, message = self._session.call(
            name, params, self._clock.now(), timeout=timeout, capability=needs, on_progress=on_progress, waiter=waiter
        )
        try:
            if about is None:
                size = self._channel.send(message)
            else:
                request.parent_call = about
                size = self._channel.send(message, about=about.id)
        except (TypeError, ValueError, RecursionError) as error:  # params that have no JSON
            self._session.cancel(request)  # without a notification: the peer has not received the request
            if isinstance(error, Oversized):
                raise MisuseError(f"{name} is too large: {error}", kind=MessageTooLarge.kind) from None
            raise MisuseError(f"params of {name}: {error}") from error
        # Until the timer fires the session adds no deadline to the queue, and by then it has most of the responses.
        due, deadline = self._deadline_timer.due, request.deadline
        if deadline is not None and (due is None or deadline < due):
            self._deadline_timer.watch(request)
        if observed is not None:
            self._facts.observe_request(request, params, size, waiter, observed)
        return request

    async def _wait_until_initialized(self, name: str) -> None:
        """Wait for `notifications/initialized` (lifecycle, "Initialization"); a ping may be sent before."""
        if self._session.phase is Phase.INITIALIZING and name != "ping":
            self._initialized = self._initialized or self._loop.create_future()
            await asyncio.shield(self._initialized)

    def on_initialized(self) -> None:
        """Send the requests that wait for the end of the handshake."""
        if self._initialized is not None:
            self._initialized.set_result(None)
            self._initialized = None

    def deliver_response(self, event: ResponseReceived) -> None:
        """Pass a response to the caller of its request. If the deadline has passed and the peer reports a timeout, the
        caller gets `RequestTimeout`, as it would if this side had noticed first."""
        waiter: ResponseWaiter | None = event.request.waiter
        if waiter is None or waiter.done():  # the caller has stopped waiting
            late: asyncio.Future[Any] | None = event.request.on_late_response
            if late is not None and not late.done() and event.error is None:
                late.set_result(event.result)
            return
        if event.error is None:
            waiter.set_result(event.result)
        else:
            data = None if event.error.data is UNSET else event.error.data
            error = PeerError(event.error.code, event.error.message, data)
            now = self._clock.now()
            timed_out = _reports_timeout(error) and event.request.has_expired(now)
            waiter.set_exception(_timeout(event.request, now) if timed_out else error)

    def reject_response(self, request: OutgoingRequest, why: str) -> None:
        """Fail a request whose response is malformed."""
        _set_exception(request.waiter, BadAnswer(request.method.name, why))

    def fail_cancelled(self, request: OutgoingRequest, reason: str | None) -> None:
        """Fail a request that the peer has cancelled."""
        _set_exception(request.waiter, RequestCancelled(request.method.name, reason))

    def deliver_progress(
        self, event: ProgressReceived, on_error: Callable[[OutgoingRequest, str, BaseException], None]
    ) -> None:
        """Pass a progress notification to the callback of its request; report an error of the callback."""
        if event.request.on_progress is None:
            return
        try:
            event.request.on_progress(event.progress)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - reported to observers
            on_error(event.request, "-", error)

    def time_out(self, request: OutgoingRequest, now: float) -> None:
        """Cancel a request at its deadline, and fail it with `RequestTimeout`."""
        self.cancel(request, "timed out")
        _set_exception(request.waiter, _timeout(request, now))

    def cancel(self, request: OutgoingRequest, reason: str) -> None:
        """Stop waiting for a response and notify the peer, on the stream of the related call while that is open."""
        notification = self._session.cancel(request, reason)
        if notification is not None:
            about = request.parent_call
            self._channel.send(notification, about=None if about is None or about.cancelled else about.id)

    def fail_request(self, request: RequestId, closed: ChannelClosed) -> None:
        """Fail a request whose response was lost. Cancel it at the peer if the peer may have received it."""
        pending = self._session.outgoing_requests.get(request)
        if pending is not None:
            notification = self._session.cancel(pending, closed.reason)
            if notification is not None and closed.reached:
                self._channel.send(notification)
            _set_exception(pending.waiter, closed_error(closed))

    def suspend_deadline(self, request: RequestId, *, suspended: bool) -> None:
        """Suspend the deadline of a request while it waits for a person on our side, or resume it."""
        pending = self._session.outgoing_requests.get(request)
        if pending is None:
            return
        if suspended:
            pending.suspend_deadline(self._clock.now())
        else:
            pending.resume_deadline(self._clock.now())
            self._deadline_timer.watch(pending)

    def fail_all(self, requests: Iterable[OutgoingRequest], closed: ChannelClosed) -> None:
        """Fail requests, and those that wait for the handshake, because the connection has closed."""
        for waiter in (*(request.waiter for request in requests), *filter(None, [self._initialized])):
            _set_exception(waiter, closed_error(closed))


def closed_error(closed: ChannelClosed) -> TransportError:
    """Return the error for callers whose connection has closed, or whose request was refused authorization."""
    if isinstance(closed.error, AuthorizationFailed):
        return again(closed.error)
    return ConnectionClosed(
        f"the connection closed: {closed.reason}",
        status=closed.status,
        last_words=closed.last_words,
        reached=closed.reached,
        too_large=closed.too_large,
    )


def _timeout(request: OutgoingRequest, now: float) -> RequestTimeout:
    return RequestTimeout(request.method.name, round(now - request.started, 3))


def _reports_timeout(error: PeerError) -> bool:
    data: Any = error.data
    return isinstance(data, dict) and cast("dict[str, Any]", data).get("kind") == RequestTimeout.kind


def _set_exception(waiter: ResponseWaiter | None, error: Exception) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # mark it as retrieved: without a waiting caller, asyncio would log it
