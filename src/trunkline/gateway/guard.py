"""Admission of the requests to one backend: its state, its bulkhead and its circuit breaker."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from trunkline.errors import BadAnswer, ConnectionClosed, NotNow, PeerError, ProtocolError, RequestTimeout
from trunkline.gateway.options import BackendOptions, BreakerOptions
from trunkline.protocol.inflight import IncomingRequest
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, LocalSemaphore, TooManyCalls
from trunkline.server.resilience.breaker_states import Outcome

if TYPE_CHECKING:
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker
    from trunkline.server.server import Server

__all__ = ["BackendGuard", "counts_as_backend_failure"]

_BUSY_RETRY: Final = 1.0  # seconds; a guess: the gateway does not know how long the running requests take


def counts_as_backend_failure(error: Exception) -> bool:
    """Return whether an error tells of a broken backend. An error that it has answered with does not."""
    if isinstance(error, PeerError):
        return isinstance(error, BadAnswer)
    return isinstance(error, RequestTimeout) or not isinstance(error, ProtocolError)


class BackendGuard:
    """Admits the requests to one backend. It implements `RequestGuard`."""

    def __init__(
        self,
        name: str,
        options: BackendOptions,
        check_state: Callable[[], None],
        wait_ready: Callable[[], Awaitable[None]],
    ) -> None:
        """`check_state` raises if the backend will not be ready soon; `wait_ready` waits until it is, or raises."""
        self._name = name
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

    async def run(self, call: IncomingRequest, start: Callable[[], Coroutine[Any, Any, Raw]]) -> Raw:
        """Run a request once there is a permit for it and the backend is ready. Raises `NotNow` and `BreakerOpen`."""
        self._check_state()
        semaphore = self._semaphore
        if semaphore is not None:
            try:
                await semaphore.acquire()
            except TooManyCalls:
                raise self._busy_error() from None
        self._running += 1
        try:
            await self._wait_ready()
            return await (start() if self.breaker is None else self._run_with_breaker(self.breaker, call, start))
        finally:
            if semaphore is not None:
                semaphore.release(None)
            self._running -= 1
            if not self._running:
                self._wake()

    async def _run_with_breaker(
        self, breaker: "CircuitBreaker", call: IncomingRequest, start: Callable[[], Coroutine[Any, Any, Raw]]
    ) -> Raw:
        """Run a request, and report its outcome. Requests that were lost at the same time are one failure: a backend
        that dies once and is back at once must not be refused because many requests were in flight."""
        permit, losses = await breaker.admit(), self._losses
        try:
            result = await start()
        except BaseException as error:
            outcome = breaker.judge(error, call)
            if isinstance(error, ConnectionClosed):
                if losses != self._losses:  # another request that was in flight with this one has reported the loss
                    outcome = Outcome.NEUTRAL
                else:
                    self._losses += 1
            breaker.settle(permit, outcome)
            raise
        breaker.settle(permit, Outcome.SUCCESS)
        return result

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
