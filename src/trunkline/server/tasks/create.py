"""Creation of tasks: decide whether a tool call runs as a task, and turn it into one.

The decision depends on what the tool allows, what the client requests, and what both have declared.
"""

import asyncio
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import Raw
from msgspec.structs import replace

from trunkline.errors import MissingCapability, NotExecuted, NotNow, StoreUnavailable
from trunkline.protocol.extensions import negotiated_settings
from trunkline.protocol.inflight import IncomingRequest, InputRound
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import Revision
from trunkline.protocol.task_dialects import Dialect, to_augmented_task, to_extension_task
from trunkline.protocol.tasks import TaskCaller, TaskRecord
from trunkline.protocol.trace_context import stated_trace
from trunkline.protocol.types import CallToolParams, CreateTaskResult, Task
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION, TaskCreated
from trunkline.protocol.types.tasks_founding import CreateFoundingTaskParams, CreateFoundingTaskResult
from trunkline.registry.tasks import TaskPolicy
from trunkline.registry.tools import ToolEntry
from trunkline.server.access.owner_id import owner_of
from trunkline.server.access.principal_codec import encode_principal
from trunkline.server.connection import Connection
from trunkline.server.tasks.errors import TaskSupportMismatch, TaskUnconfirmed
from trunkline.server.tasks.notify import TaskNotifier
from trunkline.server.tasks.service import WorkFactory
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.idempotency.key import KeyedCall, TaskClaim


__all__ = [
    "NewTask",
    "adopt_task",
    "choose_dialect",
    "convert_to_task",
    "create_founding_task",
    "create_tool_task",
    "creation_result",
    "has_extension",
    "new_founding_record",
    "new_task_record",
    "require_extension",
    "start_founding_task",
    "start_task",
]


def choose_dialect(
    entry: ToolEntry, connection: Connection, call: IncomingRequest, params: CallToolParams
) -> Dialect | None:
    """Return the dialect in which a call's task is described; None if the call runs as an ordinary one. Raise if the
    tool cannot be called in the requested way."""
    policy = entry.task
    if call.envelope is not None:
        if policy is None:
            return None
        if policy.support == "required":
            require_extension(connection, call)
            return Dialect.EXTENSION
        return Dialect.EXTENSION if has_extension(connection, call) else None
    if params.task is not None and _allows_augmentation(connection):
        if policy is None:
            raise TaskSupportMismatch(entry.name, "forbidden")
        return Dialect.AUGMENTED
    if policy is not None and policy.support == "required":
        raise TaskSupportMismatch(entry.name, "required")
    return None


def _allows_augmentation(connection: Connection) -> bool:
    """Return whether requests of this session may ask to run as a task; otherwise their `task` field is ignored."""
    session = connection.session
    return session.revision is Revision.V2025_11_25 and session.has_capability(Side.SERVER, "tasks.requests.tools.call")


def has_extension(connection: Connection, call: IncomingRequest) -> bool:
    """Return whether a modern-era request declares the tasks extension."""
    envelope = call.envelope
    return (
        envelope is not None
        and negotiated_settings(TASKS_EXTENSION, connection.catalog.capabilities(), envelope.capabilities) is not None
    )


def require_extension(connection: Connection, call: IncomingRequest) -> None:
    """Raise `MissingCapability` if a request does not declare the tasks extension."""
    if not has_extension(connection, call):
        raise MissingCapability(f"extensions.{TASKS_EXTENSION}")


class NewTask(NamedTuple):
    """A call that becomes a task: its tool, its connection, the request, and the work."""

    entry: ToolEntry
    connection: Connection
    call: IncomingRequest
    work: WorkFactory


async def start_task(new_task: NewTask, params: CallToolParams) -> CreateTaskResult | TaskCreated:
    """Create a task for a call and return the result that announces it, once it is stored."""
    return creation_result(new_task.call, await create_tool_task(new_task, params))


async def adopt_task(
    new_task: NewTask, params: CallToolParams, checkpoint: Raw, *, ttl: float | None, poll_interval: float
) -> CreateTaskResult | TaskCreated:
    """Create a task for a call that another server has answered with one; return the result that announces it. Its work
    follows the other task, which `checkpoint` identifies; the times, in seconds, are those of that task."""
    record = new_task_record(new_task, params)
    due = None if ttl is None else record.created_at + ttl
    lives_shorter = due is not None and record.expires_at is not None and due < record.expires_at
    record = replace(
        record,
        checkpoint=checkpoint,
        expires_at=due if lives_shorter else record.expires_at,
        poll_interval_ms=round(poll_interval * 1000),
    )
    return creation_result(new_task.call, await _create_and_start(new_task, record, started=True))


def creation_result(call: IncomingRequest, record: TaskRecord) -> CreateTaskResult | TaskCreated:
    """Return the result that announces a task."""
    return (
        CreateTaskResult(to_augmented_task(record, Task))
        if call.envelope is None
        else to_extension_task(record, TaskCreated)
    )


async def create_tool_task(new_task: NewTask, params: CallToolParams, claim: "TaskClaim | None" = None) -> TaskRecord:
    """Create and start the task of a call. An idempotency key, if the call carries one, then names the task."""
    connection, record = new_task.connection, new_task_record(new_task, params)
    if new_task.call.envelope is not None:
        return await _create_and_start(new_task, record, claim)
    connection.shared.tasks.augmenting_connections.add(connection)
    return await _create_and_start(new_task, record, claim, notify_client=True)


async def start_founding_task(new_task: NewTask, params: CreateFoundingTaskParams) -> CreateFoundingTaskResult:
    """Create a task as the founding documents define it: it starts after its client knows of it."""
    return CreateFoundingTaskResult((await create_founding_task(new_task, params)).task_id)


async def create_founding_task(
    new_task: NewTask, params: CreateFoundingTaskParams, claim: "TaskClaim | None" = None
) -> TaskRecord:
    """Create and start such a task. An idempotency key, if the request carries one, then names the task."""
    return await _create_and_start(new_task, new_founding_record(new_task, params), claim, notify_client=True)


async def convert_to_task(new_task: NewTask, params: CallToolParams, keyed: "KeyedCall | None" = None) -> None:
    """Turn a running call into a task and cancel its handler. The task runs the handler again with the answers and
    effects so far."""
    connection, call = new_task.connection, new_task.call
    current = cast("InputRound", call.input_round)  # set by begin_round: only modern calls are converted
    answers, effects = current.earlier_rounds
    record = replace(new_task_record(new_task, params), answers=dict(answers), effects=dict(effects))
    make = partial(_create_and_start, new_task, record, started=True)
    created = await (make() if keyed is None else connection.shared.get_ledger().convert_to_task(keyed, make))
    connection.reply_now(call, to_extension_task(created, TaskCreated), "task")
    raise asyncio.CancelledError


def _caller_of(connection: Connection, call: IncomingRequest) -> TaskCaller:
    """Return the part of a caller that is stored with its task."""
    facts = connection.client_of(call)
    return TaskCaller(
        revision=connection.revision_of(call).value,
        capabilities=dict(facts.capabilities),
        info=facts.info,
        modern=call.envelope is not None,
        local=connection.local,
        session=connection.shared.tasks.session_of(connection),
        principal=encode_principal(call.origin.principal),
    )


def new_task_record(new_task: NewTask, params: CallToolParams) -> TaskRecord:
    """Return the record of a new task for a call."""
    entry, connection, call, _ = new_task
    asked: dict[str, Any] = {"name": params.name, "arguments": codec.original_json(params.arguments)}
    if entry.forward is not None and params.meta is not None:
        asked["_meta"] = params.meta  # a run in another process forwards it, too
    policy, now = entry.task or TaskPolicy(), connection.shared.wall_clock.now()
    settings = connection.shared.catalog.settings
    asked_ttl = None if call.envelope is not None or params.task is None else params.task.ttl
    lifetime = policy.ttl or settings.task_ttl if asked_ttl is None else asked_ttl / 1000
    poll_interval = policy.poll_interval or settings.task_poll_interval
    return TaskRecord(
        task_id=f"{int(now * 1000):012x}-{urandom(16).hex()}",
        client=owner_of(call.origin.principal),
        caller=_caller_of(connection, call),
        method="tools/call",
        params=codec.to_raw(asked),
        created_at=now,
        updated_at=now,
        expires_at=now + min(lifetime, settings.max_task_ttl),
        timeout_ms=None if policy.timeout is None else round(policy.timeout * 1000),
        poll_interval_ms=round(poll_interval * 1000),
        progress_token=call.token,
        trace=_trace_of(connection, call),
    )


def _trace_of(connection: Connection, call: IncomingRequest) -> dict[str, str]:
    """Return the trace context that the task of a call continues: that of its span, or the one that its sender has
    stated."""
    tracer, span = connection.facts.tracer, call.span
    return dict(stated_trace(call)) if tracer is None or span is None else tracer.trace_context(span)


def new_founding_record(new_task: NewTask, params: CreateFoundingTaskParams) -> TaskRecord:
    """Return the record of a new task as the founding documents define it."""
    record = new_task_record(new_task, CallToolParams(name=new_task.entry.name, arguments=params.action.parameters))
    profile = new_task.connection.session.profile
    limit = None if profile is None else round(profile.task_timeout * 1000)
    return replace(
        record,
        caller=replace(record.caller, founding=True),
        progress_token=params.metadata.progress_token,
        timeout_ms=limit if params.metadata.timeout is None else params.metadata.timeout,
    )


async def _create_and_start(
    new_task: NewTask,
    record: TaskRecord,
    claim: "TaskClaim | None" = None,
    *,
    notify_client: bool = False,
    started: bool = False,
) -> TaskRecord:
    """Create and start a task. With `notify_client` the client receives notifications about it. With `started` its
    handler has run before. If the store fails, the client may retry only what certainly had no effect. If the call is
    cancelled meanwhile, no client will know the task, so it is cancelled too; unless the connection was lost and the
    call carries an idempotency key, with which the client can come back."""
    entry, connection, call, work = new_task
    shared, tasks = connection.shared, connection.shared.tasks
    notifier = TaskNotifier(shared, record, connection) if notify_client else None
    creation = tasks.create_and_start(
        record,
        entry,
        work,
        principal=call.origin.principal,
        exposes_errors=connection.replies.exposes_errors,
        extra_writes=() if claim is None else (claim.write_for(record),),
        notifier=notifier,
    )
    creating = connection.loop.create_task(creation)
    try:
        return await asyncio.shield(creating)
    except StoreUnavailable as error:
        if claim is not None:
            raise
        if isinstance(error, NotExecuted) and not started:
            raise NotNow("the store is unavailable, so the task was not started; try again later") from error
        raise TaskUnconfirmed from error
    except asyncio.CancelledError:
        creating.add_done_callback(
            tasks.cancel_orphan if claim is None or not claim.keyed_call.disconnected else _consume_exception
        )
        raise
    finally:
        if notifier is not None:
            notifier.release_after(call)


def _consume_exception(creating: "asyncio.Task[TaskRecord]") -> None:
    """Mark the exception of a creation as retrieved: its caller has gone."""
    if not creating.cancelled():
        creating.exception()
