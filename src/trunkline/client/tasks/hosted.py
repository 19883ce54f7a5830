"""Tasks of a client's own: what a server of 2025-11-25 asks and wants to fetch the answer to later.

They are kept as long as the client is open, and for no longer than they were promised to be. There are so many at work
at once, and so many kept: of those that have ended, the oldest go first.
"""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Raw

from trunkline.client.connection import Connection
from trunkline.clock import Timer, WallClock
from trunkline.config import Settings
from trunkline.errors import InternalError, InvalidParams, ProtocolError
from trunkline.protocol.inflight import Running
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.task_dialects import Dialect, augmented, cancellable, outcome, worth_telling
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
from trunkline.rpc.dispatch import Feature, failure_of
from trunkline.rpc.run_handler import Work, perform
from trunkline.wire import codec

__all__ = ["OwnTasks"]

_SAID: Final = Revision.V2025_11_25
_TOO_MANY: Final = "maximum_concurrent_tasks_exceeded"


class _Own:
    """One task, and who waits for its end."""

    def __init__(self, record: TaskRecord, call: Running) -> None:
        self.record = record
        self.call = call
        self.over = asyncio.Event()  # it has ended, or is not kept any more
        self.work: asyncio.Task[None] | None = None
        self.timer: Timer | None = None  # for the end of its time

    def stop(self) -> None:
        """Nobody works on it any more, nor waits for it."""
        self.call.done = True
        self.over.set()
        if self.work is not None:
            self.work.cancel()


class OwnTasks:
    """All of a client's."""

    def __init__(self) -> None:
        self._kept: dict[str, _Own] = {}
        self._wall = WallClock()

    def feature(self) -> Feature:
        """Who answers which method."""
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
        self, connection: Connection, call: Running, params: TaskAugmentedParams, start: Callable[[Running], Work]
    ) -> Work:
        """The work of a request, or what it is answered with if it shall be a task. `start` gives the work for a call
        that nobody waits for."""
        if params.task is None or connection.session.revision is not _SAID:
            return start(call)
        self._make_room(connection.settings)
        record = self._record(call, params.task.ttl, connection.settings)
        name = record.task_id
        beside = Running(call.id, call.method, connection.now(), token=call.token, origin=call.origin, related=name)
        own, work = _Own(record, beside), start(beside)
        self._kept[name] = own
        own.work = connection.loop.create_task(self._done(connection, own, work))
        if record.expires_at is not None:
            own.timer = self._wall.call_at(record.expires_at, partial(self._forget, name))
        return CreateTaskResult(augmented(record, Task))

    def _record(self, call: Running, wanted: int | None, settings: Settings) -> TaskRecord:
        """What is kept of a new task; `wanted` is for how many milliseconds the server wants that."""
        now, ttl = self._wall.now(), settings.task_ttl if wanted is None else max(wanted, 0) / 1000
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
        """Makes room for one more. Raises if there are too many at work: a server that asks for more asks too much."""
        ended = [name for name, own in self._kept.items() if own.record.ended]
        at_work, most = len(self._kept) - len(ended), settings.max_tasks_per_principal
        if most is not None and at_work >= most:
            raise InternalError(f"{most} tasks are at work, which is the most", data={"kind": _TOO_MANY})
        for name in ended[: max(0, len(self._kept) + 1 - settings.max_tasks)]:
            self._forget(name)

    async def _done(self, connection: Connection, own: _Own, work: Work) -> None:
        try:
            value = codec.to_raw(project(await perform(work, connection.threads), _SAID))
        except asyncio.CancelledError:
            return
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the outcome
            failure = failure_of(error, own.call, _SAID, expose=connection.exposes_errors)
            if failure.reference is not None:
                connection.report_failure(own.call, failure.reference, error)
            told = failure.answer if isinstance(failure.answer, ProtocolError) else InternalError(str(error))
            self._change(connection, own, own.record.fail(self._wall.now(), connection.session.error_object(told)))
        else:
            self._change(connection, own, own.record.complete(self._wall.now(), value))

    def _change(self, connection: Connection, own: _Own, record: TaskRecord) -> None:
        told = worth_telling(own.record, record, Dialect.AUGMENTED)
        own.record = record
        if record.ended:
            own.stop()
        if told:
            connection.notify("notifications/tasks/status", augmented(record, TaskStatusParams))

    def _forget(self, name: str) -> None:
        own = self._kept.pop(name)
        if own.timer is not None:
            own.timer.cancel()
        own.stop()

    def _of(self, task_id: str) -> _Own:
        own = self._kept.get(task_id)
        if own is None:
            raise InvalidParams(f"there is no task {task_id[:100]!r}", data={"kind": "task_not_found"})
        return own

    def close(self) -> None:
        """Ends all of them."""
        for name in list(self._kept):
            self._forget(name)

    # --- what a server asks of them --------------------------------------------------------------

    def _get(self, connection: Connection, call: Running, params: GetTaskParams) -> GetTaskResult:  # noqa: ARG002
        return augmented(self._of(params.task_id).record, GetTaskResult)

    def _list(self, connection: Connection, call: Running, params: PaginatedParams) -> ListTasksResult:  # noqa: ARG002
        if params.cursor is not None:
            raise InvalidParams("there is one page, and no cursor to another", data={"kind": "invalid_cursor"})
        return ListTasksResult([augmented(own.record, Task) for own in self._kept.values()])

    def _cancel(self, connection: Connection, call: Running, params: CancelTaskParams) -> CancelTaskResult:  # noqa: ARG002
        own = self._of(params.task_id)
        cancellable(own.record, Dialect.AUGMENTED)
        self._change(connection, own, own.record.cancel(self._wall.now()))
        return augmented(own.record, CancelTaskResult)

    async def _result(self, connection: Connection, call: Running, params: GetTaskPayloadParams) -> Any:  # noqa: ARG002
        own = self._of(params.task_id)
        connection.rest(1)
        try:
            await own.over.wait()
        finally:
            connection.rest(-1)
        if not own.record.ended:
            self._of(params.task_id)  # its time was up first
        found = outcome(own.record, Dialect.AUGMENTED)
        if isinstance(found, Raw):
            return found
        raise _told(found)


def _told(error: Any) -> ProtocolError:
    told = ProtocolError.rebuilt(error.message, error.code)
    told.data = error.data
    return told
