"""A call of a tool that becomes a task."""

import asyncio
from functools import partial
from typing import Any

from msgspec.structs import replace

from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import RELATED_TASK
from trunkline.protocol.task_dialects import Dialect, augmented, extended, founding_status
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import (
    CallToolParams,
    CreateTaskResult,
    ProgressParams,
    Task,
    TaskStatusParams,
)
from trunkline.protocol.types.tasks_extension import TaskCreated
from trunkline.protocol.types.tasks_founding import CreateFoundingTaskParams, CreateFoundingTaskResult
from trunkline.registry.tasks import TaskPolicy
from trunkline.registry.tools import ToolEntry
from trunkline.server.connection import Connection
from trunkline.server.owners import owner_of
from trunkline.server.tasks.line import caller_of
from trunkline.server.tasks.tasks import Begin, with_known
from trunkline.wire import codec

__all__ = ["become_task", "create_task", "start_task"]

_STATUS = "notifications/tasks/status"


async def start_task(
    entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams, work: Begin
) -> CreateTaskResult | TaskCreated:
    """Makes a task of a call; what the call is answered with once that is kept."""
    record = _record(entry, connection, call, params)
    if call.envelope is not None:
        kept = await _begin(connection, call, record, entry, work)
        return extended(kept, TaskCreated)
    record = _with_token(record, call)
    kept = await _begin(
        connection,
        call,
        record,
        entry,
        work,
        follow=(Dialect.AUGMENTED, partial(_tell, connection)),
        tell_progress=partial(_tell_progress, connection, record),
    )
    return CreateTaskResult(augmented(kept, Task))


async def create_task(
    entry: ToolEntry, connection: Connection, call: Running, asked: CreateFoundingTaskParams, work: Begin
) -> CreateFoundingTaskResult:
    """Makes a task as the founding documents have it: begun with when its maker knows of it."""
    params = CallToolParams(name=entry.name, arguments=asked.action.parameters)
    profile = connection.offer.profile
    limit = None if profile is None else round(profile.task_timeout * 1000)
    record = replace(
        _record(entry, connection, call, params),
        method=asked.action.type,
        params=asked.action.parameters,
        progress_token=asked.metadata.progress_token,
        timeout_ms=limit if asked.metadata.timeout is None else asked.metadata.timeout,
    )
    kept = await _begin(
        connection,
        call,
        record,
        entry,
        work,
        follow=(Dialect.FOUNDING, partial(_tell_founding, connection)),
        tell_progress=partial(_tell_progress, connection, record),
        pending=True,
    )
    return CreateFoundingTaskResult(kept.task_id)


async def become_task(
    entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams, work: Begin
) -> None:
    """Makes a task of a call whose handler is at work, and cancels that: it is run again in the task, with all that is
    known by now."""
    answers, effects = call.round.known
    record = with_known(_record(entry, connection, call, params), answers, effects)
    kept = await _begin(connection, call, record, entry, work)
    connection.answer(call, extended(kept, TaskCreated), "task")
    raise asyncio.CancelledError


def _record(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams) -> TaskRecord:
    asked: dict[str, Any] = {"name": params.name, "arguments": codec.as_written(params.arguments)}
    ttl = None if call.envelope is not None or params.task is None else params.task.ttl
    return connection.shared.tasks.new(
        owner_of(call.origin.principal),
        caller_of(connection, call),
        ("tools/call", codec.to_raw(asked)),
        entry.task or TaskPolicy(),
        ttl=None if ttl is None else ttl / 1000,
    )


def _with_token(record: TaskRecord, call: Running) -> TaskRecord:
    return record if call.token is None else replace(record, progress_token=call.token)


async def _begin(
    connection: Connection, call: Running, record: TaskRecord, entry: ToolEntry, work: Begin, **telling: Any
) -> TaskRecord:
    """Begins a task. If its caller waits no more for the answer, nobody will know of it, and it is cancelled."""
    shared, tasks = connection.shared, connection.shared.tasks
    begun = tasks.begin(shared, record, entry, work, principal=call.origin.principal, **telling)
    making = connection.loop.create_task(begun)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(tasks.disown)
        raise


def _tell(connection: Connection, record: TaskRecord) -> bool:
    return connection.notify(_STATUS, augmented(record, TaskStatusParams))


def _tell_founding(connection: Connection, record: TaskRecord) -> bool:
    return connection.notify(_STATUS, founding_status(record))


def _tell_progress(
    connection: Connection, record: TaskRecord, progress: float, total: float | None, message: str | None
) -> None:
    if record.progress_token is not None:
        related = {RELATED_TASK: {"taskId": record.task_id}}
        params = ProgressParams(
            progress_token=record.progress_token, progress=progress, total=total, message=message, meta=related
        )
        connection.notify("notifications/progress", params)
