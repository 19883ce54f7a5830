"""Requests of ours, on a line that a peer is on, and the time that everything has."""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from trunkline.clock import Clock
from trunkline.facts import Observers
from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.session import Session
from trunkline.protocol.types import ProgressParams
from trunkline.rpc.deadlines import DeadlineTimer
from trunkline.rpc.outgoing_requests import OutgoingRequests
from trunkline.rpc.replies import Replies
from trunkline.transports.channel import Channel, ChannelClosed
from trunkline.wire.messages import RequestId

__all__ = ["RequestingConnection"]


class RequestingConnection(Replies):
    """The end of a line that asks, and answers. What asks nothing has nothing made for it."""

    __slots__ = ("_lazy_deadline_timer", "_lazy_requests")

    def __init__(self, session: Session, channel: Channel, clock: Clock, observers: Observers) -> None:
        super().__init__(session, channel, clock, observers)
        self._lazy_deadline_timer: DeadlineTimer | None = None
        self._lazy_requests: OutgoingRequests | None = None

    def adjust_call_limit(self, change: int) -> None:
        """Takes notice of calls that wait for the peer, or for nothing in particular."""
        raise NotImplementedError

    def _expire_due_requests(self) -> None:
        """Ends what is due."""
        raise NotImplementedError

    @property
    def _deadline_timer(self) -> DeadlineTimer:
        made = self._lazy_deadline_timer = self._lazy_deadline_timer or DeadlineTimer(
            self.session.deadlines, self._clock, self._expire_due_requests
        )
        return made

    @property
    def _requests(self) -> OutgoingRequests:
        if self._lazy_requests is None:
            self._lazy_requests = OutgoingRequests(
                self.session, self.channel, self._clock, self._deadline_timer, self.adjust_call_limit
            )
        return self._lazy_requests

    async def request(
        self,
        name: str,
        params: Any = UNSET,
        *,
        about: IncomingRequest | None = None,
        timeout: float | None = None,
        needs: str | None = None,
        on_progress: Callable[[ProgressParams], None] | None = None,
    ) -> Any:
        """Asks the peer and waits for its answer (Raw). `about` is the call on whose behalf; its time stands still
        from then on, not while the peer has yet to complete the handshake.

        Raises `PeerError` for an error that the peer answers with, `RequestTimeout` when it does not answer in time,
        `ConnectionClosed` when it goes, and `ProtocolError` when the request may not be sent at all.
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
        on_progress: Callable[[ProgressParams], None] | None = None,
    ) -> OutgoingRequest:
        """Asks the peer, now; the answer comes to the `waiter` of what it gives back. Whoever stops waiting for it says
        so to `forget`."""
        return self._requests.send(name, params, timeout=timeout, on_progress=on_progress)

    def cancel_request(self, request: OutgoingRequest) -> None:
        """Nobody waits for an answer any more: the peer is told."""
        self._requests.cancel(request, "no longer needed")

    def fail_pending_requests(self, reason: str) -> None:
        """Nothing more will be heard from the peer, though it may still listen: what was asked of it fails now."""
        self._requests.fail_all(self.session.abandon_requests(), ChannelClosed(reason))

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        """The answer to a request of ours cannot come any more, though the peer is still there."""
        self._requests.fail_request(request, closed)

    def asking(self, request: RequestId, *, begun: bool) -> None:
        """Somebody is asked who we are before a request of ours goes on, or has been; its time stands still then."""
        self._requests.asking(request, begun=begun)

    def abandon_requests(self, closed: ChannelClosed) -> None:
        """Gives up all that was asked, without a word to the peer, and forgets every deadline."""
        awaited = self.session.abandon_requests()
        if self._lazy_requests is not None:
            self._lazy_requests.fail_all(awaited, closed)
        if self._lazy_deadline_timer is not None:
            self._lazy_deadline_timer.stop()
        self._lazy_deadline_timer = self._lazy_requests = None
