"""Asks a server through its line, and is honest about what came of it.

A question that the line did not survive is asked again if it never reached the server, or if asking twice does no more
than asking once; and if there is time left. One that was lost on a line that lives on is asked some times more, since
there may be many processes behind it; and so is one of which the server says that it should come again in a moment, or
that its work was cut off, if asking twice does no more than asking once.
Otherwise whoever asked is told that nobody knows whether it was done. A question that was not answered in time is
followed by a ping: if that is answered, only the question has failed; if not, the line is given up.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from trunkline.client.connection import Connection
from trunkline.client.multi_round import next_round
from trunkline.client.reconnect import Line
from trunkline.client.tasks.status import TASK
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
from trunkline.protocol.client_envelope import head_of
from trunkline.protocol.inflight import Awaited
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.methods import find
from trunkline.protocol.types import CallToolParams, ProgressParams

__all__ = ["SIGN_OF_LIFE", "Again", "Answer", "OnProgress", "ask", "judged"]

SIGN_OF_LIFE: Final = "ping"
"""Stands for what a server is asked in its era to show that it is there."""

_COMPLETE: Final = "complete"
_OUTCOME_UNKNOWN: Final = "outcome_unknown"
_NOT_NOW: Final = "temporarily_unavailable"
_LONGEST_MS: Final = 5000  # who wants us to wait for longer is not waited for
_PAUSES: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 2.0)  # seconds, before something is asked again on a line that lives on

OnProgress = Callable[[ProgressParams], Any]
"""Told what the server reports of a request that it works on; async or plain and quick."""


class Answer(NamedTuple):
    """What a server answered."""

    raw: Any
    rounds: int  # how often it has asked back before that
    asked: Awaited
    is_task: bool  # by its own account, which only servers of the modern era give


async def ask(
    line: Line,
    clock: Clock,
    name: str,
    params: Any,
    *,
    repeatable: Callable[[Connection], bool],
    timeout: float | None = None,
    on_progress: OnProgress | None = None,
    renew: Callable[[Connection], Awaitable[None]] | None = None,
    unheard: Callable[[Awaited], None] | None = None,
) -> Answer:
    """The answer to a request. `repeatable` says whether it may be asked again, of the connection that it was lost on.
    `renew` learns anew how that is to be asked, if the server finds the request at odds with itself; then it is asked
    once more. `unheard` is told of a request that is given up and may be answered with a task all the same.

    Raises `PeerError`, `RequestTimeout`, `ConnectionClosed` or `OutcomeUnknown`, `Degraded` or `RetriesExhausted`,
    `InputFailed` if the server asks back in vain, and `ProtocolError` for what may not be asked."""
    started = clock.now()
    left = timeout
    rounds = 0
    again: Again | None = None
    while True:
        connection = line.connection
        if connection is None:
            connection = await line.usable(name, _left(name, timeout, line.settings, clock.now() - started))
            left = _left(name, timeout, line.settings, clock.now() - started)
        try:
            method = connection.sign_of_life if name == SIGN_OF_LIFE else name
            asked = connection.ask(method, params, timeout=left, on_progress=on_progress)
            answer = await _answer_to(connection, asked, params, unheard)
            kind = head_of(answer).result_type if connection.modern else _COMPLETE
            if kind == _COMPLETE or (kind == TASK and name == "tools/call"):
                return Answer(answer, rounds, asked, kind == TASK)
            rounds += 1
            params = await next_round(connection, name, params, answer, rounds)
            if params.input_responses is not None:
                started = clock.now()  # whoever was asked has taken the time that was needed
            left = _left(name, timeout, line.settings, clock.now() - started)
            if left is not None and left <= 0:
                raise RequestTimeout(name, round(clock.now() - started, 3))
        except PeerError as refused:
            again = again or Again(line)
            if refused.code == HeaderMismatch.code and renew is not None:
                await renew(connection)
                renew = None
            elif not await again.rest(again.told(refused, connection, repeatable), left):
                raise judged(refused, _spoken_of(name, params)) from None
            left = _left(name, timeout, line.settings, clock.now() - started)
        except RequestTimeout as late:
            raise await _meaning(line, connection, late) from None
        except ConnectionClosed as lost:
            if lost.too_large:
                raise
            if lost.reached and not repeatable(connection):
                told = f"{_spoken_of(name, params)} was not answered, and may or may not have been done: {lost.message}"
                raise OutcomeUnknown(told, status=lost.status, last_words=lost.last_words) from None
            left = _left(name, timeout, line.settings, clock.now() - started)
            again = again or Again(line)
            if not await again.rest(again.after(connection), left):
                raise
            left = _left(name, timeout, line.settings, clock.now() - started)


class Again:
    """Whether something is asked again that was lost or put off, and after how many seconds: as often as there is a new
    line, and some times on one that lives on, where only the answer was lost."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._survivor: Connection | None = None
        self._tries = 0  # on a line that lives on

    def after(self, connection: Connection) -> float | None:
        """When it is asked again, now that it was lost on a connection; None if it is not."""
        alive = connection is self._line.connection
        if not self._line.recovers:
            return None
        if connection is not self._survivor:
            self._tries = 0
        self._survivor = connection
        return self._pause() if alive else 0.0

    def told(
        self, refused: PeerError, connection: Connection, repeatable: Callable[[Connection], bool]
    ) -> float | None:
        """When it is asked again, now that the server has answered with an error; None if it is not. An outcome that
        is unknown for another reason than an interruption stays that: the same answer would come again."""
        details = _details(refused)
        if details.get("kind") == _OUTCOME_UNKNOWN:
            return self.after(connection) if details.get("interrupted") is True and repeatable(connection) else None
        return self.asked_to(refused)

    def asked_to(self, refused: PeerError) -> float | None:
        """When it is asked again, now that the server has told us to come back in a moment; None if it has not."""
        details = _details(refused)
        wait = details.get("retryAfterMs")
        if details.get("kind") != _NOT_NOW or not isinstance(wait, int) or not self._line.recovers:
            return None
        pause = None if wait > _LONGEST_MS else self._pause()
        return None if pause is None else max(pause, wait / 1000)

    async def rest(self, pause: float | None, left: float | None) -> bool:
        """Waits before it is asked again; False if it is not, or there is no time left for that."""
        if pause is None or (left is not None and left <= pause):
            return False
        if pause:
            await self._line.rest(pause)
        return True

    def _pause(self) -> float | None:
        self._tries += 1
        return _PAUSES[self._tries - 1] if self._tries <= len(_PAUSES) else None


def _spoken_of(name: str, params: Any) -> str:
    return f"{name} of {params.name!r}" if isinstance(params, CallToolParams) else name


def judged(refused: PeerError, what: str) -> PeerError | OutcomeUnknown:
    """An error that a server has told; `OutcomeUnknown` if it says that it does not know what has become of a call."""
    unknown = _details(refused).get("kind") == _OUTCOME_UNKNOWN
    return OutcomeUnknown(f"{what}: {refused.message}") if unknown else refused


def _details(refused: PeerError) -> dict[str, Any]:
    data: Any = refused.data
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


async def _answer_to(
    connection: Connection, asked: Awaited, params: Any, unheard: Callable[[Awaited], None] | None
) -> Any:
    if unheard is not None:
        asked.late = connection.loop.create_future()
        asked.as_task = connection.augments and isinstance(params, CallToolParams) and params.task is not None
    try:
        return await asked.waiter
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError | RequestTimeout):
            connection.forget(asked)
            if unheard is not None:
                unheard(asked)
        asked.waiter = None  # its error refers to the frames that hold the request
        raise


def _left(name: str, timeout: float | None, settings: Settings, passed: float) -> float | None:
    """What is left of the time that a question has: its own, or that of its method."""
    row = find(name)
    allowed = timeout or (None if row is None else row.wait.seconds(settings))
    return None if allowed is None else allowed - passed


async def _meaning(line: Line, connection: Connection, late: RequestTimeout) -> RequestTimeout:
    """What a request that was not answered in time means for the line."""
    if late.method == connection.sign_of_life or await connection.answers():
        return late
    if not connection.gone.done():
        connection.give_up("the server answers no ping")
    how = TimeoutReconnecting if line.phase is Phase.RECONNECTING else ConnectionTimeout
    return how(late.method, late.elapsed)
