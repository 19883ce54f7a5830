"""Tasks: get, list, update, cancel and result, in the dialect of the caller."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, assert_never

from msgspec import Raw

from trunkline.errors import InvalidParams, NotNow, ProtocolError, StoreUnavailable
from trunkline.protocol import lenient
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.protocol.methods import find_method
from trunkline.protocol.task_dialects import (
    Dialect,
    check_cancellable,
    dialect_of,
    task_outcome,
    to_augmented_task,
    to_detailed_task,
    to_founding_task,
    translate_error,
)
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import (
    CallToolParams,
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
from trunkline.protocol.types.tasks_extension import UpdateTaskParams
from trunkline.protocol.types.tasks_founding import (
    CreateFoundingTaskParams,
    GetFoundingTaskResult,
    ListFoundingTasksResult,
)
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.dispatch import Feature, MethodHandler
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.access.enforcement import ProtectedTarget, run_if_authorized
from trunkline.server.access.owner_id import owner_of
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.features import tools
from trunkline.server.tasks.create import NewTask, require_extension, start_founding_task
from trunkline.server.tasks.errors import TaskFailed, TaskNotFound
from trunkline.server.tasks.result import wait_for_outcome
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = ["FEATURE", "find_protected"]

_CURSOR: Final = "task"


def _dialect(connection: Connection, call: IncomingRequest, task: TaskRecord | None = None) -> Dialect:
    """Return the task dialect of a request. With a profile it is the dialect in which the task was created, or else the
    one that the connection has used. Raises if the request may not use tasks."""
    if call.envelope is not None:
        require_extension(connection, call)
        return Dialect.EXTENSION
    profile, augmenting = connection.session.profile, connection.shared.tasks.augmenting_connections
    if profile is None:
        return Dialect.AUGMENTED
    if task is not None and dialect_of(task) is Dialect.AUGMENTED:
        augmenting.add(connection)
    if task is not None and dialect_of(task) is profile.tasks:
        return profile.tasks
    return Dialect.AUGMENTED if connection in augmenting else profile.tasks


async def _get(connection: Connection, call: IncomingRequest, params: GetTaskParams) -> Any:
    _dialect(connection, call)
    record = (await connection.shared.tasks.get(owner_of(call.origin.principal), params.task_id)).record
    dialect = _dialect(connection, call, record)
    match dialect:
        case Dialect.AUGMENTED:
            connection.shared.tasks.question_delivery.record_poll(connection, record)
            return to_augmented_task(record, GetTaskResult)
        case Dialect.EXTENSION:
            return to_detailed_task(record)
        case Dialect.FOUNDING:
            return GetFoundingTaskResult(to_founding_task(record))
        case _:
            assert_never(dialect)


def find_protected(catalog: ServerCatalog, params: CreateFoundingTaskParams) -> ProtectedTarget | None:
    """Return the tool that a task will run, if the tool has an access rule."""
    return tools.find_protected(catalog, CallToolParams(name=params.action.type))


def _create(connection: Connection, call: IncomingRequest, params: CreateFoundingTaskParams) -> Work:
    """Create a task from the tool that the type of an action names, with its parameters."""
    entry = connection.catalog.tools.live.get(params.action.type)
    if entry is None or entry.task is None:
        raise InvalidParams(f"there is no action of type {params.action.type!r} that runs as a task")
    asked = find_protected(connection.catalog, params)
    work = partial(tools.run_within_rate, _create_from_tool, entry, connection, call, params)
    return work() if asked is None else run_if_authorized(connection, call, asked, work)


def _create_from_tool(
    entry: ToolEntry, connection: Connection, call: IncomingRequest, params: CreateFoundingTaskParams
) -> Work:
    asked = CallToolParams(name=entry.name, arguments=params.action.parameters)
    making = NewTask(entry, connection, call, tools.prepare_run(entry, connection.shared, asked))
    if params.meta is not None and IDEMPOTENCY_KEY in params.meta:
        from trunkline.server.idempotency.tool_calls import create_task_once

        return create_task_once(making, params)
    return start_founding_task(making, params)


async def _cancel(connection: Connection, call: IncomingRequest, params: CancelTaskParams) -> CancelTaskResult | Empty:
    _dialect(connection, call)
    repository, owner = connection.shared.tasks.repository, owner_of(call.origin.principal)
    changed = await repository.change(owner, params.task_id, lambda record, now: record.cancel(now, params.reason))
    if changed is None:
        raise TaskNotFound(params.task_id)
    before, after = changed[0].record, changed[1].record
    asks = _dialect(connection, call, before)
    check_cancellable(before, asks)
    return to_augmented_task(after, CancelTaskResult) if asks is Dialect.AUGMENTED else Empty()


async def _update(connection: Connection, call: IncomingRequest, params: UpdateTaskParams) -> Empty:
    require_extension(connection, call)
    tasks = connection.shared.tasks
    record = (await tasks.get(owner_of(call.origin.principal), params.task_id)).record
    for key, question in record.questions.items():
        if key in params.input_responses:
            _check_input_response(key, question.method, params.input_responses[key])
    await tasks.repository.change(
        record.client, record.task_id, lambda record, now: record.answer(now, params.input_responses)
    )
    return Empty()


def _check_input_response(key: str, method: str, answer: Raw) -> None:
    row = find_method(method)
    try:
        lenient.read(object if row is None or row.result is None else row.result, answer)
    except codec.DecodeError as error:
        raise InvalidParams(f"inputResponses.{key} is no answer to {method}: {error}") from None


async def _result(connection: Connection, call: IncomingRequest, params: GetTaskPayloadParams) -> Raw:
    """Return the result of a task once it has ended. Meanwhile the server sends the questions of the task to the
    client."""
    _dialect(connection, call)
    found = await wait_for_outcome(
        connection, call, params.task_id, lambda record: task_outcome(record, _dialect(connection, call, record))
    )
    if isinstance(found, Raw):
        return found
    raise TaskFailed(found)


async def _list(
    connection: Connection, call: IncomingRequest, params: PaginatedParams
) -> ListTasksResult | ListFoundingTasksResult:
    """Return the caller's tasks, oldest first; without authentication, those of its session."""
    tasks, catalog, now = connection.shared.tasks, connection.catalog, connection.shared.wall_clock.now()
    owner = owner_of(call.origin.principal)
    session = None if call.origin.principal is not None else tasks.session_of(connection)
    whose = session or owner
    after = b"" if params.cursor is None else catalog.cursors.open_name(_CURSOR, params.cursor, now, whose)
    shown, last = await tasks.repository.list_page(owner, session, after.decode(), catalog.tools.size_of(params.limit))
    cursor = None if last is None else catalog.cursors.seal_name(_CURSOR, last.encode(), now, whose)
    if _dialect(connection, call, shown[0] if shown else None) is Dialect.FOUNDING:
        return ListFoundingTasksResult([to_founding_task(record) for record in shown], cursor=cursor)
    return ListTasksResult([to_augmented_task(record, Task) for record in shown], next_cursor=cursor)


def _translate_errors(handler: Callable[[Connection, IncomingRequest, Any], Work]) -> MethodHandler:
    """Wrap a handler so that its errors have the codes of the caller's dialect."""

    def answer(connection: Connection, call: IncomingRequest, params: Any) -> Work:
        if connection.session.profile is None or call.envelope is not None:
            return handler(connection, call, params)
        return _run_translating_errors(connection, handler, call, params)

    return answer


def _retryable(handler: Callable[[Connection, IncomingRequest, Any], Awaitable[Any]]) -> Callable[..., Work]:
    """Wrap a handler so that the caller may retry while the store is unavailable: repeating it is harmless."""

    async def answer(connection: Connection, call: IncomingRequest, params: Any) -> Any:
        try:
            return await handler(connection, call, params)
        except StoreUnavailable as error:
            raise NotNow("the task store is unavailable; try again later") from error

    return answer


async def _run_translating_errors(
    connection: Connection, handler: Callable[..., Work], call: IncomingRequest, params: Any
) -> Any:
    try:
        return await run_work(handler(connection, call, params), connection.threads)
    except ProtocolError as error:
        translated = ErrorObject(error.code, error.message, error.data)
        error.code = translate_error(_dialect(connection, call), translated).code
        raise


FEATURE = Feature(
    "tasks",
    {
        "tasks/create": _translate_errors(_create),
        "tasks/get": _translate_errors(_retryable(_get)),
        "tasks/result": _translate_errors(_retryable(_result)),
        "tasks/list": _translate_errors(_retryable(_list)),
        "tasks/cancel": _translate_errors(_retryable(_cancel)),
        "tasks/update": _retryable(_update),
    },
)
