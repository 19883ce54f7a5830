"""Requests with retries, through the connection supervisor.

A request that was lost with its connection is sent again if it never reached the server or is repeatable, and if there
is time left. A request whose response alone was lost, on a connection that is still open, is sent a few more times,
since there may be many processes behind that connection. So is a repeatable request of which the server reports that
its work was interrupted, and any request that the server asks to retry after a short time. Otherwise the caller gets
`OutcomeUnknown`.

A request that the server refuses for its rate is sent again after the time that the refusal names, as long as the
client has retries left: they come out of a token bucket (`retry_rate`), so that retries never multiply an overload.

A request that times out is followed by a ping: if the server responds, only the request has failed; if not, the
connection is declared lost.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Any, Final, cast

from msgspec import Raw, Struct

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
from trunkline.protocol.meta import TIMEOUT_MS, add_meta
from trunkline.protocol.methods import find_method
from trunkline.protocol.types import CallToolParams, ProgressParams

__all__ = [
    "COMPLETE",
    "LIVENESS_CHECK",
    "NextRound",
    "OnProgress",
    "Repeatable",
    "RetryBackoff",
    "SentRequest",
    "ServerReply",
    "always_repeatable",
    "backoff_delay",
    "convert_unknown_outcome",
    "is_passing",
    "never_repeatable",
    "requested_delay",
    "send_with_retry",
    "with_time_limit",
]

LIVENESS_CHECK: Final = "ping"
"""Placeholder for the liveness request of the server's era."""

COMPLETE: Final = "complete"
"""The type of a result that is no question and no task."""

_OUTCOME_UNKNOWN: Final = "outcome_unknown"
_UNAVAILABLE: Final = "temporarily_unavailable"
_RATE_EXCEEDED: Final = "rate_limit_exceeded"
_RETRIED_REFUSALS: Final = frozenset({_UNAVAILABLE, _RATE_EXCEEDED})  # the request had no effect
_MAX_RETRY_AFTER_MS: Final = 5000  # for a longer delay the request fails
_RETRY_DELAYS: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 2.0)  # seconds, on a connection that is still open
_PASSING_STATUSES: Final = frozenset({429, 503})  # of HTTP, from a proxy
_MAX_DOUBLINGS: Final = 16  # of a delay; more would exceed any setting, and finally the range of a float

OnProgress = Callable[[ProgressParams], Any]
"""Called with each progress notification of a request; async, or plain and quick."""

Repeatable = Callable[[ClientConnection, Any], bool]
"""Whether a request that was lost on a connection may be sent again with its params."""

NextRound = Callable[[ClientConnection, str, Any, Raw, int], Awaitable[Any]]
"""Returns the params of the next round of a request that was answered with questions. Takes the connection, the method,
the params, the result and the number of the round."""


def always_repeatable(_connection: ClientConnection, _params: Any) -> bool:
    """Allow a request to be sent again."""
    return True


def never_repeatable(_connection: ClientConnection, _params: Any) -> bool:
    """Do not allow a request to be sent again once the server may have received it."""
    return False


class ServerReply(Struct):
    """The result of a request, undecoded."""

    raw: Raw
    rounds: int  # the number of input rounds before the result
    request: OutgoingRequest
    is_task: bool  # as its resultType says, in the modern era


class SentRequest(Struct):
    """A request that was sent on a connection."""

    connection: ClientConnection
    request: OutgoingRequest


def with_time_limit(params: Any, seconds: float) -> Any:
    """Return params that tell the server how long the caller waits."""
    return add_meta(params, {TIMEOUT_MS: ceil(seconds * 1000)})


async def send_with_retry(
    supervisor: ConnectionSupervisor,
    clock: Clock,
    name: str,
    params: Any,
    *,
    repeatable: Repeatable,
    timeout: float | None = None,
    on_progress: OnProgress | None = None,
    refresh_tools: Callable[[ClientConnection], Awaitable[None]] | None = None,
    on_abandoned: Callable[[OutgoingRequest], None] | None = None,
    send_timeout: bool = False,
    next_params: NextRound | None = next_round,
    forwarded: bool = False,
    first: SentRequest | None = None,
) -> ServerReply:
    """Send a request and return its result; retry where that is safe.

    `refresh_tools` reads the tools again if the server finds the request inconsistent with its headers; then it is
    sent once more. `on_abandoned` is called with a request whose caller has stopped waiting, and which may still be
    answered with a task. With `send_timeout` the server learns how long the caller waits. `next_params` answers
    the questions of the server; without it, they are the result. The errors of a server for a `forwarded` request are
    raised as they are: they are for another client, which may retry. `first` is the request if it has been sent before.

    Raises `PeerError`, `RequestTimeout`, `ConnectionClosed` or `OutcomeUnknown`, `Degraded` or `RetriesExhausted`,
    `InputFailed` if an input request of the server cannot be answered, and `ProtocolError` if the request may not be
    sent.
    """
    started = clock.now() if first is None else first.request.started
    left = timeout
    rounds, backoff = 0, None
    while True:
        connection = supervisor.connection if first is None else first.connection
        if connection is None:
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
            connection = await supervisor.wait_for_connection(name, left)
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
        try:
            method = connection.liveness_method if name == LIVENESS_CHECK else name
            sent = params if not send_timeout or left is None else with_time_limit(params, left)
            request = (
                connection.send_request(method, sent, timeout=left, on_progress=on_progress)
                if first is None
                else first.request
            )
            first = None
            if on_abandoned is not None:
                _expect_late_response(connection, request, params)
            try:
                result = await request.waiter
            except BaseException as error:
                _stop_waiting(connection, request, error, on_abandoned)
                raise
            kind = read_result_header(result).result_type if connection.modern else COMPLETE
            if kind == COMPLETE or next_params is None or (kind == TASK_RESULT_TYPE and name == "tools/call"):
                return ServerReply(result, rounds, request, kind == TASK_RESULT_TYPE)
            rounds += 1
            params = await next_params(connection, name, params, result, rounds)
            if params.input_responses is not None:
                started = clock.now()  # the time that a person needed does not count
            left = _time_left_for_round(name, timeout, supervisor.settings, clock.now() - started)
        except PeerError as error:
            backoff = backoff or RetryBackoff(supervisor)
            if error.code == HeaderMismatch.code and refresh_tools is not None:
                await refresh_tools(connection)
                refresh_tools = None
            elif forwarded or not await backoff.wait(
                backoff.delay_after_error(error, connection, params, repeatable), left
            ):
                raise error if forwarded else convert_unknown_outcome(error, _describe_request(name, params)) from None
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
        except RequestTimeout as late:
            raise await _check_liveness(supervisor, connection, late) from None
        except ConnectionClosed as lost:
            if lost.reached and not lost.too_large and not repeatable(connection, params):
                raise _unknown_outcome(_describe_request(name, params), lost) from None
            left = _time_left(name, timeout, supervisor.settings, clock.now() - started)
            backoff = backoff or RetryBackoff(supervisor)
            if lost.too_large or not await backoff.wait(backoff.delay_after_loss(connection), left):
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
        self, error: PeerError, connection: ClientConnection, params: Any, repeatable: Repeatable
    ) -> float | None:
        """Return the delay before the next attempt after an error response; None to give up. An unknown outcome is
        retried only after an interruption: otherwise the response would be the same again."""
        details = _error_data(error)
        if details.get("kind") == _OUTCOME_UNKNOWN:
            again = details.get("interrupted") is True and repeatable(connection, params)
            return self.delay_after_loss(connection) if again else None
        return self.delay_if_unavailable(error)

    def delay_if_unavailable(self, error: PeerError) -> float | None:
        """Return the delay that the server asks for if it is temporarily unavailable; None if it is not."""
        return self.delay_after_refusal(_error_data(error))

    def delay_after_refusal(self, details: Mapping[str, Any]) -> float | None:
        """Return the delay that a refusal asks for; None if the request must not be repeated, or there are no retries
        left. `details` are the error's data, or those in the `_meta` of a tool result."""
        wait, name = details.get("retryAfterMs"), details.get("name", details.get("kind"))
        if name not in _RETRIED_REFUSALS or not isinstance(wait, int) or not self._supervisor.reconnects:
            return None
        pause = None if wait > _MAX_RETRY_AFTER_MS else self._next_delay()
        if pause is None or (name == _RATE_EXCEEDED and not self._supervisor.take_retry()):
            return None
        return max(pause, wait / 1000)

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


def is_passing(error: Exception) -> bool:
    """Return whether a repeatable request that failed with an error may succeed later on the same connection."""
    if not isinstance(error, PeerError):
        return isinstance(error, RequestTimeout)
    details = _error_data(error)
    if details.get("kind") == _OUTCOME_UNKNOWN:
        return details.get("interrupted") is True
    return details.get("kind") in _RETRIED_REFUSALS or details.get("status") in _PASSING_STATUSES


def requested_delay(error: Exception) -> float:
    """Return the seconds that the server asks to wait before the next attempt, up to a maximum; 0 if it does not."""
    wait = _error_data(error).get("retryAfterMs") if isinstance(error, PeerError) else None
    return min(max(wait, 0), _MAX_RETRY_AFTER_MS) / 1000 if isinstance(wait, int) else 0.0


def backoff_delay(settings: Settings, failures: int) -> float:
    """Return the seconds before an attempt that follows after so many failures: exponential, with jitter."""
    longer = min(settings.backoff_first * 2 ** min(failures, _MAX_DOUBLINGS), settings.backoff_longest)
    return longer * (1 + settings.backoff_jitter * random.random())  # noqa: S311 - no secret depends on it


def _error_data(error: PeerError) -> dict[str, Any]:
    data: Any = error.data
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def _unknown_outcome(what: str, lost: ConnectionClosed) -> OutcomeUnknown:
    message = f"{what} was not answered; it may or may not have been done: {lost.message}"
    return OutcomeUnknown(message, status=lost.status, last_words=lost.last_words)


def _stop_waiting(
    connection: ClientConnection,
    request: OutgoingRequest,
    error: BaseException,
    on_abandoned: Callable[[OutgoingRequest], None] | None,
) -> None:
    """End a request whose wait ended with an error; tell the server if that was no response."""
    if isinstance(error, asyncio.CancelledError | RequestTimeout):
        connection.cancel_request(request)
        if on_abandoned is not None:
            on_abandoned(request)
    request.waiter = None  # its error refers to the frames that hold the request


def _expect_late_response(connection: ClientConnection, request: OutgoingRequest, params: Any) -> None:
    """Prepare a request for a response that arrives after its caller has stopped waiting."""
    request.on_late_response = connection.loop.create_future()
    request.as_task = (
        connection.supports_task_augmentation and isinstance(params, CallToolParams) and params.task is not None
    )


def _time_left(name: str, timeout: float | None, settings: Settings, elapsed: float) -> float | None:
    """Return the seconds left for a request: of its own timeout, or of that of its method."""
    row = find_method(name)
    allowed = timeout or (settings.work_timeout if row is None else row.time_limit.seconds(settings))
    return None if allowed is None else allowed - elapsed


def _time_left_for_round(name: str, timeout: float | None, settings: Settings, elapsed: float) -> float | None:
    """Return the seconds left for another round of a request. Raises `RequestTimeout` if there are none."""
    left = _time_left(name, timeout, settings, elapsed)
    if left is not None and left <= 0:
        raise RequestTimeout(name, round(elapsed, 3))
    return left


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
