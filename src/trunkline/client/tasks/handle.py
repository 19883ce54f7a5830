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

from trunkline.client.multi_round import RawInputRequest
from trunkline.client.progress_deadline import ProgressDeadline, ProgressRelay, run_until_deadline
from trunkline.client.results import T_co, ToolResult
from trunkline.client.retry import convert_unknown_outcome
from trunkline.client.tasks.status import (
    FINAL_STATUSES,
    TaskSnapshot,
    decode_snapshot,
    decode_task_result,
    is_empty_object,
)
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
from trunkline.protocol.inflight import OutgoingRequest
from trunkline.protocol.types import CallToolResult, CancelTaskParams, GetTaskParams, GetTaskPayloadParams, TaskStatus
from trunkline.protocol.types.tasks_extension import TaskProgress, UpdateTaskParams

__all__ = ["Task", "TaskClient"]

_MAX_FAILURES: Final = 5  # looks in a row that come to nothing
_RETENTION_GRACE: Final = 1.0  # seconds after the time that a task is kept, at least
_LISTEN_THRESHOLD: Final = 0.5  # seconds between two looks, from which on it is worthwhile to be told
_TRANSIENT_ERRORS: Final = (ConnectionClosed, RequestTimeout, PeerError)


class TaskClient(NamedTuple):
    """What a task needs of its client."""

    modern: Callable[[], bool]  # whether its server speaks the modern era
    ask: Callable[[str, Any], Coroutine[Any, Any, Any]]
    answer: Callable[[Mapping[str, RawInputRequest]], Awaitable[dict[str, Raw]]]
    finish: Callable[[CallToolResult, bool], ToolResult]  # and whether to raise what it says that failed
    expecting: "Callable[[str], AbstractContextManager[asyncio.Future[None]]]"  # news of a task
    listen: Callable[[], None]  # has the server tell of tasks, where it does that if asked to
    now: Callable[[], float]
    wait: "Callable[[Sequence[asyncio.Future[Any]], float | None], Awaitable[None]]"  # for one of them, until then
    home: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]  # does something on the loop of the client
    progressed: Callable[[OutgoingRequest, TaskProgress], None]  # tells the caller; on the loop of the client
    recovers: Callable[[], bool]  # whether a line that is lost is made again


class Task(Generic[T_co]):
    """A call that a server works on. It goes on without us; who has its `id` can ask for it again, later and from
    elsewhere: `client.task(id)`. Progress is told for as long as somebody holds this."""

    def __init__(
        self,
        client: TaskClient,
        snapshot: TaskSnapshot,
        *,
        result: CallToolResult | None = None,
        request: OutgoingRequest | None = None,
        progress_relay: ProgressRelay | None = None,
    ) -> None:
        """`sent` is the result, where that is known; `asked` the request that was answered with this task, under whose
        token progress is told; `signs` hears of that."""
        self._client = client
        self._result = result
        self._request = request
        self._progress_relay = progress_relay
        self._confirmed = request is not None  # to the server
        self._answered_inputs: set[str] = set()  # questions are put once
        self._failures = 0  # looks in a row that came to nothing
        self._known_since: float | None = None if request is None else client.now()  # when it was known to be there
        self._update(snapshot)

    def __repr__(self) -> str:
        said = "" if self.message is None else f", {shortened(self.message)}"
        return f"<Task {self.id!r}: {self.status}{said}>"

    @property
    def id(self) -> str:
        """Its name at the server."""
        return self._snapshot.task_id

    @property
    def status(self) -> TaskStatus:
        """How it stood when that was last heard of."""
        return self._snapshot.status

    @property
    def message(self) -> str | None:
        """What the server said of that."""
        return self._snapshot.status_message

    async def refresh(self) -> TaskStatus:
        """Asks how it stands now."""
        if self._result is None:
            await self._client.home(self._poll())
        return self.status

    async def _poll(self) -> None:
        self._update(decode_snapshot(await self._client.ask("tasks/get", GetTaskParams(self.id))))
        self._confirmed = True

    async def cancel(self) -> None:
        """Has the server stop working on it. What has ended stays as it is."""
        if self._result is not None:
            return
        try:
            raw = await self._client.ask("tasks/cancel", CancelTaskParams(self.id))
        except PeerError:
            if await self.refresh() not in FINAL_STATUSES:
                raise
        else:
            if self._client.modern() or is_empty_object(raw):
                await self._refresh_after_cancel()
            else:
                self._update(decode_snapshot(raw))

    async def _refresh_after_cancel(self) -> None:
        """It may have come to something else, and a server need not keep what was cancelled."""
        try:
            await self.refresh()
        except PeerError as error:
            if error.code != InvalidParams.code:
                raise
            self._set_final_status("cancelled")

    async def result(self, *, timeout: float | None = None, raise_on_error: bool = True) -> ToolResult[T_co]:
        """What the call comes to; waits for that, and answers what the server asks meanwhile. Raises what the call
        would have raised, `TaskCancelled` if it was cancelled, `OutcomeUnknown` if the server does not know of it any
        more, and `RequestTimeout` if that takes too long: then the task goes on all the same. Progress that is told
        counts as a sign of life."""
        return await self.outcome(ProgressDeadline(self._client.now, timeout), raise_on_error=raise_on_error)

    async def outcome(self, deadline: ProgressDeadline, *, raise_on_error: bool) -> ToolResult[T_co]:
        """The same, for somebody who has been waiting already."""
        if self._result is None:
            signs = set[ProgressDeadline]() if self._progress_relay is None else self._progress_relay.deadlines
            signs.add(deadline)
            try:
                self._result = await self._client.home(self._wait_for_result(deadline))
            finally:
                signs.discard(deadline)
        return self._client.finish(self._result, raise_on_error)

    # --- waiting -------------------------------------------------------------------------------

    async def _wait_for_result(self, deadline: ProgressDeadline) -> CallToolResult:
        self._known_since = self._client.now() if self._known_since is None else self._known_since
        once = self._poll_result if self._client.modern() else self._fetch_result
        while True:
            with self._client.expecting(self.id) as news:
                found = await once(deadline)
                if found is not None:
                    return found
                if self._past_retention and self.status not in FINAL_STATUSES:
                    raise OutcomeUnknown(f"task {self.id} has not ended, and its server need not keep it any more")
                if self._client.modern() and self._snapshot.poll_seconds >= _LISTEN_THRESHOLD:
                    self._client.listen()
                next_look = self._client.now() + self._snapshot.poll_seconds
                await self._client.wait([news], _earliest(deadline.due, self._retention_deadline, next_look))
            self._raise_if_expired(deadline)

    async def _poll_result(self, deadline: ProgressDeadline) -> CallToolResult | None:
        """The result, of a server that has to be asked for it now and then; None if there is none yet."""
        while True:
            try:
                await self._run_until(self.refresh(), deadline)
                answered = await self._answer_inputs(deadline)
            except _TRANSIENT_ERRORS as error:
                self._count_failure(error, deadline)
                return None
            self._failures = 0
            if self.status in FINAL_STATUSES:
                return self._final_result()
            if not answered:
                return None

    async def _answer_inputs(self, deadline: ProgressDeadline) -> bool:
        """Answers what is asked and was not answered yet. Whoever is asked takes the time that is needed."""
        asked = self._snapshot.input_requests or {}
        new = {key: question for key, question in asked.items() if key not in self._answered_inputs}
        if new and self.status == "input_required":
            answers = await self._client.answer(new)
            deadline.renew()
            await self._run_until(self._client.ask("tasks/update", UpdateTaskParams(self.id, answers)), deadline)
            self._answered_inputs |= new.keys()
        return bool(new)

    def _final_result(self) -> CallToolResult:
        seen = self._snapshot
        if seen.status == "completed":
            return decode_task_result(seen.result)
        if seen.status == "cancelled":
            raise TaskCancelled(self.id)
        if seen.error is None:
            raise BadAnswer("tasks/get", "a task has failed, and it does not say why")
        told, data = seen.error, seen.error.data
        raise convert_unknown_outcome(
            PeerError(told.code, told.message, None if data is UNSET else data), f"task {self.id}"
        )

    async def _fetch_result(self, deadline: ProgressDeadline) -> CallToolResult | None:
        """The result, of a server that answers when there is one. If it does not, None or what the call has raised."""
        asking = self._client.ask("tasks/result", GetTaskPayloadParams(self.id))
        try:
            raw = await self._run_until(asking, deadline, self._retention_deadline)
        except OutcomeUnknown:
            self._set_final_status("failed")
            raise
        except _TRANSIENT_ERRORS as error:
            self._raise_if_expired(deadline)
            await self._check_failed_fetch(error, deadline)
            return None
        result = decode_task_result(raw)
        self._set_final_status("failed" if result.is_error else "completed")
        return result

    async def _check_failed_fetch(self, error: TrunklineError, deadline: ProgressDeadline) -> None:
        """Raises an error that is what the call came to; returns if it was about something else."""
        try:
            await self._run_until(self.refresh(), deadline)
        except _TRANSIENT_ERRORS as worse:
            self._count_failure(worse, deadline)
            return
        if self.status == "cancelled":
            raise TaskCancelled(self.id) from None
        if self.status in FINAL_STATUSES and isinstance(error, PeerError):
            raise error from None
        self._count_failure(error, deadline)

    # --- time, and looks that come to nothing ------------------------------------------------------

    async def _run_until(
        self, work: Coroutine[Any, Any, Any], deadline: ProgressDeadline, until: float | None = None
    ) -> Any:
        """Something that is asked, for as long as there is time. Raises `RequestTimeout`."""
        try:
            return await run_until_deadline(
                work, lambda: _earliest(deadline.due, until), self._client.now, self._client.wait
            )
        except RequestTimeout:
            raise  # of the work itself
        except TimeoutError:
            raise RequestTimeout("tools/call", round(deadline.elapsed, 3)) from None

    def _raise_if_expired(self, deadline: ProgressDeadline) -> None:
        if deadline.expired:
            raise RequestTimeout("tools/call", round(deadline.elapsed, 3))

    @property
    def _retained_until(self) -> float | None:
        """When the server need not keep it any more, as far as that can be told from here."""
        kept = self._snapshot.retention_seconds
        if kept is None or self._known_since is None:
            return None
        return self._known_since + kept + max(_RETENTION_GRACE, self._snapshot.poll_seconds)

    @property
    def _past_retention(self) -> bool:
        until = self._retained_until
        return until is not None and self._client.now() >= until

    @property
    def _retention_deadline(self) -> float | None:
        """When to look in any case, if that is yet to come."""
        return None if self._past_retention else self._retained_until

    def _count_failure(self, error: TrunklineError, deadline: ProgressDeadline) -> None:
        """Lets a look pass that came to nothing. Raises if that is no use any more."""
        self._raise_if_expired(deadline)
        if isinstance(error, OutcomeUnknown | BadAnswer | TaskCancelled) or not self._client.recovers():
            raise error
        if isinstance(error, PeerError) and error.code == InvalidParams.code:
            if not self._confirmed:
                raise error
            raise OutcomeUnknown(f"the server does not know of task {self.id} any more: {error.message}") from None
        self._failures += 1
        if self._failures >= _MAX_FAILURES:
            raise error

    def _update(self, snapshot: TaskSnapshot) -> None:
        self._snapshot = snapshot
        if self._request is not None and (progress := snapshot.progress) is not None:
            self._client.progressed(self._request, progress)
        if snapshot.status in FINAL_STATUSES:
            self._request = None

    def _set_final_status(self, status: TaskStatus) -> None:
        self._snapshot.status = status
        self._request = None


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
