"""A call of a tool that becomes a task."""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trunkline.protocol.inflight import Running
from trunkline.protocol.task_dialects import augmented, extended
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import CallToolParams, CreateTaskResult, Task
from trunkline.protocol.types.tasks_extension import TaskCreated
from trunkline.protocol.types.tasks_founding import CreateFoundingTaskParams, CreateFoundingTaskResult
from trunkline.registry.tasks import TaskPolicy
from trunkline.registry.tools import ToolEntry
from trunkline.server.connection import Connection
from trunkline.server.owners import owner_of
from trunkline.server.tasks.line import caller_of
from trunkline.server.tasks.tasks import Begin, with_known
from trunkline.server.tasks.telling import Teller
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.keyed import Claim, Keyed

__all__ = [
    "become_task",
    "create_task",
    "created",
    "founding_record",
    "make_founding",
    "make_task",
    "record_of",
    "start_task",
]


async def start_task(
    entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams, work: Begin
) -> CreateTaskResult | TaskCreated:
    """Makes a task of a call; what the call is answered with once that is kept."""
    return created(call, await make_task(entry, connection, call, params, work))


def created(call: Running, record: TaskRecord) -> CreateTaskResult | TaskCreated:
    """What a call is answered with that is a task."""
    return CreateTaskResult(augmented(record, Task)) if call.envelope is None else extended(record, TaskCreated)


async def make_task(
    entry: ToolEntry,
    connection: Connection,
    call: Running,
    params: CallToolParams,
    work: Begin,
    *,
    claim: "Claim | None" = None,
) -> TaskRecord:
    """Makes a task of a call, which its key names then if it carries one."""
    record = record_of(entry, connection, call, params)
    if call.envelope is not None:
        return await _begin(connection, call, record, entry, work, claim=claim)
    connection.shared.tasks.augmenting.add(connection)
    record = replace(record, progress_token=call.token)
    return await _begin_and_tell(connection, call, record, entry, work, claim=claim)


async def create_task(
    entry: ToolEntry, connection: Connection, call: Running, asked: CreateFoundingTaskParams, work: Begin
) -> CreateFoundingTaskResult:
    """Makes a task as the founding documents have it: begun with when its maker knows of it."""
    return CreateFoundingTaskResult((await make_founding(entry, connection, call, asked, work)).task_id)


async def make_founding(
    entry: ToolEntry,
    connection: Connection,
    call: Running,
    asked: CreateFoundingTaskParams,
    work: Begin,
    *,
    claim: "Claim | None" = None,
) -> TaskRecord:
    """Makes such a task, which its key names then if it was asked for with one."""
    record = founding_record(entry, connection, call, asked)
    return await _begin_and_tell(connection, call, record, entry, work, claim=claim, pending=True)


async def become_task(
    entry: ToolEntry,
    connection: Connection,
    call: Running,
    params: CallToolParams,
    work: Begin,
    *,
    keyed: "Keyed | None" = None,
) -> None:
    """Makes a task of a call whose handler is at work, and cancels that: it is run again in the task, with all that is
    known by now."""
    answers, effects = call.round.known
    record = with_known(record_of(entry, connection, call, params), answers, effects)

    def make(claim: "Claim | None" = None) -> Awaitable[TaskRecord]:
        return _begin(connection, call, record, entry, work, claim=claim)

    kept = await (make() if keyed is None else connection.shared.ledger().hand_over(keyed, make))
    connection.answer(call, extended(kept, TaskCreated), "task")
    raise asyncio.CancelledError


def record_of(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams) -> TaskRecord:
    """A task that is yet to be kept, of a call."""
    asked: dict[str, Any] = {"name": params.name, "arguments": codec.as_written(params.arguments)}
    ttl = None if call.envelope is not None or params.task is None else params.task.ttl
    return connection.shared.tasks.new(
        owner_of(call.origin.principal),
        caller_of(connection, call),
        ("tools/call", codec.to_raw(asked)),
        entry.task or TaskPolicy(),
        ttl=None if ttl is None else ttl / 1000,
    )


def founding_record(
    entry: ToolEntry, connection: Connection, call: Running, asked: CreateFoundingTaskParams
) -> TaskRecord:
    """A task that is yet to be kept, as the founding documents have it."""
    record = record_of(entry, connection, call, CallToolParams(name=entry.name, arguments=asked.action.parameters))
    profile = connection.offer.profile
    limit = None if profile is None else round(profile.task_timeout * 1000)
    return replace(
        record,
        caller=replace(record.caller, founding=True),
        progress_token=asked.metadata.progress_token,
        timeout_ms=limit if asked.metadata.timeout is None else asked.metadata.timeout,
    )


async def _begin_and_tell(
    connection: Connection,
    call: Running,
    record: TaskRecord,
    entry: ToolEntry,
    work: Begin,
    *,
    claim: "Claim | None" = None,
    **how: Any,
) -> TaskRecord:
    """Begins a task, and tells its client what becomes of it."""
    teller = Teller(connection.shared, record, connection)
    try:
        return await _begin(connection, call, record, entry, work, claim=claim, teller=teller, **how)
    finally:
        teller.known_after(call)


async def _begin(
    connection: Connection,
    call: Running,
    record: TaskRecord,
    entry: ToolEntry,
    work: Begin,
    *,
    claim: "Claim | None" = None,
    **how: Any,
) -> TaskRecord:
    """Begins a task. If its caller waits no more for the answer, nobody will know of it, and it is cancelled; unless
    the line was lost of somebody who has a key to come back with."""
    shared, tasks = connection.shared, connection.shared.tasks
    beside = () if claim is None else (claim.of(record),)
    begun = tasks.begin(shared, record, entry, work, principal=call.origin.principal, beside=beside, **how)
    making = connection.loop.create_task(begun)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(tasks.disown if claim is None or not claim.keyed.lost else _unheard)
        raise


def _unheard(making: "asyncio.Task[TaskRecord]") -> None:
    """Whoever would have been told how that ended has gone."""
    if not making.cancelled():
        making.exception()
