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

    __slots__ = ("_adjust_call_limit", "_alarm", "_channel", "_clock", "_loop", "_opened", "_session")

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
        self._alarm = deadline_timer
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] | None = None  # for requests that came too early

    async def send(
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
            about.hold(self._clock.now())
            self._adjust_call_limit(1)
        try:
            asked = self.ask(name, params, about=about, timeout=timeout, needs=needs, on_progress=on_progress)
            try:
                return await asked.waiter
            except asyncio.CancelledError:
                self.stop_waiting(asked, "no longer needed")
                raise
            finally:
                asked.waiter = None  # its error refers to the frames that hold the request
        finally:
            if about is not None:
                self._adjust_call_limit(-1)
                about.release(self._clock.now())
                if not about.done:
                    self._alarm.watch(about)

    def ping(self, name: str, timeout: float) -> None:
        """Asks the peer for a sign of life, by a harmless method; who looks for one hears of it by itself."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        waiter.add_done_callback(lambda done: done.exception())  # none of them matters
        _, message = self._session.call(name, UNSET, self._clock.now(), timeout=timeout, waiter=waiter)
        self._channel.send(message)
        self._alarm.set()

    async def probe(self, timeout: float | None, on_sent: Callable[[], None]) -> Any:
        """Asks whether the peer speaks the modern era, before anything else is said (Raw)."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        _, message = self._session.probe(self._clock.now(), timeout, waiter)
        self._channel.send(message)
        self._alarm.set()
        self._loop.call_soon(on_sent)
        return await waiter

    def ask(
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
        asked.about = about
        self._alarm.set()
        return asked

    async def _wait_until_initialized(self, name: str) -> None:
        """Requests of ours wait for `initialized` (lifecycle, "Initialization"); ping need not."""
        if self._session.phase is Phase.INITIALIZING and name != "ping":
            self._opened = self._opened or self._loop.create_future()
            await asyncio.shield(self._opened)

    def opened(self) -> None:
        """The handshake is complete: those who came too early may go on."""
        if self._opened is not None:
            self._opened.set_result(None)
            self._opened = None

    def answered(self, event: ResponseReceived) -> None:
        """The peer has answered."""
        waiter: asyncio.Future[Any] | None = event.request.waiter
        if waiter is None or waiter.done():  # it was given up
            late: asyncio.Future[Any] | None = event.request.late
            if late is not None and not late.done() and event.error is None:
                late.set_result(event.result)
            return
        if event.error is None:
            waiter.set_result(event.result)
        else:
            data = None if event.error.data is UNSET else event.error.data
            waiter.set_exception(PeerError(event.error.code, event.error.message, data))

    def unusable(self, request: OutgoingRequest, why: str) -> None:
        """The peer has answered with something that cannot be used."""
        _set_exception(request.waiter, BadAnswer(request.method.name, why))

    def progressed(
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

    def expired(self, request: OutgoingRequest, now: float) -> None:
        """The peer has not answered in time: it is told not to, and whoever waits is told why."""
        self.stop_waiting(request, "timed out")
        _set_exception(request.waiter, RequestTimeout(request.method.name, round(now - request.started, 3)))

    def stop_waiting(self, request: OutgoingRequest, reason: str) -> None:
        """Gives up a request of ours, and tells the peer; where it was asked, if anybody listens there."""
        notice = self._session.cancel(request, reason)
        if notice is not None:
            about = request.about
            self._channel.send(notice, about=None if about is None or about.cancelled else about.id)

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        """The answer to one of them cannot come any more. A peer that may have heard of it is told not to go on."""
        awaited = self._session.pending.get(request)
        if awaited is not None:
            notice = self._session.cancel(awaited, closed.reason)
            if notice is not None and closed.reached:
                self._channel.send(notice)
            _set_exception(awaited.waiter, closed_error(closed))

    def asking(self, request: RequestId, *, begun: bool) -> None:
        """Whether a request of ours waits for a person on our side: its time stands still while it does."""
        awaited = self._session.pending.get(request)
        if awaited is None:
            return
        if begun:
            awaited.hold(self._clock.now())
        else:
            awaited.release(self._clock.now())
            self._alarm.watch(awaited)

    def closed(self, requests: Iterable[OutgoingRequest], closed: ChannelClosed) -> None:
        """The peer is gone: nobody will answer."""
        for waiter in (*(request.waiter for request in requests), *filter(None, [self._opened])):
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
