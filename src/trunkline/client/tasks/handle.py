"""Calls that a server runs as tasks: their handles, and the client's work for all of them.

In 2025-11-25 the client chooses which calls run as tasks, and waits in `tasks/result`; the server sends its input
requests as in any call. With the tasks extension of 2026-07-28 the server chooses; the client polls the task, and
answers input requests with `tasks/update`.

A failed poll does not end a task: the connection may be lost, or the server may be restarting or overloaded. The client
polls again after the usual interval, up to a number of failures in a row. It does not wait for a task beyond the time
that the server retains it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Generic

from msgspec import UNSET, Raw

from trunkline.client.multi_round import RawInputRequest, answer_input_requests
from trunkline.client.progress_deadline import ProgressDeadline, ProgressRelay, run_until_deadline
from trunkline.client.results import UNSPECIFIED, T_co, ToolResult, build_tool_result
from trunkline.client.retry import convert_unknown_outcome
from trunkline.client.runtime import ClientRuntime
from trunkline.client.tasks.status import (
    FINAL_STATUSES,
    TASK_RESULT_TYPE,
    TaskSnapshot,
    TaskStarted,
    decode_call_result,
    decode_snapshot,
    decode_task_result,
    is_empty_object,
)
from trunkline.client.tasks.watch import BackgroundCancellations
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
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.events import ProgressReceived
from trunkline.protocol.inflight import OutgoingRequest
from trunkline.protocol.types import (
    CallToolResult,
    CancelTaskParams,
    GetTaskParams,
    GetTaskPayloadParams,
    ProgressParams,
    TaskStatus,
)
from trunkline.protocol.types.tasks_extension import TaskProgress, UpdateTaskParams

__all__ = ["ClientTasks", "Task"]

_MAX_FAILURES: Final = 5  # failed polls in a row
_RETENTION_GRACE: Final = 1.0  # seconds to wait at least beyond the retention time of a task
_LISTEN_THRESHOLD: Final = 0.5  # seconds between polls; from there on, notifications are worth a listen request
_TRANSIENT_ERRORS: Final = (ConnectionClosed, RequestTimeout, PeerError)


class ClientTasks:
    """The tasks of one client: requests about them, their input requests, and the cancellation of abandoned ones."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self._runtime = runtime
        self._cancellations = BackgroundCancellations()

    @property
    def modern(self) -> bool:
        """Whether the server speaks the modern era."""
        return self._runtime.modern

    @property
    def reconnects(self) -> bool:
        """Whether the client replaces a lost connection."""
        return self._runtime.supervisor is not None and self._runtime.supervisor.reconnects

    def now(self) -> float:
        """Return the time on the client's clock."""
        return self._runtime.now()

    async def wait(self, futures: "Sequence[asyncio.Future[Any]]", due: float | None) -> None:
        """Wait until one of the futures is done, or until `due`."""
        await self._runtime.require_supervisor().wait_for(futures, due)

    async def run_on_own_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the client's loop."""
        return await self._runtime.run_on_own_loop(work)

    async def request(self, name: str, params: Any) -> Any:
        """Send a request about a task."""
        return await self._runtime.request(name, params)

    async def answer_input_requests(self, requests: Mapping[str, RawInputRequest]) -> dict[str, Raw]:
        """Answer the input requests of a task with the callbacks of the host application."""
        connection = await self._runtime.require_supervisor().wait_for_connection("tasks/update", None)
        return await answer_input_requests(connection, requests)

    def expect_change(self, task_id: str) -> "AbstractContextManager[asyncio.Future[None]]":
        """Return a context manager whose future is done when the server reports a change of the task."""
        return self._runtime.task_waiters.expect_change(task_id)

    def listen(self) -> None:
        """Ask the server, in the background, to send notifications about the tasks that are waited for."""
        supervisor, subscription = self._runtime.supervisor, self._runtime.listen_subscription
        if supervisor is not None and supervisor.connection is not None and subscription is not None:
            supervisor.run_in_background(subscription.include_tasks())

    def report_progress(self, request: OutgoingRequest, progress: TaskProgress) -> None:
        """Pass the progress of a task to its caller if it has grown. Called on the client's loop."""
        connection = self._runtime.latest
        if connection is not None and request.record_progress(progress.progress, self.now()):
            params = ProgressParams(request.id, progress.progress, progress.total, progress.message)
            connection.deliver_progress(ProgressReceived(request, params))

    def decode_result(self, raw: Any) -> CallToolResult:
        """Decode the tool result of a task. Raises `BadAnswer`."""
        return decode_task_result(raw)

    def build_result(self, tool: str, result: CallToolResult, returns: Any, *, raise_on_error: bool) -> ToolResult:
        """Convert the result of a task to the type that its caller wants."""
        known = self._runtime.known_tools.by_name.get(tool)
        return build_tool_result(tool, result, known, returns, raise_on_error=raise_on_error)

    # --- tasks without an owner ----------------------------------------------------------------

    async def finish_unowned(
        self, task: "Task[T_co]", deadline: ProgressDeadline, *, raise_on_error: bool
    ) -> ToolResult[T_co]:
        """Wait for a task whose caller has no handle of it. If the wait ends early, cancel the task."""
        try:
            return await task.outcome(deadline, raise_on_error=raise_on_error)
        except BaseException:
            supervisor = self._runtime.supervisor
            if task.status not in FINAL_STATUSES and supervisor is not None and not supervisor.done:
                self._cancellations.start(task.cancel())
            raise

    def abandon_call(self, request: OutgoingRequest) -> None:
        """Cancel the task that a call is answered with after its caller has stopped waiting.

        A call that requested a task will be answered with one, so closing the client waits for that. For any other
        call, the server has received a cancellation, and its response may never arrive.
        """
        waiter: asyncio.Future[Any] = request.waiter
        answered = not waiter.cancelled() and waiter.exception() is None
        response: asyncio.Future[Any] = waiter if answered else request.on_late_response
        if request.as_task or response.done():
            self._cancellations.start(self._cancel_late_task(request, response))
        else:
            response.add_done_callback(lambda _: self._cancellations.start(self._cancel_late_task(request, response)))

    async def _cancel_late_task(self, request: OutgoingRequest, response: "asyncio.Future[Any]") -> None:
        timeout = self._runtime.settings.quick_timeout
        await self.wait([response], None if timeout is None else self.now() + timeout)
        if response.done():
            raw = response.result()
            is_task = read_result_header(raw).result_type == TASK_RESULT_TYPE
            result = decode_call_result(raw, request, is_task=is_task)
            if isinstance(result, TaskStarted):
                await Task(self, TaskSnapshot(result.snapshot.task_id)).cancel()

    async def finish_cancellations(self) -> None:
        """Wait for running cancellations up to `stop_timeout`; without a connection, drop them."""
        supervisor = self._runtime.supervisor
        connected = supervisor is not None and supervisor.connection is not None
        await self._cancellations.finish(self._runtime.settings.stop_timeout if connected else 0.0)


class Task(Generic[T_co]):
    """The handle of a call that the server runs as a task.

    The task runs independently of this client. With its `id`, another client can fetch it later: `client.task(id)`.
    Progress is reported while this handle exists.
    """

    def __init__(
        self,
        tasks: ClientTasks,
        snapshot: TaskSnapshot,
        *,
        tool: str = "",
        returns: Any = UNSPECIFIED,
        result: CallToolResult | None = None,
        request: OutgoingRequest | None = None,
        progress_relay: ProgressRelay | None = None,
        on_update: Callable[[TaskSnapshot], object] | None = None,
    ) -> None:
        """`result` is the result if it is known already. `request` is the call that was answered with this task; the
        server reports progress under its token, and `progress_relay` passes that on. `on_update` is called with each
        description of the task that the server sends."""
        self._tasks = tasks
        self._tool = tool
        self._returns = returns
        self._result = result
        self._request = request
        self._progress_relay = progress_relay
        self._on_update = on_update
        self._confirmed = request is not None  # the server has acknowledged the task
        self._answered_inputs: set[str] = set()  # each input request is answered once
        self._failures = 0  # failed polls in a row
        self._known_since: float | None = None if request is None else tasks.now()
        self._update(snapshot)

    def __repr__(self) -> str:
        message = "" if self.message is None else f", {shortened(self.message)}"
        return f"<Task {self.id!r}: {self.status}{message}>"

    @property
    def id(self) -> str:
        """The id that the server has given the task."""
        return self._snapshot.task_id

    @property
    def status(self) -> TaskStatus:
        """The status in the latest response about the task."""
        return self._snapshot.status

    @property
    def message(self) -> str | None:
        """The status message of the server."""
        return self._snapshot.status_message

    async def refresh(self) -> TaskStatus:
        """Request the current status and return it."""
        if self._result is None:
            await self._tasks.run_on_own_loop(self._poll())
        return self.status

    async def _poll(self) -> None:
        self._update(decode_snapshot(await self._tasks.request("tasks/get", GetTaskParams(self.id))))
        self._confirmed = True

    async def cancel(self) -> None:
        """Cancel the task. A task that has ended keeps its outcome."""
        if self._result is not None:
            return
        try:
            raw = await self._tasks.request("tasks/cancel", CancelTaskParams(self.id))
        except PeerError:
            if await self.refresh() not in FINAL_STATUSES:
                raise
        else:
            if self._tasks.modern or is_empty_object(raw):
                await self._refresh_after_cancel()
            else:
                self._update(decode_snapshot(raw))

    async def _refresh_after_cancel(self) -> None:
        """Fetch the final status. The task may have ended otherwise; a server need not retain a cancelled task."""
        try:
            await self.refresh()
        except PeerError as error:
            if error.code != InvalidParams.code:
                raise
            self._set_final_status("cancelled")

    async def result(self, *, timeout: float | None = None, raise_on_error: bool = True) -> ToolResult[T_co]:
        """Wait for the result and return it; answer the server's input requests meanwhile.

        Raises the error of the call, `TaskCancelled` if the task was cancelled, `OutcomeUnknown` if the server does not
        know the task any more, and `RequestTimeout` after `timeout` seconds; then the task runs on. Each report of
        progress starts the timeout again.
        """
        return await self.outcome(ProgressDeadline(self._tasks.now, timeout), raise_on_error=raise_on_error)

    async def outcome(self, deadline: ProgressDeadline, *, raise_on_error: bool) -> ToolResult[T_co]:
        """Do the same as `result`, with a deadline that is running already."""
        if self._result is None:
            deadlines = set[ProgressDeadline]() if self._progress_relay is None else self._progress_relay.deadlines
            deadlines.add(deadline)
            try:
                self._result = await self._tasks.run_on_own_loop(self._wait_for_result(deadline))
            finally:
                deadlines.discard(deadline)
        return self._tasks.build_result(self._tool, self._result, self._returns, raise_on_error=raise_on_error)

    # --- waiting -------------------------------------------------------------------------------

    async def _wait_for_result(self, deadline: ProgressDeadline) -> CallToolResult:
        tasks = self._tasks
        self._known_since = tasks.now() if self._known_since is None else self._known_since
        attempt = self._poll_result if tasks.modern else self._fetch_result
        while True:
            with tasks.expect_change(self.id) as change:
                result = await attempt(deadline)
                if result is not None:
                    return result
                if self._past_retention and self.status not in FINAL_STATUSES:
                    raise OutcomeUnknown(f"task {self.id} has not ended within the time that its server retains it")
                if tasks.modern and self._snapshot.poll_seconds >= _LISTEN_THRESHOLD:
                    tasks.listen()
                next_poll = tasks.now() + self._snapshot.poll_seconds
                await tasks.wait([change], _earliest(deadline.due, self._retention_deadline, next_poll))
            self._raise_if_expired(deadline)

    async def _poll_result(self, deadline: ProgressDeadline) -> CallToolResult | None:
        """Return the result of a task that has to be polled; None if it has not ended."""
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
        """Answer new input requests; return whether there were any. The time that a person needs does not count."""
        requests = self._snapshot.input_requests or {}
        new = {key: request for key, request in requests.items() if key not in self._answered_inputs}
        if new and self.status == "input_required":
            answers = await self._tasks.answer_input_requests(new)
            deadline.renew()
            await self._run_until(self._tasks.request("tasks/update", UpdateTaskParams(self.id, answers)), deadline)
            self._answered_inputs |= new.keys()
        return bool(new)

    def _final_result(self) -> CallToolResult:
        snapshot = self._snapshot
        if snapshot.status == "completed":
            return self._tasks.decode_result(snapshot.result)
        if snapshot.status == "cancelled":
            raise TaskCancelled(self.id)
        if snapshot.error is None:
            raise BadAnswer("tasks/get", "the task has failed, and the response has no error")
        error, data = snapshot.error, snapshot.error.data
        raise convert_unknown_outcome(
            PeerError(error.code, error.message, None if data is UNSET else data), f"task {self.id}"
        )

    async def _fetch_result(self, deadline: ProgressDeadline) -> CallToolResult | None:
        """Return the result from `tasks/result`, which responds when the task has ended; None after a lost response."""
        work = self._tasks.request("tasks/result", GetTaskPayloadParams(self.id))
        try:
            raw = await self._run_until(work, deadline, self._retention_deadline)
        except OutcomeUnknown:
            self._set_final_status("failed")
            raise
        except _TRANSIENT_ERRORS as error:
            self._raise_if_expired(deadline)
            await self._check_failed_fetch(error, deadline)
            return None
        result = self._tasks.decode_result(raw)
        self._set_final_status("failed" if result.is_error else "completed")
        return result

    async def _check_failed_fetch(self, error: TrunklineError, deadline: ProgressDeadline) -> None:
        """Raise an error that is the outcome of the task; return if only the request has failed."""
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

    # --- deadlines and failed polls ------------------------------------------------------------

    async def _run_until(
        self, work: Coroutine[Any, Any, Any], deadline: ProgressDeadline, until: float | None = None
    ) -> Any:
        """Run a coroutine until a deadline. Raises `RequestTimeout`."""
        try:
            return await run_until_deadline(
                work, lambda: _earliest(deadline.due, until), self._tasks.now, self._tasks.wait
            )
        except RequestTimeout:
            raise  # by the coroutine itself
        except TimeoutError:
            raise RequestTimeout("tools/call", round(deadline.elapsed, 3)) from None

    def _raise_if_expired(self, deadline: ProgressDeadline) -> None:
        if deadline.expired:
            raise RequestTimeout("tools/call", round(deadline.elapsed, 3))

    @property
    def _retained_until(self) -> float | None:
        """The time until which the server retains the task, estimated from the first response about it."""
        seconds = self._snapshot.retention_seconds
        if seconds is None or self._known_since is None:
            return None
        return self._known_since + seconds + max(_RETENTION_GRACE, self._snapshot.poll_seconds)

    @property
    def _past_retention(self) -> bool:
        until = self._retained_until
        return until is not None and self._tasks.now() >= until

    @property
    def _retention_deadline(self) -> float | None:
        """The end of the retention time, if it is in the future: the task is polled then in any case."""
        return None if self._past_retention else self._retained_until

    def _count_failure(self, error: TrunklineError, deadline: ProgressDeadline) -> None:
        """Count a failed poll. Raise if another poll cannot help."""
        self._raise_if_expired(deadline)
        if isinstance(error, OutcomeUnknown | BadAnswer | TaskCancelled) or not self._tasks.reconnects:
            raise error
        if isinstance(error, PeerError) and error.code == InvalidParams.code:
            if not self._confirmed:
                raise error
            raise OutcomeUnknown(f"the server does not know task {self.id} any more: {error.message}") from None
        self._failures += 1
        if self._failures >= _MAX_FAILURES:
            raise error

    def _update(self, snapshot: TaskSnapshot) -> None:
        self._snapshot = snapshot
        if self._request is not None and (progress := snapshot.progress) is not None:
            self._tasks.report_progress(self._request, progress)
        if self._on_update is not None:
            self._on_update(snapshot)
        if snapshot.status in FINAL_STATUSES:
            self._request = None

    def _set_final_status(self, status: TaskStatus) -> None:
        self._snapshot.status = status
        self._request = None


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
