"""Tool calls with an idempotency key: run once; repetitions get the outcome of the first call."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.modern import wrap_result
from trunkline.protocol.projection import project
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.tool_failures import error_of_failure
from trunkline.protocol.types import CallToolParams, CallToolResult, CreateTaskResult
from trunkline.protocol.types.tasks_extension import TaskCreated
from trunkline.protocol.types.tasks_founding import CreateFoundingTaskParams, CreateFoundingTaskResult
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import Work
from trunkline.server.connection import Connection
from trunkline.server.idempotency.key import KeyedCall, RunOutcomeUnknown, StartTool
from trunkline.server.tasks.create import (
    NewTask,
    convert_to_task,
    create_founding_task,
    create_tool_task,
    creation_result,
    new_founding_record,
    new_task_record,
)
from trunkline.server.tasks.errors import TaskFailed, TaskNotFound
from trunkline.server.tasks.result import wait_for_outcome
from trunkline.wire import codec

__all__ = ["become_task_once", "create_task_once", "run_once", "start_task_once"]

_decode_result: Final = codec.decoder(CallToolResult)


def run_once(
    entry: ToolEntry, connection: Connection, call: IncomingRequest, params: CallToolParams, start: StartTool
) -> Work:
    """Run a call that is answered with its result, even if the first call with the key became a task."""
    keyed = KeyedCall(connection, call, params, idempotent=entry.repeatable)
    ledger, of_task = connection.shared.get_ledger(), partial(_await_task_result, entry, connection, call)
    run = partial(ledger.run_once, keyed, start, of_task)
    profile = connection.session.profile_of(call)
    return run() if profile is None or not profile.tool_errors else _raise_failure(run)


async def _raise_failure(run: Callable[[], Awaitable[CallToolResult]]) -> CallToolResult:
    """Return a result; raise the error that stands for a failed one. The ledger stores every failure as a result, so
    that clients without the profile can repeat the call."""
    result = await run()
    error = error_of_failure(result) if result.is_error else None
    if error is not None:
        raise error
    return result


def become_task_once(making: NewTask, params: CallToolParams, start: StartTool) -> Work:
    """Run a call that may become a task after it has asked for input."""
    entry, connection, call, _ = making

    async def of_task(task: TaskRecord) -> Any:
        return creation_result(call, task)

    keyed = KeyedCall(connection, call, params, idempotent=entry.repeatable)
    call.task = partial(convert_to_task, making, params, keyed)
    return connection.shared.get_ledger().run_once(keyed, start, of_task)


async def start_task_once(making: NewTask, params: CallToolParams) -> CreateTaskResult | TaskCreated | CallToolResult:
    """Run a call as a task. If the first call with the key was not a task, a client with the tasks extension gets its
    result; a client of 2025-11-25, which must get a task, gets a finished one."""
    entry, connection, call, _ = making
    keyed = KeyedCall(connection, call, params, idempotent=entry.repeatable)
    found = await connection.shared.get_ledger().create_task_once(keyed, partial(create_tool_task, making, params))
    if isinstance(found, TaskRecord):
        return creation_result(call, found)
    if call.envelope is not None:
        return found
    return creation_result(call, await _store_finished_task(making, new_task_record(making, params), found))


async def create_task_once(making: NewTask, asked: CreateFoundingTaskParams) -> CreateFoundingTaskResult:
    """Create a task for a `tasks/create` request of the founding documents."""
    entry, connection, call, _ = making
    params = CallToolParams(name=entry.name, arguments=asked.action.parameters, meta=asked.meta)
    keyed = KeyedCall(connection, call, params, idempotent=entry.repeatable)
    found = await connection.shared.get_ledger().create_task_once(keyed, partial(create_founding_task, making, asked))
    if not isinstance(found, TaskRecord):
        found = await _store_finished_task(making, new_founding_record(making, asked), found)
    return CreateFoundingTaskResult(found.task_id)


async def _store_finished_task(making: NewTask, record: TaskRecord, result: CallToolResult) -> TaskRecord:
    """Store a finished task for the result of a call that was not a task; return its record at the start. No process
    ever runs such a task."""
    connection = making.connection
    started = record.start(record.created_at)
    written = codec.to_raw(project(result, connection.revision_of(making.call)))
    await connection.shared.tasks.repository.create_without_lease(
        started.complete(started.created_at, written, is_error=result.is_error)
    )
    return started


async def _await_task_result(
    entry: ToolEntry, connection: Connection, call: IncomingRequest, task: TaskRecord
) -> CallToolResult:
    """Wait for the result of a task. Raises the error of the task, or `RunOutcomeUnknown`."""

    def outcome(record: TaskRecord) -> CallToolResult | None:
        if not record.ended:
            return None
        if record.error is not None:
            raise TaskFailed(record.error)
        if record.result is UNSET:
            raise RunOutcomeUnknown("its task was cancelled")
        result = _decode_result(record.result)
        return wrap_result(result) if record.caller.modern and entry.output.wraps else result

    try:
        return await wait_for_outcome(connection, call, task.task_id, outcome)
    except TaskNotFound:
        raise RunOutcomeUnknown("its task is no longer stored") from None
