"""A call of a tool that carries an idempotency key: run, or answered with what came of it when it was made first."""

from functools import partial
from typing import Any, Final

from msgspec import UNSET

from trunkline.protocol.inflight import Running
from trunkline.protocol.modern import wrapped_result
from trunkline.protocol.projection import project
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import CallToolParams, CallToolResult, CreateTaskResult
from trunkline.protocol.types.tasks_extension import TaskCreated
from trunkline.protocol.types.tasks_founding import CreateFoundingTaskParams, CreateFoundingTaskResult
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import Work
from trunkline.server.connection import Connection
from trunkline.server.idempotency.key import Keyed, RunLost, Start
from trunkline.server.tasks.create import (
    Making,
    become_task,
    created,
    founding_record,
    make_founding,
    make_task,
    record_of,
)
from trunkline.server.tasks.errors import TaskFailed, TaskNotFound
from trunkline.server.tasks.result import awaited
from trunkline.wire import codec

__all__ = ["become_task_once", "create_task_once", "run_once", "start_task_once"]

_read_result: Final = codec.decoder(CallToolResult)


def run_once(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams, start: Start) -> Work:
    """A call that is answered with its result, also if it was a task when it was made first."""
    keyed = Keyed(connection, call, params, idempotent=entry.repeatable)
    return connection.shared.ledger().once(keyed, start, partial(_result_of, entry, connection, call))


def become_task_once(making: Making, params: CallToolParams, start: Start) -> Work:
    """A call that may become a task when it has asked what it has to."""
    entry, connection, call, _ = making

    async def of_task(task: TaskRecord) -> Any:
        return created(call, task)

    keyed = Keyed(connection, call, params, idempotent=entry.repeatable)
    call.task = partial(become_task, making, params, keyed)
    return connection.shared.ledger().once(keyed, start, of_task)


async def start_task_once(making: Making, params: CallToolParams) -> CreateTaskResult | TaskCreated | CallToolResult:
    """A call that is a task. If it was none when it was made first, a client with the extension gets its result, and
    one of 2025-11-25, who has to get a task, one that has come to it."""
    entry, connection, call, _ = making
    keyed = Keyed(connection, call, params, idempotent=entry.repeatable)
    found = await connection.shared.ledger().task(keyed, partial(make_task, making, params))
    if isinstance(found, TaskRecord):
        return created(call, found)
    if call.envelope is not None:
        return found
    return created(call, await _ended(making, record_of(making, params), found))


async def create_task_once(making: Making, asked: CreateFoundingTaskParams) -> CreateFoundingTaskResult:
    """A task that is asked for as the founding documents have it."""
    entry, connection, call, _ = making
    params = CallToolParams(name=entry.name, arguments=asked.action.parameters, meta=asked.meta)
    keyed = Keyed(connection, call, params, idempotent=entry.repeatable)
    found = await connection.shared.ledger().task(keyed, partial(make_founding, making, asked))
    if not isinstance(found, TaskRecord):
        found = await _ended(making, founding_record(making, asked), found)
    return CreateFoundingTaskResult(found.task_id)


async def _ended(making: Making, record: TaskRecord, result: CallToolResult) -> TaskRecord:
    """A task of what a call came to that was none: shown as it begins, kept as it has ended. Nobody works on it, so
    nobody ever takes it for work that has to be done."""
    connection = making.connection
    begun = record.start(record.created_at)
    written = codec.to_raw(project(result, connection.revision_of(making.call)))
    await connection.shared.tasks.shelf.keep(begun.complete(begun.created_at, written, is_error=result.is_error))
    return begun


async def _result_of(entry: ToolEntry, connection: Connection, call: Running, task: TaskRecord) -> CallToolResult:
    """What a task has come to, once it has. Raises the error that it came to, or `RunLost`."""

    def come_to(record: TaskRecord) -> CallToolResult | None:
        if not record.ended:
            return None
        if record.error is not None:
            raise TaskFailed(record.error)
        if record.result is UNSET:
            raise RunLost("the task that it became was cancelled")
        result = _read_result(record.result)
        return wrapped_result(result) if record.caller.modern and entry.output.wraps else result

    try:
        return await awaited(connection, call, task.task_id, come_to)
    except TaskNotFound:
        raise RunLost("the task that it became is not kept any more") from None
