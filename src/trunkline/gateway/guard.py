"""Admission of the requests to one backend: its state, its bulkhead and its circuit breaker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import BadAnswer, ConnectionClosed, NotNow, PeerError, ProtocolError, RequestTimeout
from trunkline.gateway.options import BackendOptions, BreakerOptions
from trunkline.protocol.inflight import IncomingRequest
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, LocalSemaphore, TooManyCalls
from trunkline.server.resilience.breaker_states import Outcome, Permit

if TYPE_CHECKING:
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker
    from trunkline.server.server import Server

__all__ = ["BackendGuard", "BackendPermit", "counts_as_backend_failure"]

_BUSY_RETRY: Final = 1.0  # seconds; a guess: the gateway does not know how long the running requests take

_UNGUARDED: Final = Permit(0)  # of a request to a backend without a circuit breaker


def counts_as_backend_failure(error: Exception) -> bool:
    """Return whether an error tells of a broken backend. An error that it has answered with does not."""
    if isinstance(error, PeerError):
        return isinstance(error, BadAnswer)
    return isinstance(error, RequestTimeout) or not isinstance(error, ProtocolError)


class BackendPermit(NamedTuple):
    """The right to send one request to a backend."""

    of_breaker: Permit
    losses: int  # of connections that were known when the request was admitted


class BackendGuard:
    """Admits the requests to one backend. It implements `RequestGuard`."""

    def __init__(
        self,
        name: str,
        options: BackendOptions,
        is_ready: Callable[[], bool],
        check_state: Callable[[], None],
        wait_ready: Callable[[], Awaitable[None]],
    ) -> None:
        """`is_ready` says whether the backend is ready; `check_state` raises if it will not be ready soon; `wait_ready`
        waits until it is, or raises."""
        self._name = name
        self._is_ready = is_ready
        self._check_state = check_state
        self._wait_ready = wait_ready
        most = options.max_concurrency
        self._limit = None if most is None else ConcurrencyLimit(name, most, options.max_queue)
        self._semaphore = None if self._limit is None else LocalSemaphore(self._limit)
        self.breaker: CircuitBreaker | None = None
        self._losses = 0  # of connections, as far as requests have reported them
        self._running = 0
        self._idle_waiters: list[asyncio.Future[None]] = []

    def add_breaker(self, server: "Server", options: BreakerOptions) -> None:
        """Refuse requests while the backend fails; the breaker belongs to the server that forwards to it."""
        self.breaker = server.breaker(
            self._name,
            failures=options.failures,
            failure_rate=options.failure_rate,
            window=options.window,
            open_seconds=options.open_seconds,
            successes=options.successes,
            is_failure=counts_as_backend_failure,
            shared=False,
        )

    def try_admit(self) -> BackendPermit | None:
        """Admit a request if the backend is ready, its breaker is closed and a permit is free; None otherwise."""
        if not self._is_ready():
            return None
        permit = _UNGUARDED if self.breaker is None else self.breaker.try_admit()
        if permit is None or not (self._semaphore is None or self._semaphore.try_acquire()):
            return None
        self._running += 1
        return BackendPermit(permit, self._losses)

    async def admit(self) -> BackendPermit:
        """Admit a request once there is a permit for it and the backend is ready. Raises `NotNow` and `BreakerOpen`."""
        self._check_state()
        if self._semaphore is not None:
            try:
                await self._semaphore.acquire()
            except TooManyCalls:
                raise self._busy_error() from None
        self._running += 1
        try:
            await self._wait_ready()
            permit = _UNGUARDED if self.breaker is None else await self.breaker.admit()
        except BaseException:
            self._release()
            raise
        return BackendPermit(permit, self._losses)

    def leave(self, permit: BackendPermit, call: IncomingRequest, error: BaseException | None) -> None:
        """End a request that was admitted; an error, or a result after the deadline, may count against the backend: the
        backend knows the deadline, and may be the first to report it. Requests that were lost at the same time are one
        failure: a backend that dies once and is back at once must not be refused because many requests were in
        flight."""
        breaker = self.breaker
        if breaker is not None:
            if error is None:
                outcome = Outcome.FAILURE if breaker.has_expired(call) else Outcome.SUCCESS
            else:
                outcome = breaker.judge(error, call)
            if isinstance(error, ConnectionClosed):
                if permit.losses != self._losses:  # another request that was in flight has reported the loss
                    outcome = Outcome.NEUTRAL
                else:
                    self._losses += 1
            breaker.settle(permit.of_breaker, outcome)
        self._release()

    def _release(self) -> None:
        if self._semaphore is not None:
            self._semaphore.release(None)
        self._running -= 1
        if not self._running and self._idle_waiters:
            self._wake()

    def _busy_error(self) -> NotNow:
        most = 0 if self._limit is None else self._limit.max_concurrency
        why = f"backend {self._name!r} is busy: {most} requests run, and its queue is full; try again later"
        return NotNow(why, retry_after=_BUSY_RETRY)

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        while self._running:
            waiter = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _wake(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
