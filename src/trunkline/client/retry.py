"""Requests with retries, through the connection supervisor.

A request that was lost with its connection is sent again if it never reached the server or is repeatable, and if there
is time left. A request whose response alone was lost, on a connection that is still open, is sent a few more times,
since there may be many processes behind that connection. So is a repeatable request of which the server reports that
its work was interrupted, and any request that the server asks to retry after a short time. Otherwise the caller gets
`OutcomeUnknown`.

A request that times out is followed by a ping: if the server responds, only the request has failed; if not, the
connection is declared lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from trunkline.client.connection import ClientConnection
from trunkline.client.multi_round import next_round
from trunkline.client.reconnect import ConnectionSupervisor
from trunkline.client.tasks.status import TASK_RESULT_TYPE
from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import (
    ConnectionClosed,
    ConnectionTimeout,
    HeaderMismatch,
    OutcomeUnknown,
    PeerError,
    RequestTimeout,
    TimeoutReconnecting,
)
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.inflight import OutgoingRequest
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.methods import find_method
from trunkline.protocol.types import CallToolParams, ProgressParams

__all__ = ["LIVENESS_CHECK", "OnProgress", "RetryBackoff", "ServerReply", "convert_unknown_outcome", "send_with_retry"]

LIVENESS_CHECK: Final = "ping"
"""Placeholder for the liveness request of the server's era."""

_COMPLETE: Final = "complete"
_OUTCOME_UNKNOWN: Final = "outcome_unknown"
_UNAVAILABLE: Final = "temporarily_unavailable"
_MAX_RETRY_AFTER_MS: Final = 5000  # for a longer delay the request fails
_RETRY_DELAYS: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 2.0)  # seconds, on a connection that is still open

OnProgress = Callable[[ProgressParams], Any]
"""Called with each progress notification of a request; async, or plain and quick."""


class ServerReply(NamedTuple):
    """The result of a request, undecoded."""

    raw: Any
    rounds: int  # the number of input rounds before the result
    request: OutgoingRequest
    is_task: bool  # as its resultType says, in the modern era


async def send_with_retry(
    supervisor: ConnectionSupervisor,
    clock: Clock,
    name: str,
    params: Any,
    *,
    repeatable: Callable[[ClientConnection], bool],
    timeout: float | None = None,
    on_progress: OnProgress | None = None,
    refresh_tools: Callable[[ClientConnection], Awaitable[None]] | None = None,
    on_abandoned: Callable[[OutgoingRequest], None] | None = None,
) -> ServerReply:
    """Send a request and return its result; retry where that is safe.

    `repeatable` tells whether the request may be sent again after it was lost on a connection. `refresh_tools` reads
    the tools again if the server finds the request inconsistent with its headers; then it is sent once more.
    `on_abandoned` is called with a request whose caller has stopped waiting, and which may still be answered with a
    task.

    Raises `PeerError`, `RequestTimeout`, `ConnectionClosed` or `OutcomeUnknown`, `Degraded` or `RetriesExhausted`,
    `InputFailed` if an input request of the server cannot be answered, and `ProtocolError` if the request may not be
    sent.
    """
    started = clock.now()
    left = timeout
    rounds = 0
    backoff: RetryBackoff | None = None
    while True:
        connection = supervisor.connection
        if connection is None:
            connection = await supervisor.wait_for_connection(
                name, _time_left(name, timeout, supervisor.settings, clock.now() - started)
            )
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
        try:
            method = connection.liveness_method if name == LIVENESS_CHECK else name
            request = connection.send_request(method, params, timeout=left, on_progress=on_progress)
            result = await _await_response(connection, request, params, on_abandoned)
            kind = read_result_header(result).result_type if connection.modern else _COMPLETE
            if kind == _COMPLETE or (kind == TASK_RESULT_TYPE and name == "tools/call"):
                return ServerReply(result, rounds, request, kind == TASK_RESULT_TYPE)
            rounds += 1
            params = await next_round(connection, name, params, result, rounds)
            if params.input_responses is not None:
                started = clock.now()  # the time that a person needed does not count
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
            if left is not None and left <= 0:
                raise RequestTimeout(name, round(clock.now() - started, 3))
        except PeerError as error:
            backoff = backoff or RetryBackoff(supervisor)
            if error.code == HeaderMismatch.code and refresh_tools is not None:
                await refresh_tools(connection)
                refresh_tools = None
            elif not await backoff.wait(backoff.delay_after_error(error, connection, repeatable), left):
                raise convert_unknown_outcome(error, _describe_request(name, params)) from None
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
        except RequestTimeout as late:
            raise await _check_liveness(supervisor, connection, late) from None
        except ConnectionClosed as lost:
            if lost.too_large:
                raise
            if lost.reached and not repeatable(connection):
                what = _describe_request(name, params)
                message = f"{what} was not answered; it may or may not have been done: {lost.message}"
                raise OutcomeUnknown(message, status=lost.status, last_words=lost.last_words) from None
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
            backoff = backoff or RetryBackoff(supervisor)
            if not await backoff.wait(backoff.delay_after_loss(connection), left):
                raise
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)


class RetryBackoff:
    """Decide whether a lost or deferred request is sent again, and after how many seconds: once per new connection, and
    a few times on a connection that is still open."""

    def __init__(self, supervisor: ConnectionSupervisor) -> None:
        self._supervisor = supervisor
        self._last_connection: ClientConnection | None = None
        self._attempts = 0  # on one connection

    def delay_after_loss(self, connection: ClientConnection) -> float | None:
        """Return the delay before the next attempt after a loss on this connection; None to give up."""
        alive = connection is self._supervisor.connection
        if not self._supervisor.reconnects:
            return None
        if connection is not self._last_connection:
            self._attempts = 0
        self._last_connection = connection
        return self._next_delay() if alive else 0.0

    def delay_after_error(
        self, error: PeerError, connection: ClientConnection, repeatable: Callable[[ClientConnection], bool]
    ) -> float | None:
        """Return the delay before the next attempt after an error response; None to give up. An unknown outcome is
        retried only after an interruption: otherwise the response would be the same again."""
        details = _error_data(error)
        if details.get("kind") == _OUTCOME_UNKNOWN:
            return (
                self.delay_after_loss(connection)
                if details.get("interrupted") is True and repeatable(connection)
                else None
            )
        return self.delay_if_unavailable(error)

    def delay_if_unavailable(self, error: PeerError) -> float | None:
        """Return the delay that the server asks for if it is temporarily unavailable; None if it is not."""
        details = _error_data(error)
        wait = details.get("retryAfterMs")
        if details.get("kind") != _UNAVAILABLE or not isinstance(wait, int) or not self._supervisor.reconnects:
            return None
        pause = None if wait > _MAX_RETRY_AFTER_MS else self._next_delay()
        return None if pause is None else max(pause, wait / 1000)

    async def wait(self, delay: float | None, time_left: float | None) -> bool:
        """Wait before the next attempt; return False if there is none, or no time left for it."""
        if delay is None or (time_left is not None and time_left <= delay):
            return False
        if delay:
            await self._supervisor.sleep(delay)
        return True

    def _next_delay(self) -> float | None:
        self._attempts += 1
        return _RETRY_DELAYS[self._attempts - 1] if self._attempts <= len(_RETRY_DELAYS) else None


def _describe_request(name: str, params: Any) -> str:
    return f"{name} of {params.name!r}" if isinstance(params, CallToolParams) else name


def convert_unknown_outcome(error: PeerError, what: str) -> PeerError | OutcomeUnknown:
    """Return `OutcomeUnknown` if the error reports an unknown outcome; any other error unchanged."""
    unknown = _error_data(error).get("kind") == _OUTCOME_UNKNOWN
    return OutcomeUnknown(f"{what}: {error.message}") if unknown else error


def _error_data(error: PeerError) -> dict[str, Any]:
    data: Any = error.data
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


async def _await_response(
    connection: ClientConnection,
    request: OutgoingRequest,
    params: Any,
    on_abandoned: Callable[[OutgoingRequest], None] | None,
) -> Any:
    if on_abandoned is not None:
        request.on_late_response = connection.loop.create_future()
        request.as_task = (
            connection.supports_task_augmentation and isinstance(params, CallToolParams) and params.task is not None
        )
    try:
        return await request.waiter
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError | RequestTimeout):
            connection.cancel_request(request)
            if on_abandoned is not None:
                on_abandoned(request)
        request.waiter = None  # its error refers to the frames that hold the request
        raise


def _time_left(name: str, timeout: float | None, settings: Settings, elapsed: float) -> float | None:
    """Return the seconds left for a request: of its own timeout, or of that of its method."""
    row = find_method(name)
    allowed = timeout or (None if row is None else row.time_limit.seconds(settings))
    return None if allowed is None else allowed - elapsed


async def _check_liveness(
    supervisor: ConnectionSupervisor, connection: ClientConnection, timeout: RequestTimeout
) -> RequestTimeout:
    """Ping the server after a timeout. Declare the connection lost if it does not respond; return the error."""
    if timeout.method == connection.liveness_method or await connection.responds_to_ping():
        return timeout
    if not connection.disconnected.done():
        connection.declare_lost("the server does not respond to a ping")
    how = TimeoutReconnecting if supervisor.phase is Phase.RECONNECTING else ConnectionTimeout
    return how(timeout.method, timeout.elapsed)
