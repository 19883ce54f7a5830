"""Tasks of a client's own: what a server of 2025-11-25 asks and wants to fetch the answer to later.

They are kept as long as the client is open, and for no longer than they were promised to be.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from trunkline.client.connection import Connection
from trunkline.clock import WallClock
from trunkline.conversation.dispatch import Feature, failure_of
from trunkline.conversation.drive import Work
from trunkline.conversation.perform import perform
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
from trunkline.wire import codec

__all__ = ["OwnTasks"]

_MOST: Final = 100  # at once: a server that asks for more asks too much
_KEPT: Final = 3600.0  # seconds, if the server does not say
_LONGEST: Final = 24 * 3600.0
_POLL: Final = 1000  # ms
_SAID: Final = Revision.V2025_11_25


class _Own:
    """One task, and who waits for its end."""

    def __init__(self, record: TaskRecord, call: Running) -> None:
        self.record = record
        self.call = call
        self.ended = asyncio.Event()
        self.work: asyncio.Task[None] | None = None


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
        self._forget()
        if sum(not own.record.ended for own in self._kept.values()) >= _MOST:
            raise InternalError(f"{_MOST} tasks are at work, which is the most")
        now, ttl = self._wall.now(), _KEPT if params.task.ttl is None else params.task.ttl / 1000
        record = TaskRecord(
            task_id=secrets.token_hex(16),
            client="server",
            method=call.method.name,
            params=Raw(b"{}"),
            created_at=now,
            updated_at=now,
            expires_at=now + min(ttl, _LONGEST),
            poll_interval_ms=_POLL,
        ).start(now)
        beside = Running(call.id, call.method, connection.now(), token=call.token, origin=call.origin)
        own = self._kept[record.task_id] = _Own(record, beside)
        own.work = connection.loop.create_task(self._done(connection, own, start(beside)))
        return CreateTaskResult(augmented(record, Task))

    async def _done(self, connection: Connection, own: _Own, work: Work) -> None:
        try:
            value = codec.to_raw(project(await perform(work, connection.threads), _SAID))
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - becomes the outcome
            failure = failure_of(error, own.call, _SAID)
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
            own.call.done = True
            own.ended.set()
        if told:
            connection.notify("notifications/tasks/status", augmented(record, TaskStatusParams))

    def _forget(self) -> None:
        now = self._wall.now()
        for name in [name for name, own in self._kept.items() if (own.record.expires_at or now) <= now]:
            own = self._kept.pop(name)
            if own.work is not None:
                own.work.cancel()

    def _of(self, task_id: str) -> _Own:
        self._forget()
        own = self._kept.get(task_id)
        if own is None:
            raise InvalidParams(f"there is no task {task_id[:100]!r}", data={"kind": "task_not_found"})
        return own

    def close(self) -> None:
        """Ends all of them."""
        for own in self._kept.values():
            if own.work is not None:
                own.work.cancel()
        self._kept.clear()

    # --- what a server asks of them --------------------------------------------------------------

    def _get(self, connection: Connection, call: Running, params: GetTaskParams) -> GetTaskResult:  # noqa: ARG002
        return augmented(self._of(params.task_id).record, GetTaskResult)

    def _list(self, connection: Connection, call: Running, params: PaginatedParams) -> ListTasksResult:  # noqa: ARG002
        if params.cursor is not None:
            raise InvalidParams("there is one page, and no cursor to another", data={"kind": "invalid_cursor"})
        self._forget()
        return ListTasksResult([augmented(own.record, Task) for own in self._kept.values()])

    def _cancel(self, connection: Connection, call: Running, params: CancelTaskParams) -> CancelTaskResult:  # noqa: ARG002
        own = self._of(params.task_id)
        cancellable(own.record, Dialect.AUGMENTED)
        self._change(connection, own, own.record.cancel(self._wall.now()))
        if own.work is not None:
            own.work.cancel()
        return augmented(own.record, CancelTaskResult)

    async def _result(self, connection: Connection, call: Running, params: GetTaskPayloadParams) -> Any:  # noqa: ARG002
        own = self._of(params.task_id)
        connection.rest(1)
        try:
            await own.ended.wait()
        finally:
            connection.rest(-1)
        found = outcome(own.record, Dialect.AUGMENTED)
        if isinstance(found, Raw):
            return found
        raise _told(found)


def _told(error: Any) -> ProtocolError:
    told = ProtocolError(error.message, code=error.code)
    told.data = error.data
    return told
