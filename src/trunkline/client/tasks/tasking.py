"""What a client does for its tasks: hears of them, answers what they ask, and cancels those that nobody wants."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from trunkline.client.listen import ListenSubscription
from trunkline.client.multi_round import RawInputRequest, answer_input_requests
from trunkline.client.results import ToolResult
from trunkline.client.standing import NOT_OPEN, Standing
from trunkline.client.tasks.handle import Task, TaskClient
from trunkline.client.tasks.status import TASK_RESULT_TYPE, TaskStarted, decode_call_result
from trunkline.client.tasks.watch import BackgroundCancellations, TaskChangeWaiters
from trunkline.errors import MisuseError
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.events import ProgressReceived
from trunkline.protocol.extensions import negotiated_settings
from trunkline.protocol.inflight import OutgoingRequest
from trunkline.protocol.types import CallToolParams, CallToolResult, ProgressParams
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION, TaskProgress

__all__ = ["EXTENSIONS", "Tasking"]

EXTENSIONS: Mapping[str, Any] = {TASKS_EXTENSION: {}}
"""What every client has."""


class Tasking(Standing):
    """A client, as far as tasks are concerned."""

    def __init__(self) -> None:
        super().__init__()
        self._task_waiters = TaskChangeWaiters()
        self._cancellations = BackgroundCancellations()
        self._listen_subscription: ListenSubscription | None = None

    def _speaks_modern(self) -> bool:
        """While the line is being made again, what was spoken before it was lost."""
        used = None if self._supervisor is None else self._supervisor.last_ready
        return used is not None and used.modern

    def _may_become_task(self, name: str, params: Any) -> bool:
        """Whether a server may answer a request with a task."""
        if name != "tools/call" or not isinstance(params, CallToolParams):
            return False
        if not self._speaks_modern():
            return params.task is not None
        return negotiated_settings(TASKS_EXTENSION, {"extensions": EXTENSIONS}, self.capabilities) is not None

    def _make_task_client(self, finish: Callable[[CallToolResult, bool], ToolResult]) -> TaskClient:
        return TaskClient(
            modern=self._speaks_modern,
            ask=self._request,
            answer=self._answer_input_requests,
            finish=finish,
            expecting=self._task_waiters.expect_change,
            listen=self._listen_for_tasks,
            now=self._current_time,
            wait=self._wait_for,
            home=self._run_on_own_loop,
            progressed=self._report_task_progress,
            recovers=lambda: self._supervisor is not None and self._supervisor.reconnects,
        )

    def _listen_for_tasks(self) -> None:
        if (
            self._supervisor is not None
            and self._supervisor.connection is not None
            and self._listen_subscription is not None
        ):
            self._supervisor.run_in_background(self._listen_subscription.include_tasks())

    def _report_task_progress(self, asked: OutgoingRequest, told: TaskProgress) -> None:
        """Tells the caller of a task how far that has come, if it is further than was told before."""
        connection = None if self._supervisor is None else self._supervisor.latest
        if connection is not None and asked.record_progress(told.progress, self._current_time()):
            said = ProgressParams(asked.id, told.progress, told.total, told.message)
            connection.deliver_progress(ProgressReceived(asked, said))

    async def _wait_for(self, futures: "Sequence[asyncio.Future[Any]]", due: float | None) -> None:
        if self._supervisor is None:
            raise MisuseError(NOT_OPEN)
        await self._supervisor.wait_for(futures, due)

    async def _answer_input_requests(self, questions: Mapping[str, RawInputRequest]) -> dict[str, Raw]:
        if self._supervisor is None:
            raise MisuseError(NOT_OPEN)
        return await answer_input_requests(await self._supervisor.wait_for_connection("tasks/update", None), questions)

    # --- what nobody wants any more --------------------------------------------------------------

    def _cancel_task(self, task: Task) -> None:
        if self._supervisor is not None and not self._supervisor.done:
            self._cancellations.start(task.cancel())

    def _abandon_call(self, asked: OutgoingRequest) -> None:
        """Nobody waits for a call any more: if it is answered with a task, nobody wants that. Where the call has asked
        for one, that is to be expected, and who closes the line waits for it; elsewhere the server was told."""
        waiter: asyncio.Future[Any] = asked.waiter
        told = not waiter.cancelled() and waiter.exception() is None
        answer: asyncio.Future[Any] = waiter if told else asked.on_late_response
        if asked.as_task or answer.done():
            self._cancellations.start(self._cancel_late_task(asked, answer))
        else:
            answer.add_done_callback(lambda _: self._cancellations.start(self._cancel_late_task(asked, answer)))

    async def _cancel_late_task(self, asked: OutgoingRequest, answer: "asyncio.Future[Any]") -> None:
        quick = self.settings.quick_timeout
        await self._wait_for([answer], None if quick is None else self._current_time() + quick)
        if answer.done():
            raw = answer.result()
            found = decode_call_result(raw, asked, is_task=read_result_header(raw).result_type == TASK_RESULT_TYPE)
            if isinstance(found, TaskStarted):
                await self.task(found.snapshot.task_id).cancel()
