"""Tasks that a client hosts: requests of a 2025-11-25 server whose result the server fetches later.

They exist while the client is open, and until their ttl ends at most. The number of running tasks and of retained ones
is bounded; of those that have ended, the oldest are dropped first.
"""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Raw

from trunkline.client.connection import ClientConnection
from trunkline.clock import Timer, WallClock
from trunkline.config import Settings
from trunkline.errors import InternalError, InvalidParams, ProtocolError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.task_dialects import (
    Dialect,
    check_cancellable,
    is_notable_change,
    task_outcome,
    to_augmented_task,
)
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import (
    CancelTaskParams,
    CancelTaskResult,
    CreateTaskResult,
    GetTaskParams,
    GetTaskPayloadParams,
    GetTaskResult,
    ListTasksResult,
    PaginatedParams,
    Task,
    TaskAugmentedParams,
    TaskStatusParams,
)
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.failures import build_failure
from trunkline.rpc.run_handler import Work, run_work
from trunkline.wire import codec

__all__ = ["HostedTasks"]

_REVISION: Final = Revision.V2025_11_25
_TOO_MANY: Final = "maximum_concurrent_tasks_exceeded"


class _HostedTask:
    """One task, and the event that ends it."""

    def __init__(self, record: TaskRecord, call: IncomingRequest) -> None:
        self.record = record
        self.call = call
        self.ended = asyncio.Event()  # the task has ended or was discarded
        self.work: asyncio.Task[None] | None = None
        self.timer: Timer | None = None  # for the end of the ttl

    def stop(self) -> None:
        """Cancel the work, and wake the requests that wait for the result."""
        self.call.done = True
        self.ended.set()
        if self.work is not None:
            self.work.cancel()


class HostedTasks:
    """The hosted tasks of one client."""

    def __init__(self) -> None:
        self._tasks: dict[str, _HostedTask] = {}
        self._wall_clock = WallClock()

    def feature(self) -> Feature:
        """Return the method handlers."""
        return Feature(
            "tasks",
            {
                "tasks/get": self._get,
                "tasks/result": self._result,
                "tasks/list": self._list,
                "tasks/cancel": self._cancel,
            },
        )

    def run(
        self,
        connection: ClientConnection,
        call: IncomingRequest,
        params: TaskAugmentedParams,
        start: Callable[[IncomingRequest], Work],
    ) -> Work:
        """Return the work of a request; if it asks for a task, start the task and return its description. `start`
        returns the work for a call without a waiting peer."""
        if params.task is None or connection.session.revision is not _REVISION:
            return start(call)
        self._make_room(connection.settings)
        record = self._new_record(call, params.task.ttl, connection.settings)
        name = record.task_id
        beside = IncomingRequest(
            call.id, call.method, connection.now(), token=call.token, origin=call.origin, related_task=name
        )
        task, work = _HostedTask(record, beside), start(beside)
        self._tasks[name] = task
        task.work = connection.loop.create_task(self._run_to_end(connection, task, work))
        if record.expires_at is not None:
            task.timer = self._wall_clock.call_at(record.expires_at, partial(self._discard, name))
        return CreateTaskResult(to_augmented_task(record, Task))

    def _new_record(self, call: IncomingRequest, requested_ttl_ms: int | None, settings: Settings) -> TaskRecord:
        """Return the record of a new task; `requested_ttl_ms` is the retention that the server asks for."""
        now = self._wall_clock.now()
        ttl = settings.task_ttl if requested_ttl_ms is None else max(requested_ttl_ms, 0) / 1000
        return TaskRecord(
            task_id=secrets.token_hex(16),
            client="server",
            method=call.method.name,
            params=Raw(b"{}"),
            created_at=now,
            updated_at=now,
            expires_at=now + min(ttl, settings.max_task_ttl),
            poll_interval_ms=round(settings.task_poll_interval * 1000),
        ).start(now)

    def _make_room(self, settings: Settings) -> None:
        """Drop ended tasks to make room for one more. Raises `InternalError` if too many are running."""
        ended = [name for name, task in self._tasks.items() if task.record.ended]
        at_work, most = len(self._tasks) - len(ended), settings.max_tasks_per_principal
        if most is not None and at_work >= most:
            raise InternalError(f"{most} tasks are running, which is the limit", data={"kind": _TOO_MANY})
        for name in ended[: max(0, len(self._tasks) + 1 - settings.max_tasks)]:
            self._discard(name)

    async def _run_to_end(self, connection: ClientConnection, task: _HostedTask, work: Work) -> None:
        try:
            value = codec.to_raw(project(await run_work(work, connection.threads), _REVISION))
        except asyncio.CancelledError:
            return
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the outcome
            failure = build_failure(
                error, task.call, _REVISION, connection.settings, expose=connection.replies.exposes_errors
            )
            if failure.reference is not None:
                connection.facts.report_failure(task.call, failure.reference, error)
            reply = failure.reply if isinstance(failure.reply, ProtocolError) else InternalError(str(error))
            self._update(
                connection, task, task.record.fail(self._wall_clock.now(), connection.session.error_object(reply))
            )
        else:
            self._update(connection, task, task.record.complete(self._wall_clock.now(), value))

    def _update(self, connection: ClientConnection, task: _HostedTask, record: TaskRecord) -> None:
        notable = is_notable_change(task.record, record, Dialect.AUGMENTED)
        task.record = record
        if record.ended:
            task.stop()
        if notable:
            connection.notify("notifications/tasks/status", to_augmented_task(record, TaskStatusParams))

    def _discard(self, name: str) -> None:
        task = self._tasks.pop(name)
        if task.timer is not None:
            task.timer.cancel()
        task.stop()

    def _find(self, task_id: str) -> _HostedTask:
        task = self._tasks.get(task_id)
        if task is None:
            raise InvalidParams(f"there is no task {task_id[:100]!r}", data={"kind": "task_not_found"})
        return task

    def close(self) -> None:
        """End all tasks."""
        for name in list(self._tasks):
            self._discard(name)

    # --- method handlers -------------------------------------------------------------------------

    def _get(self, connection: ClientConnection, call: IncomingRequest, params: GetTaskParams) -> GetTaskResult:  # noqa: ARG002
        return to_augmented_task(self._find(params.task_id).record, GetTaskResult)

    def _list(self, connection: ClientConnection, call: IncomingRequest, params: PaginatedParams) -> ListTasksResult:  # noqa: ARG002
        if params.cursor is not None:
            raise InvalidParams("there is one page, and no cursor to another", data={"kind": "invalid_cursor"})
        return ListTasksResult([to_augmented_task(task.record, Task) for task in self._tasks.values()])

    def _cancel(
        self,
        connection: ClientConnection,
        call: IncomingRequest,  # noqa: ARG002
        params: CancelTaskParams,
    ) -> CancelTaskResult:
        task = self._find(params.task_id)
        check_cancellable(task.record, Dialect.AUGMENTED)
        self._update(connection, task, task.record.cancel(self._wall_clock.now()))
        return to_augmented_task(task.record, CancelTaskResult)

    async def _result(self, connection: ClientConnection, call: IncomingRequest, params: GetTaskPayloadParams) -> Any:  # noqa: ARG002
        task = self._find(params.task_id)
        connection.adjust_call_limit(1)
        try:
            await task.ended.wait()
        finally:
            connection.adjust_call_limit(-1)
        if not task.record.ended:
            self._find(params.task_id)  # raises: the ttl ended first
        found = task_outcome(task.record, Dialect.AUGMENTED)
        if isinstance(found, Raw):
            return found
        raise _to_protocol_error(found)


def _to_protocol_error(error: Any) -> ProtocolError:
    rebuilt = ProtocolError.rebuilt(error.message, error.code)
    rebuilt.data = error.data
    return rebuilt
