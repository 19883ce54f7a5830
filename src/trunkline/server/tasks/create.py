"""Whether a call runs as a task: what its tool allows, what its client wants and what both can do.

A call of a tool that becomes a task.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from trunkline.errors import MissingCapability, NotNow, StoreUnavailable
from trunkline.protocol.capabilities import declared
from trunkline.protocol.extensions import agreed
from trunkline.protocol.inflight import Running
from trunkline.protocol.revisions import Revision
from trunkline.protocol.task_dialects import Dialect, augmented, extended
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import CallToolParams, CreateTaskResult, Task
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION, TaskCreated
from trunkline.protocol.types.tasks_founding import CreateFoundingTaskParams, CreateFoundingTaskResult
from trunkline.registry.tasks import TaskPolicy
from trunkline.registry.tools import ToolEntry
from trunkline.server.access.owner_id import owner_of
from trunkline.server.connection import Connection
from trunkline.server.tasks.detached_peer import caller_of
from trunkline.server.tasks.errors import TaskSupportMismatch
from trunkline.server.tasks.notify import Teller
from trunkline.server.tasks.service import Begin, with_known
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.idempotency.key import Claim, Keyed


__all__ = [
    "Making",
    "become_task",
    "create_task",
    "created",
    "founding_record",
    "has_extension",
    "make_founding",
    "make_task",
    "record_of",
    "require_extension",
    "runs_as",
    "start_task",
]

_PATH: Final = f"extensions.{TASKS_EXTENSION}"


def runs_as(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams) -> Dialect | None:
    """How a call is told of its task; None if it is answered with its result. Raises if its tool cannot be called like
    that."""
    if call.envelope is not None:
        return _by_extension(entry, connection, call)
    policy = entry.task
    if params.task is not None and _augments(connection):
        if policy is None:
            raise TaskSupportMismatch(entry.name, "forbidden")
        return Dialect.AUGMENTED
    if policy is not None and policy.support == "required":
        raise TaskSupportMismatch(entry.name, "required")
    return None


def _augments(connection: Connection) -> bool:
    """Whether requests may ask to run as a task, in this conversation; if not, nobody looks at what they ask."""
    session = connection.session
    spoken = session.revision is Revision.V2025_11_25 and session.negotiated is not None
    return spoken and declared(session.negotiated.server if session.negotiated else {}, "tasks.requests.tools.call")


def _by_extension(entry: ToolEntry, connection: Connection, call: Running) -> Dialect | None:
    if entry.task is None:
        return None
    if has_extension(connection, call):
        return Dialect.EXTENSION
    if entry.task.support == "required":
        raise MissingCapability(_PATH)
    return None


def has_extension(connection: Connection, call: Running) -> bool:
    """Whether whoever sent a request of the modern era knows of tasks, as that very request says."""
    said = call.envelope
    return said is not None and agreed(TASKS_EXTENSION, connection.offer.capabilities(), said.capabilities) is not None


def require_extension(connection: Connection, call: Running) -> None:
    """Raises `MissingCapability` if it does not."""
    if not has_extension(connection, call):
        raise MissingCapability(_PATH)


class Making(NamedTuple):
    """A call that is to be a task: of which tool, on whose behalf, and what its work is."""

    entry: ToolEntry
    connection: Connection
    call: Running
    work: Begin


async def start_task(making: Making, params: CallToolParams) -> CreateTaskResult | TaskCreated:
    """Makes a task of a call; what the call is answered with once that is kept."""
    return created(making.call, await make_task(making, params))


def created(call: Running, record: TaskRecord) -> CreateTaskResult | TaskCreated:
    """What a call is answered with that is a task."""
    return CreateTaskResult(augmented(record, Task)) if call.envelope is None else extended(record, TaskCreated)


async def make_task(making: Making, params: CallToolParams, claim: "Claim | None" = None) -> TaskRecord:
    """Makes a task of a call, which its key names then if it carries one."""
    connection, record = making.connection, record_of(making, params)
    if making.call.envelope is not None:
        return await _begin(making, record, claim)
    connection.shared.tasks.augmenting.add(connection)
    return await _begin(making, record, claim, told=True)


async def create_task(making: Making, asked: CreateFoundingTaskParams) -> CreateFoundingTaskResult:
    """Makes a task as the founding documents have it: begun with when its maker knows of it."""
    return CreateFoundingTaskResult((await make_founding(making, asked)).task_id)


async def make_founding(making: Making, asked: CreateFoundingTaskParams, claim: "Claim | None" = None) -> TaskRecord:
    """Makes such a task, which its key names then if it was asked for with one."""
    return await _begin(making, founding_record(making, asked), claim, told=True, pending=True)


async def become_task(making: Making, params: CallToolParams, keyed: "Keyed | None" = None) -> None:
    """Makes a task of a call whose handler is at work, and cancels that: it is run again in the task, with all that is
    known by now."""
    connection, call = making.connection, making.call
    answers, effects = call.round.known
    record = with_known(record_of(making, params), answers, effects)
    make = partial(_begin, making, record)
    kept = await (make() if keyed is None else connection.shared.ledger().hand_over(keyed, make))
    connection.answer(call, extended(kept, TaskCreated), "task")
    raise asyncio.CancelledError


def record_of(making: Making, params: CallToolParams) -> TaskRecord:
    """A task that is yet to be kept, of a call."""
    entry, connection, call, _ = making
    asked: dict[str, Any] = {"name": params.name, "arguments": codec.as_written(params.arguments)}
    ttl = None if call.envelope is not None or params.task is None else params.task.ttl
    record = connection.shared.tasks.new(
        owner_of(call.origin.principal),
        caller_of(connection, call),
        ("tools/call", codec.to_raw(asked)),
        entry.task or TaskPolicy(),
        ttl=None if ttl is None else ttl / 1000,
    )
    return replace(record, progress_token=call.token)


def founding_record(making: Making, asked: CreateFoundingTaskParams) -> TaskRecord:
    """A task that is yet to be kept, as the founding documents have it."""
    record = record_of(making, CallToolParams(name=making.entry.name, arguments=asked.action.parameters))
    profile = making.connection.offer.profile
    limit = None if profile is None else round(profile.task_timeout * 1000)
    return replace(
        record,
        caller=replace(record.caller, founding=True),
        progress_token=asked.metadata.progress_token,
        timeout_ms=limit if asked.metadata.timeout is None else asked.metadata.timeout,
    )


async def _begin(
    making: Making,
    record: TaskRecord,
    claim: "Claim | None" = None,
    *,
    told: bool = False,
    pending: bool = False,
) -> TaskRecord:
    """Begins a task; `told`: its client is, of what becomes of it. If its caller waits no more for the answer, nobody
    will know of it, and it is cancelled; unless the line was lost of somebody who has a key to come back with."""
    entry, connection, call, work = making
    shared, tasks = connection.shared, connection.shared.tasks
    teller = Teller(shared, record, connection) if told else None
    begun = tasks.begin(
        shared,
        record,
        entry,
        work,
        principal=call.origin.principal,
        exposes_errors=connection.exposes_errors,
        beside=() if claim is None else (claim.of(record),),
        teller=teller,
        pending=pending,
    )
    beginning = connection.loop.create_task(begun)
    try:
        return await asyncio.shield(beginning)
    except StoreUnavailable as error:
        if claim is not None:
            raise
        raise NotNow("the store cannot be reached, so the task was not begun; try again later") from error
    except asyncio.CancelledError:
        beginning.add_done_callback(tasks.disown if claim is None or not claim.keyed.lost else _unheard)
        raise
    finally:
        if teller is not None:
            teller.known_after(call)


def _unheard(beginning: "asyncio.Task[TaskRecord]") -> None:
    """Whoever would have been told how that ended has gone."""
    if not beginning.cancelled():
        beginning.exception()
