"""Calls that a server works on as tasks: how they stand, what they come to, and answers to what they ask meanwhile.

Of 2025-11-25 a client says which calls shall be tasks, and waits in `tasks/result`, where it is asked as in any call.
With the extension of 2026-07-28 the server says so; the client looks now and then, and answers by an update.

A look that comes to nothing is not the end of a task: the line may be lost, the server may be starting again or have
too much to do. It is tried again after the usual pause, some times in a row. A task that has not ended when its server
need not keep it any more is not waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, NamedTuple

from msgspec import UNSET, Raw

from trunkline.client.multi_round import Asked
from trunkline.client.progress_deadline import Patience, Signs, within
from trunkline.client.results import T_co, ToolResult
from trunkline.client.retry import judged
from trunkline.client.tasks.status import ENDED, Seen, is_empty, read_result, read_seen
from trunkline.errors import (
    BadAnswer,
    ConnectionClosed,
    InvalidParams,
    OutcomeUnknown,
    PeerError,
    RequestTimeout,
    TaskCancelled,
    TrunklineError,
)
from trunkline.errors.text import shortened
from trunkline.protocol.inflight import Awaited
from trunkline.protocol.types import CallToolResult, CancelTaskParams, GetTaskParams, GetTaskPayloadParams, TaskStatus
from trunkline.protocol.types.tasks_extension import TaskProgress, UpdateTaskParams

__all__ = ["Task", "TaskHost"]

_MOST_FAILURES: Final = 5  # looks in a row that come to nothing
_GRACE: Final = 1.0  # seconds after the time that a task is kept, at least
_WORTH_HEARING: Final = 0.5  # seconds between two looks, from which on it is worthwhile to be told
_PASSING: Final = (ConnectionClosed, RequestTimeout, PeerError)


class TaskHost(NamedTuple):
    """What a task needs of its client."""

    modern: Callable[[], bool]  # whether its server speaks the modern era
    ask: Callable[[str, Any], Coroutine[Any, Any, Any]]
    answer: Callable[[Mapping[str, Asked]], Awaitable[dict[str, Raw]]]
    finish: Callable[[CallToolResult, bool], ToolResult]  # and whether to raise what it says that failed
    expecting: "Callable[[str], AbstractContextManager[asyncio.Future[None]]]"  # news of a task
    listen: Callable[[], None]  # has the server tell of tasks, where it does that if asked to
    now: Callable[[], float]
    wait: "Callable[[Sequence[asyncio.Future[Any]], float | None], Awaitable[None]]"  # for one of them, until then
    home: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]  # does something on the loop of the client
    progressed: Callable[[Awaited, TaskProgress], None]  # tells the caller; on the loop of the client
    recovers: Callable[[], bool]  # whether a line that is lost is made again


class Task(Generic[T_co]):
    """A call that a server works on. It goes on without us; who has its `id` can ask for it again, later and from
    elsewhere: `client.task(id)`. Progress is told for as long as somebody holds this."""

    def __init__(
        self,
        host: TaskHost,
        seen: Seen,
        *,
        sent: CallToolResult | None = None,
        asked: Awaited | None = None,
        signs: Signs | None = None,
    ) -> None:
        """`sent` is the result, where that is known; `asked` the request that was answered with this task, under whose
        token progress is told; `signs` hears of that."""
        self._host = host
        self._sent = sent
        self._asked = asked
        self._signs = signs
        self._known = asked is not None  # to the server
        self._answered: set[str] = set()  # questions are put once
        self._failures = 0  # looks in a row that came to nothing
        self._since: float | None = None if asked is None else host.now()  # when it was known to be there
        self._see(seen)

    def __repr__(self) -> str:
        said = "" if self.message is None else f", {shortened(self.message)}"
        return f"<Task {self.id!r}: {self.status}{said}>"

    @property
    def id(self) -> str:
        """Its name at the server."""
        return self._seen.task_id

    @property
    def status(self) -> TaskStatus:
        """How it stood when that was last heard of."""
        return self._seen.status

    @property
    def message(self) -> str | None:
        """What the server said of that."""
        return self._seen.status_message

    async def refresh(self) -> TaskStatus:
        """Asks how it stands now."""
        if self._sent is None:
            await self._host.home(self._look())
        return self.status

    async def _look(self) -> None:
        self._see(read_seen(await self._host.ask("tasks/get", GetTaskParams(self.id))))
        self._known = True

    async def cancel(self) -> None:
        """Has the server stop working on it. What has ended stays as it is."""
        if self._sent is not None:
            return
        try:
            raw = await self._host.ask("tasks/cancel", CancelTaskParams(self.id))
        except PeerError:
            if await self.refresh() not in ENDED:
                raise
        else:
            if self._host.modern() or is_empty(raw):
                await self._after_cancelling()
            else:
                self._see(read_seen(raw))

    async def _after_cancelling(self) -> None:
        """It may have come to something else, and a server need not keep what was cancelled."""
        try:
            await self.refresh()
        except PeerError as error:
            if error.code != InvalidParams.code:
                raise
            self._ended_as("cancelled")

    async def result(self, *, timeout: float | None = None, raise_on_error: bool = True) -> ToolResult[T_co]:
        """What the call comes to; waits for that, and answers what the server asks meanwhile. Raises what the call
        would have raised, `TaskCancelled` if it was cancelled, `OutcomeUnknown` if the server does not know of it any
        more, and `RequestTimeout` if that takes too long: then the task goes on all the same. Progress that is told
        counts as a sign of life."""
        return await self.outcome(Patience(self._host.now, timeout), raise_on_error=raise_on_error)

    async def outcome(self, patience: Patience, *, raise_on_error: bool) -> ToolResult[T_co]:
        """The same, for somebody who has been waiting already."""
        if self._sent is None:
            signs = set[Patience]() if self._signs is None else self._signs.waiting
            signs.add(patience)
            try:
                self._sent = await self._host.home(self._waited_for(patience))
            finally:
                signs.discard(patience)
        return self._host.finish(self._sent, raise_on_error)

    # --- waiting -------------------------------------------------------------------------------

    async def _waited_for(self, patience: Patience) -> CallToolResult:
        self._since = self._host.now() if self._since is None else self._since
        once = self._looked_at if self._host.modern() else self._asked_for
        while True:
            with self._host.expecting(self.id) as news:
                found = await once(patience)
                if found is not None:
                    return found
                if self._overdue and self.status not in ENDED:
                    raise OutcomeUnknown(f"task {self.id} has not ended, and its server need not keep it any more")
                if self._host.modern() and self._seen.pause >= _WORTH_HEARING:
                    self._host.listen()
                next_look = self._host.now() + self._seen.pause
                await self._host.wait([news], _earliest(patience.due, self._backstop, next_look))
            self._check(patience)

    async def _looked_at(self, patience: Patience) -> CallToolResult | None:
        """The result, of a server that has to be asked for it now and then; None if there is none yet."""
        while True:
            try:
                await self._within(self.refresh(), patience)
                answered = await self._answer(patience)
            except _PASSING as error:
                self._forgive(error, patience)
                return None
            self._failures = 0
            if self.status in ENDED:
                return self._came_to()
            if not answered:
                return None

    async def _answer(self, patience: Patience) -> bool:
        """Answers what is asked and was not answered yet. Whoever is asked takes the time that is needed."""
        asked = self._seen.input_requests or {}
        new = {key: question for key, question in asked.items() if key not in self._answered}
        if new and self.status == "input_required":
            answers = await self._host.answer(new)
            patience.renew()
            await self._within(self._host.ask("tasks/update", UpdateTaskParams(self.id, answers)), patience)
            self._answered |= new.keys()
        return bool(new)

    def _came_to(self) -> CallToolResult:
        seen = self._seen
        if seen.status == "completed":
            return read_result(seen.result)
        if seen.status == "cancelled":
            raise TaskCancelled(self.id)
        if seen.error is None:
            raise BadAnswer("tasks/get", "a task has failed, and it does not say why")
        told, data = seen.error, seen.error.data
        raise judged(PeerError(told.code, told.message, None if data is UNSET else data), f"task {self.id}")

    async def _asked_for(self, patience: Patience) -> CallToolResult | None:
        """The result, of a server that answers when there is one. If it does not, None or what the call has raised."""
        asking = self._host.ask("tasks/result", GetTaskPayloadParams(self.id))
        try:
            raw = await self._within(asking, patience, self._backstop)
        except OutcomeUnknown:
            self._ended_as("failed")
            raise
        except _PASSING as error:
            self._check(patience)
            await self._judge(error, patience)
            return None
        result = read_result(raw)
        self._ended_as("failed" if result.is_error else "completed")
        return result

    async def _judge(self, error: TrunklineError, patience: Patience) -> None:
        """Raises an error that is what the call came to; returns if it was about something else."""
        try:
            await self._within(self.refresh(), patience)
        except _PASSING as worse:
            self._forgive(worse, patience)
            return
        if self.status == "cancelled":
            raise TaskCancelled(self.id) from None
        if self.status in ENDED and isinstance(error, PeerError):
            raise error from None
        self._forgive(error, patience)

    # --- time, and looks that come to nothing ------------------------------------------------------

    async def _within(self, work: Coroutine[Any, Any, Any], patience: Patience, until: float | None = None) -> Any:
        """Something that is asked, for as long as there is time. Raises `RequestTimeout`."""
        try:
            return await within(work, lambda: _earliest(patience.due, until), self._host.now, self._host.wait)
        except RequestTimeout:
            raise  # of the work itself
        except TimeoutError:
            raise RequestTimeout("tools/call", round(patience.passed, 3)) from None

    def _check(self, patience: Patience) -> None:
        if patience.over:
            raise RequestTimeout("tools/call", round(patience.passed, 3))

    @property
    def _kept_until(self) -> float | None:
        """When the server need not keep it any more, as far as that can be told from here."""
        kept = self._seen.kept_for
        if kept is None or self._since is None:
            return None
        return self._since + kept + max(_GRACE, self._seen.pause)

    @property
    def _overdue(self) -> bool:
        until = self._kept_until
        return until is not None and self._host.now() >= until

    @property
    def _backstop(self) -> float | None:
        """When to look in any case, if that is yet to come."""
        return None if self._overdue else self._kept_until

    def _forgive(self, error: TrunklineError, patience: Patience) -> None:
        """Lets a look pass that came to nothing. Raises if that is no use any more."""
        self._check(patience)
        if isinstance(error, OutcomeUnknown | BadAnswer | TaskCancelled) or not self._host.recovers():
            raise error
        if isinstance(error, PeerError) and error.code == InvalidParams.code:
            if not self._known:
                raise error
            raise OutcomeUnknown(f"the server does not know of task {self.id} any more: {error.message}") from None
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            raise error

    def _see(self, seen: Seen) -> None:
        self._seen = seen
        if self._asked is not None and (progress := seen.progress) is not None:
            self._host.progressed(self._asked, progress)
        if seen.status in ENDED:
            self._asked = None

    def _ended_as(self, status: TaskStatus) -> None:
        self._seen.status = status
        self._asked = None


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
