"""Tasks: looked at, answered, cancelled, and their results; in the words of whoever asks."""

from typing import Any, Final

from msgspec import Raw

from trunkline.conversation.dispatch import Feature
from trunkline.errors import InvalidParams
from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import find
from trunkline.protocol.task_dialects import Dialect, augmented, cancellable, detailed, outcome
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import (
    CancelTaskParams,
    CancelTaskResult,
    Empty,
    GetTaskParams,
    GetTaskPayloadParams,
    GetTaskResult,
    ListTasksResult,
    PaginatedParams,
    Task,
)
from trunkline.protocol.types.tasks_extension import DetailedTask, UpdateTaskParams
from trunkline.server.connection import Connection
from trunkline.server.owners import owner_of
from trunkline.server.tasks.choosing import require_extension
from trunkline.server.tasks.delivering import Delivery
from trunkline.server.tasks.faults import TaskFailed, TaskNotFound
from trunkline.wire import codec

__all__ = ["FEATURE"]

_CURSOR: Final = "task"


def _dialect(connection: Connection, call: Running) -> Dialect:
    """In which words a request asks. Raises for one that may not ask at all."""
    if call.envelope is None:
        return Dialect.AUGMENTED
    require_extension(connection, call)
    return Dialect.EXTENSION


async def _get(connection: Connection, call: Running, params: GetTaskParams) -> GetTaskResult | DetailedTask:
    dialect = _dialect(connection, call)
    record = (await connection.shared.tasks.get(owner_of(call.origin.principal), params.task_id)).record
    return detailed(record) if dialect is Dialect.EXTENSION else augmented(record, GetTaskResult)


async def _cancel(connection: Connection, call: Running, params: CancelTaskParams) -> CancelTaskResult | Empty:
    dialect = _dialect(connection, call)

    def cancelled(record: TaskRecord, now: float) -> TaskRecord:
        return record.cancel(now) if cancellable(record, dialect) else record

    changed = await connection.shared.tasks.change(owner_of(call.origin.principal), params.task_id, cancelled)
    if changed is None:
        raise TaskNotFound(params.task_id)
    return Empty() if dialect is Dialect.EXTENSION else augmented(changed[1], CancelTaskResult)


async def _update(connection: Connection, call: Running, params: UpdateTaskParams) -> Empty:
    require_extension(connection, call)
    tasks = connection.shared.tasks
    record = (await tasks.get(owner_of(call.origin.principal), params.task_id)).record
    for key, question in record.questions.items():
        if key in params.input_responses:
            _check(key, question.method, params.input_responses[key])
    await tasks.change(record.client, record.task_id, lambda record, now: record.answer(now, params.input_responses))
    return Empty()


def _check(key: str, method: str, answer: Raw) -> None:
    row = find(method)
    try:
        codec.decoder(Any if row is None or row.result is None else row.result)(answer)
    except codec.DecodeError as error:
        raise InvalidParams(f"inputResponses.{key} is no answer to {method}: {error}") from None


async def _result(connection: Connection, call: Running, params: GetTaskPayloadParams) -> Raw:
    """What the request of a task has come to, once it has. While that is waited for, its questions are put."""
    tasks, owner = connection.shared.tasks, owner_of(call.origin.principal)
    delivery = Delivery(connection, call)
    connection.rest(1)  # it waits for something else, and shall keep nobody from being answered
    try:
        while True:
            with tasks.interest.expecting(owner, params.task_id) as heard:
                record = (await tasks.get(owner, params.task_id)).record
                found = outcome(record, Dialect.AUGMENTED)
                if isinstance(found, Raw):
                    return found
                if found is not None:
                    raise TaskFailed(found)
                delivery.deliver(record)
                await heard
    finally:
        connection.rest(-1)
        delivery.end()


async def _list(connection: Connection, call: Running, params: PaginatedParams) -> ListTasksResult:
    """Those of whoever asks, the oldest first. Where nobody has to say who it is, those of its conversation."""
    tasks, offer, now = connection.shared.tasks, connection.offer, connection.now()
    owner = owner_of(call.origin.principal)
    session = None if call.origin.principal is not None else tasks.session_of(connection)
    start = 0 if params.cursor is None else offer.cursors.open(_CURSOR, params.cursor, now, session or owner)
    size = offer.tools.size_of(params.limit)
    found = await tasks.listed(owner, session)
    shown, rest = found[start : start + size], found[start + size :]
    cursor = offer.cursors.seal(_CURSOR, start + size, now, session or owner) if rest else None
    return ListTasksResult([augmented(record, Task) for record in shown], next_cursor=cursor)


FEATURE = Feature(
    "tasks",
    {
        "tasks/get": _get,
        "tasks/result": _result,
        "tasks/list": _list,
        "tasks/cancel": _cancel,
        "tasks/update": _update,
    },
)
