"""Requests of ours to a peer: sent, awaited, answered, or given up."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET

from trunkline.clock import Clock
from trunkline.conversation.alarm import Alarm
from trunkline.errors import ConnectionClosed, PeerError, RequestTimeout
from trunkline.protocol.events import Answered, ProgressHeard
from trunkline.protocol.inflight import Awaited, Running
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.session import Session
from trunkline.protocol.types import ProgressParams
from trunkline.transports.channel import Channel

__all__ = ["Requests"]


class Requests:
    """What one connection asks of its peer."""

    def __init__(
        self, session: Session, channel: Channel, clock: Clock, alarm: Alarm, resting: Callable[[int], None]
    ) -> None:
        self._session = session
        self._resting = resting  # told how many more or fewer calls wait for the peer, and do nothing themselves
        self._channel = channel
        self._clock = clock
        self._alarm = alarm
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] | None = None  # for requests that came too early

    async def send(
        self,
        name: str,
        params: Any,
        *,
        about: Running | None,
        timeout: float | None,
        needs: str | None,
        on_progress: Callable[[ProgressParams], None] | None,
    ) -> Any:
        """Asks and waits for the answer."""
        await self._until_open(name)
        if about is not None:
            about.hold(self._clock.now())
            self._resting(1)
        try:
            waiter: asyncio.Future[Any] = self._loop.create_future()
            awaited, message = self._session.call(
                name, params, self._clock.now(), timeout=timeout, needs=needs, on_progress=on_progress, waiter=waiter
            )
            self._channel.send(message, about=None if about is None else about.id)
            self._alarm.set()
            try:
                return await waiter
            except asyncio.CancelledError:
                self._stop_waiting(awaited, "no longer needed")
                raise
        finally:
            if about is not None:
                self._resting(-1)
                about.release(self._clock.now())
                if not about.done:
                    self._alarm.watch(about)

    async def _until_open(self, name: str) -> None:
        """Requests of ours wait for `initialized` (lifecycle, "Initialization"); ping need not."""
        if self._session.phase is Phase.INITIALIZING and name != "ping":
            self._opened = self._opened or self._loop.create_future()
            await asyncio.shield(self._opened)

    def opened(self) -> None:
        """The handshake is complete: those who came too early may go on."""
        if self._opened is not None:
            self._opened.set_result(None)
            self._opened = None

    def answered(self, event: Answered) -> None:
        """The peer has answered."""
        waiter: asyncio.Future[Any] = event.request.waiter
        if waiter.done():
            return
        if event.error is None:
            waiter.set_result(event.result)
        else:
            data = None if event.error.data is UNSET else event.error.data
            waiter.set_exception(PeerError(event.error.code, event.error.message, data))

    def progressed(self, event: ProgressHeard, failed: Callable[[Awaited, str, BaseException], None]) -> None:
        """The peer reports progress; what whoever hears of it raises harms nobody."""
        if event.request.on_progress is None:
            return
        try:
            event.request.on_progress(event.progress)
        except Exception as error:  # noqa: BLE001 - reported
            failed(event.request, "-", error)

    def expired(self, awaited: Awaited, now: float) -> None:
        """The peer has not answered in time: it is told not to, and whoever waits is told why."""
        self._stop_waiting(awaited, "timed out")
        _fail(awaited.waiter, RequestTimeout(awaited.method.name, round(now - awaited.started, 3)))

    def _stop_waiting(self, awaited: Awaited, why: str) -> None:
        notice = self._session.cancel(awaited, why)
        if notice is not None:
            self._channel.send(notice)

    def closed(self, awaited: Iterable[Awaited], reason: str) -> None:
        """The peer is gone: nobody will answer."""
        gone = ConnectionClosed(f"the connection closed: {reason}")
        for request in awaited:
            _fail(request.waiter, gone)
        if self._opened is not None:
            _fail(self._opened, gone)


def _fail(waiter: "asyncio.Future[Any]", error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # whoever waits still gets it; nobody is warned if nobody waits
