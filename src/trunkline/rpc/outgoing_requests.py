"""Requests of ours to a peer: sent, awaited, answered, or given up."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET

from trunkline.clock import Clock
from trunkline.errors import (
    AuthorizationFailed,
    BadAnswer,
    ConnectionClosed,
    MessageTooLarge,
    MisuseError,
    PeerError,
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
from trunkline.transports.channel import Channel, ChannelClosed, Oversized
from trunkline.wire.messages import RequestId

__all__ = ["OutgoingRequests", "closed_error"]


class OutgoingRequests:
    """What one connection asks of its peer."""

    __slots__ = ("_adjust_call_limit", "_channel", "_clock", "_deadline_timer", "_initialized", "_loop", "_session")

    def __init__(
        self,
        session: Session,
        channel: Channel,
        clock: Clock,
        deadline_timer: DeadlineTimer,
        adjust_call_limit: Callable[[int], None],
    ) -> None:
        self._session = session
        self._adjust_call_limit = (
            adjust_call_limit  # told how many more or fewer calls wait for the peer, and do nothing themselves
        )
        self._channel = channel
        self._clock = clock
        self._deadline_timer = deadline_timer
        self._loop = asyncio.get_running_loop()
        self._initialized: asyncio.Future[None] | None = None  # for requests that came too early

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
        """Asks and waits for the answer."""
        await self._wait_until_initialized(name)
        if about is not None:
            about.suspend_deadline(self._clock.now())
            self._adjust_call_limit(1)
        try:
            asked = self.send(name, params, about=about, timeout=timeout, needs=needs, on_progress=on_progress)
            try:
                return await asked.waiter
            except asyncio.CancelledError:
                self.cancel(asked, "no longer needed")
                raise
            finally:
                asked.waiter = None  # its error refers to the frames that hold the request
        finally:
            if about is not None:
                self._adjust_call_limit(-1)
                about.resume_deadline(self._clock.now())
                if not about.done:
                    self._deadline_timer.watch(about)

    def ping(self, name: str, timeout: float) -> None:
        """Asks the peer for a sign of life, by a harmless method; who looks for one hears of it by itself."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        waiter.add_done_callback(lambda done: done.exception())  # none of them matters
        _, message = self._session.call(name, UNSET, self._clock.now(), timeout=timeout, waiter=waiter)
        self._channel.send(message)
        self._deadline_timer.reschedule()

    async def probe(self, timeout: float | None, on_sent: Callable[[], None]) -> Any:
        """Asks whether the peer speaks the modern era, before anything else is said (Raw)."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        _, message = self._session.start_probe(self._clock.now(), timeout, waiter)
        self._channel.send(message)
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
    ) -> OutgoingRequest:
        """Asks; the answer comes to the `waiter` of what it gives back. Raises if it may not be asked now."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        asked, message = self._session.call(
            name, params, self._clock.now(), timeout=timeout, capability=needs, on_progress=on_progress, waiter=waiter
        )
        try:
            self._channel.send(message, about=None if about is None else about.id)
        except (TypeError, ValueError, RecursionError) as error:  # params that have no JSON
            self._session.cancel(asked)  # of which the peer has never heard
            if isinstance(error, Oversized):
                raise MisuseError(f"{name} is too large: {error}", kind=MessageTooLarge.kind) from None
            raise MisuseError(f"params of {name}: {error}") from error
        asked.parent_call = about
        self._deadline_timer.reschedule()
        return asked

    async def _wait_until_initialized(self, name: str) -> None:
        """Requests of ours wait for `initialized` (lifecycle, "Initialization"); ping need not."""
        if self._session.phase is Phase.INITIALIZING and name != "ping":
            self._initialized = self._initialized or self._loop.create_future()
            await asyncio.shield(self._initialized)

    def on_initialized(self) -> None:
        """The handshake is complete: those who came too early may go on."""
        if self._initialized is not None:
            self._initialized.set_result(None)
            self._initialized = None

    def deliver_response(self, event: ResponseReceived) -> None:
        """The peer has answered."""
        waiter: asyncio.Future[Any] | None = event.request.waiter
        if waiter is None or waiter.done():  # it was given up
            late: asyncio.Future[Any] | None = event.request.on_late_response
            if late is not None and not late.done() and event.error is None:
                late.set_result(event.result)
            return
        if event.error is None:
            waiter.set_result(event.result)
        else:
            data = None if event.error.data is UNSET else event.error.data
            waiter.set_exception(PeerError(event.error.code, event.error.message, data))

    def reject_response(self, request: OutgoingRequest, why: str) -> None:
        """The peer has answered with something that cannot be used."""
        _set_exception(request.waiter, BadAnswer(request.method.name, why))

    def deliver_progress(
        self, event: ProgressReceived, on_error: Callable[[OutgoingRequest, str, BaseException], None]
    ) -> None:
        """The peer reports progress; what whoever hears of it raises harms nobody."""
        if event.request.on_progress is None:
            return
        try:
            event.request.on_progress(event.progress)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - reported
            on_error(event.request, "-", error)

    def time_out(self, request: OutgoingRequest, now: float) -> None:
        """The peer has not answered in time: it is told not to, and whoever waits is told why."""
        self.cancel(request, "timed out")
        _set_exception(request.waiter, RequestTimeout(request.method.name, round(now - request.started, 3)))

    def cancel(self, request: OutgoingRequest, reason: str) -> None:
        """Gives up a request of ours, and tells the peer; where it was asked, if anybody listens there."""
        notice = self._session.cancel(request, reason)
        if notice is not None:
            about = request.parent_call
            self._channel.send(notice, about=None if about is None or about.cancelled else about.id)

    def fail_request(self, request: RequestId, closed: ChannelClosed) -> None:
        """The answer to one of them cannot come any more. A peer that may have heard of it is told not to go on."""
        awaited = self._session.outgoing_requests.get(request)
        if awaited is not None:
            notice = self._session.cancel(awaited, closed.reason)
            if notice is not None and closed.reached:
                self._channel.send(notice)
            _set_exception(awaited.waiter, closed_error(closed))

    def asking(self, request: RequestId, *, begun: bool) -> None:
        """Whether a request of ours waits for a person on our side: its time stands still while it does."""
        awaited = self._session.outgoing_requests.get(request)
        if awaited is None:
            return
        if begun:
            awaited.suspend_deadline(self._clock.now())
        else:
            awaited.resume_deadline(self._clock.now())
            self._deadline_timer.watch(awaited)

    def fail_all(self, requests: Iterable[OutgoingRequest], closed: ChannelClosed) -> None:
        """The peer is gone: nobody will answer."""
        for waiter in (*(request.waiter for request in requests), *filter(None, [self._initialized])):
            _set_exception(waiter, closed_error(closed))


def closed_error(closed: ChannelClosed) -> TransportError:
    """What whoever waits is told of a line that has closed, or of a request that was turned away."""
    if isinstance(closed.error, AuthorizationFailed):
        return again(closed.error)
    return ConnectionClosed(
        f"the connection closed: {closed.reason}",
        status=closed.status,
        last_words=closed.last_words,
        reached=closed.reached,
        too_large=closed.too_large,
    )


def _set_exception(waiter: "asyncio.Future[Any] | None", error: Exception) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # whoever waits still gets it; nobody is warned if nobody waits
