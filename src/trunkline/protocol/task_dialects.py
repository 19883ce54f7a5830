"""Task dialects: the messages about tasks of 2025-11-25, of the extension of 2026-07-28, and of the founding documents.

All dialects present the same state machine (`tasks.py`), and every task can be presented in each of them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar, cast

from msgspec import UNSET, Raw, Struct, field

from trunkline.errors import InternalError, InvalidParams, ProtocolError
from trunkline.protocol.error_kinds import KINDS_BY_NAME, kind_of
from trunkline.protocol.meta import RELATED_TASK, TASK_PROGRESS, TOOL_ERROR
from trunkline.protocol.tasks import TaskRecord, TaskState
from trunkline.protocol.types.tasks import Task
from trunkline.protocol.types.tasks_extension import DetailedTask, ExtensionTask, TaskProgress
from trunkline.protocol.types.tasks_founding import FoundingAction, FoundingStatusParams, FoundingTask
from trunkline.protocol.types.tools import CallToolParams
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = [
    "DIALECTS",
    "Dialect",
    "DialectTraits",
    "check_cancellable",
    "dialect_of",
    "is_notable_change",
    "status_in",
    "task_outcome",
    "to_augmented_task",
    "to_detailed_task",
    "to_extension_task",
    "to_founding_status",
    "to_founding_task",
    "translate_error",
]


class Dialect(Enum):
    """A dialect of task messages."""

    AUGMENTED = "2025-11-25"  # the client may request a task
    EXTENSION = "2026-07-28"  # the server may answer with a task
    FOUNDING = "founding"  # tasks/create


class DialectTraits(NamedTuple):
    """The properties of a dialect."""

    statuses: Mapping[TaskState, str]
    failed_result: TaskState  # the state that a failed result is shown as
    cancels_ended: bool  # whether a finished task can be cancelled without an error
    result_waits: bool | None  # tasks/result: waits for the end, or is refused before it; None: no such method
    has_list: bool
    has_progress: bool  # whether `notifications/progress` reports progress of tasks


_FOUNDING_SYNONYMS: Final = {
    "idempotency_key_reused": "task_already_exists",
    "tool_dependency_failed": "task_dependency_failed",
}  # kinds with another name in the founding documents, for tasks
_RESERVED: Final = range(-32768, -31999)  # codes that applications must not use
T = TaskState
_STATUSES: Final = {
    T.PENDING: "working",
    T.WORKING: "working",
    T.INPUT_REQUIRED: "input_required",
    T.COMPLETED: "completed",
    T.FAILED: "failed",
    T.CANCELLED: "cancelled",
}
_FOUNDING: Final = {**_STATUSES, T.PENDING: "pending", T.WORKING: "processing", T.INPUT_REQUIRED: "processing"}
DIALECTS: Final[Mapping[Dialect, DialectTraits]] = {
    Dialect.AUGMENTED: DialectTraits(_STATUSES, T.FAILED, False, True, True, True),
    Dialect.EXTENSION: DialectTraits(_STATUSES, T.COMPLETED, True, None, False, False),
    Dialect.FOUNDING: DialectTraits(_FOUNDING, T.FAILED, False, False, True, True),
}


def dialect_of(record: TaskRecord) -> Dialect:
    """Return the dialect of the client that created a task."""
    if record.caller.modern:
        return Dialect.EXTENSION
    return Dialect.FOUNDING if record.caller.founding else Dialect.AUGMENTED


def status_in(record: TaskRecord, dialect: Dialect) -> str:
    """Return the status of a task in a dialect."""
    traits = DIALECTS[dialect]
    return traits.statuses[traits.failed_result if record.result_is_error else record.state]


def is_notable_change(before: TaskRecord, after: TaskRecord, dialect: Dialect) -> bool:
    """Return whether a change is sent to clients that watch a task: another status; and with the extension, other
    questions, or progress that the call requested."""
    if status_in(before, dialect) != status_in(after, dialect):
        return True
    if dialect is not Dialect.EXTENSION:
        return False
    asks = before.questions.keys() != after.questions.keys()
    return asks or (after.progress_token is not None and before.progress != after.progress)


def check_cancellable(record: TaskRecord, dialect: Dialect) -> bool:
    """Return whether the task can be cancelled. Raise if the dialect forbids cancelling a finished task."""
    if record.ended and not DIALECTS[dialect].cancels_ended:
        message = f"the task is already {status_in(record, dialect)}"
        raise _dialect_error(InvalidParams, message, "task_already_completed", dialect)
    return not record.ended


def task_outcome(record: TaskRecord, dialect: Dialect) -> Raw | ErrorObject | None:
    """Return the response to `tasks/result`: the result or the error of the original request. None: not yet, and the
    caller waits; raise if the dialect does not wait."""
    if not record.ended:
        if not DIALECTS[dialect].result_waits:
            raise _dialect_error(InternalError, "the task has no result yet", "task_result_not_ready", dialect)
        return None
    error = _failure(record) if dialect is Dialect.FOUNDING else record.error
    if error is not None:
        return error
    if record.result is UNSET:
        raise _dialect_error(InvalidParams, "the task was cancelled", "task_cancelled", dialect)
    if dialect is Dialect.FOUNDING:
        return codec.to_raw({"result": record.result})
    return _with_related_task(record.result, record.task_id)


# --- 2025-11-25 ---------------------------------------------------------------------------------------

A = TypeVar("A", bound=Task)
E = TypeVar("E", bound=ExtensionTask)


def to_augmented_task(record: TaskRecord, kind: type[A]) -> A:
    """Build a task of 2025-11-25, or a result or params with its members."""
    return kind(
        task_id=record.task_id,
        status=cast("Any", status_in(record, Dialect.AUGMENTED)),
        created_at=_iso(record.created_at),
        last_updated_at=_iso(record.updated_at),
        ttl=_ttl(record),
        status_message=record.message,
        poll_interval=record.poll_interval_ms,
    )


def _with_related_task(result: Raw, task_id: str) -> Raw:
    """Add the related task to the metadata of a result."""
    members = _read_members(result)
    meta = _read_meta(members["_meta"]) if "_meta" in members else {}
    return codec.to_raw({**members, "_meta": {**meta, RELATED_TASK: {"taskId": task_id}}})


_read_members: Final = codec.json_decoder(dict[str, Raw])
_read_meta: Final = codec.json_decoder(dict[str, Any])


# --- the extension ------------------------------------------------------------------------------------


def to_extension_task(record: TaskRecord, kind: type[E]) -> E:
    """Build a task of the extension, or a result with its members."""
    return kind(
        task_id=record.task_id,
        status=cast("Any", status_in(record, Dialect.EXTENSION)),
        created_at=_iso(record.created_at),
        last_updated_at=_iso(record.updated_at),
        ttl_ms=_ttl(record),
        status_message=record.message,
        poll_interval_ms=record.poll_interval_ms,
    )


def to_detailed_task(record: TaskRecord) -> DetailedTask:
    """Build a task with the members of its status, for results and notifications. Its result is the one that the
    original request would have had, with a result type."""
    task = to_extension_task(record, DetailedTask)
    task.input_requests = record.questions or None
    if record.result is not UNSET:
        task.result = codec.to_raw({"resultType": "complete", **_read_members(record.result)})
    task.error = record.error
    if record.progress is not None:
        task.meta = {TASK_PROGRESS: _progress(record)}
    return task


def _progress(record: TaskRecord) -> TaskProgress:
    """Return the progress of a task. The message belongs to the progress unless it describes the end of the task."""
    running = record.error is None and not record.result_is_error and record.state is not TaskState.CANCELLED
    return TaskProgress(cast("float", record.progress), record.total, record.message if running else None)


# --- the founding documents ---------------------------------------------------------------------------


def to_founding_task(record: TaskRecord) -> FoundingTask:
    """Build a task of the founding documents."""
    status, call = to_founding_status(record), _read_asked(record.params)
    return FoundingTask(
        task_id=record.task_id,
        status=status.status,
        action=FoundingAction(call.name, codec.original_json(call.arguments)),
        result=status.result,
        error=status.error,
        created_at=round(record.created_at * 1000),
        updated_at=round(record.updated_at * 1000),
    )


def to_founding_status(record: TaskRecord) -> FoundingStatusParams:
    """Build a status notification of the founding documents. A failed task has an error, even if it has a result."""
    return FoundingStatusParams(
        task_id=record.task_id,
        status=cast("Any", status_in(record, Dialect.FOUNDING)),
        result=None if record.result is UNSET else record.result,
        error=_failure(record),
    )


def _failure(record: TaskRecord) -> ErrorObject | None:
    """Return the error of a failed task; None if it has not failed. An error without a founding number gets that of
    failed tasks."""
    error = record.error
    if error is None:
        if record.result is UNSET or not record.result_is_error:
            return None
        kind = kind_of(_read_result(record.result).meta.get(TOOL_ERROR))
        message = record.message or "the task failed"
        error = ErrorObject(
            InternalError.code, message, {"kind": kind if kind in _FOUNDING_SYNONYMS else "task_failed"}
        )
    result = translate_error(Dialect.FOUNDING, error)
    if result.code != InternalError.code:
        return result
    data: Any = error.data
    known = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return translate_error(Dialect.FOUNDING, ErrorObject(error.code, error.message, {**known, "kind": "task_failed"}))


class _FailedResult(Struct):
    """The metadata of a failed result."""

    meta: dict[str, Any] = field(name="_meta", default_factory=dict[str, Any])


_read_asked: Final = codec.decoder(CallToolParams)
_read_result: Final = codec.json_decoder(_FailedResult)


def translate_error(dialect: Dialect, error: ErrorObject) -> ErrorObject:
    """Return an error with its code in a dialect. Codes of applications stay unchanged."""
    if error.code not in _RESERVED:
        return error
    kind = kind_of(error.data)
    row = (
        None
        if kind is None or dialect is not Dialect.FOUNDING
        else KINDS_BY_NAME.get(_FOUNDING_SYNONYMS.get(kind, kind))
    )
    return error if row is None else ErrorObject(row.founding_code, error.message, error.data)


def _dialect_error(fault: type[ProtocolError], message: str, kind: str, dialect: Dialect) -> ProtocolError:
    """Return an error of a kind, with its code in a dialect."""
    error = fault(message, data={"kind": kind})
    error.code = translate_error(dialect, ErrorObject(error.code, message, error.data)).code
    return error


# --- times --------------------------------------------------------------------------------------------


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ttl(record: TaskRecord) -> int | None:
    return None if record.expires_at is None else round((record.expires_at - record.created_at) * 1000)
