"""Tasks in responses of both dialects, and the decoding of tool results that may be tasks."""

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from trunkline.client.multi_round import RawInputRequest
from trunkline.client.results import decode_result
from trunkline.errors import BadAnswer
from trunkline.protocol import lenient
from trunkline.protocol.inflight import OutgoingRequest
from trunkline.protocol.meta import TASK_PROGRESS
from trunkline.protocol.types import CallToolResult, CreateTaskResult, TaskStatus
from trunkline.protocol.types.tasks_extension import TaskCreated, TaskProgress
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = [
    "FINAL_STATUSES",
    "TASK_RESULT_TYPE",
    "TaskSnapshot",
    "TaskStarted",
    "decode_call_result",
    "decode_snapshot",
    "decode_task_result",
    "is_empty_object",
]

TASK_RESULT_TYPE: Final = "task"
"""The `resultType` of a task, in the modern era."""

FINAL_STATUSES: Final = frozenset({"completed", "failed", "cancelled"})
_DEFAULT_POLL: Final = 1.0  # seconds, if the server states no interval
_MIN_POLL: Final = 0.05  # seconds; an interval of 0 would be a flood of requests
_MAX_POLL: Final = 60.0  # seconds


class _TaskMeta(Struct):
    progress: TaskProgress | None = field(name=TASK_PROGRESS, default=None)


class TaskSnapshot(Struct, rename="camel"):
    """A task as described by the latest response. Times are milliseconds; from 2026-07-28 on their names say so."""

    task_id: str
    status: TaskStatus = "working"
    status_message: str | None = None
    ttl: float | None = None
    ttl_ms: float | None = None
    poll_interval: float | None = None
    poll_interval_ms: float | None = None
    input_requests: dict[str, RawInputRequest] | None = None
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None
    meta: Any = field(name="_meta", default=None)

    @property
    def progress(self) -> TaskProgress | None:
        """The progress of the task, if the server reports it."""
        try:
            return msgspec.convert(self.meta, _TaskMeta).progress
        except msgspec.ValidationError:
            return None

    @property
    def poll_seconds(self) -> float:
        """Seconds until the next poll."""
        interval = self.poll_interval if self.poll_interval_ms is None else self.poll_interval_ms
        if interval is None or interval < 0:
            return _DEFAULT_POLL
        return min(max(interval / 1000, _MIN_POLL), _MAX_POLL)

    @property
    def retention_seconds(self) -> float | None:
        """Seconds that the server retains the task, from its creation; None if unlimited or unknown."""
        ttl = self.ttl if self.ttl_ms is None else self.ttl_ms
        return None if ttl is None else ttl / 1000


class TaskStarted(NamedTuple):
    """A tool call that was answered with a task."""

    snapshot: TaskSnapshot
    request: OutgoingRequest  # its progress is delivered while a reference to it exists


class _Head(Struct):
    task: Raw | UnsetType = UNSET


_decode_result: Final = codec.json_decoder(CallToolResult)
_decode_head: Final = codec.decoder(_Head)
_decode_snapshot: Final = codec.decoder(TaskSnapshot)
_decode_created: Final = codec.decoder(TaskCreated)
_decode_augmented: Final = codec.decoder(CreateTaskResult)


def decode_call_result(raw: Any, request: OutgoingRequest, *, is_task: bool) -> CallToolResult | TaskStarted:
    """Decode the result of a tool call; `is_task` if its type says that it is a task. Raises `BadAnswer`."""
    if not is_task and not request.as_task:
        try:
            return _decode_result(raw)
        except (codec.DecodeError, RecursionError):
            return decode_result("tools/call", raw)  # which accepts more
    try:
        if is_task:
            _decode_created(raw)  # validate the required fields
            return TaskStarted(_decode_snapshot(raw), request)
        if request.as_task and (task := _decode_head(raw).task) is not UNSET:
            _decode_augmented(raw)
            return TaskStarted(_decode_snapshot(task), request)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer("tools/call", str(error)) from None
    return decode_result("tools/call", raw)


def decode_snapshot(raw: Any) -> TaskSnapshot:
    """Decode the description of a task. Raises `BadAnswer`."""
    try:
        return _decode_snapshot(raw)
    except (codec.DecodeError, RecursionError) as error:
        seen = lenient.read_task(TaskSnapshot, raw)
        if seen is None:
            raise BadAnswer("tasks/get", str(error)) from None
        return seen


def is_empty_object(raw: Any) -> bool:
    """Return whether a result is an empty object, as some servers send for `tasks/cancel`."""
    return bytes(raw).strip() == b"{}"


def decode_task_result(raw: Any) -> CallToolResult:
    """Decode the tool result of a task. Raises `BadAnswer`."""
    encoded = b"null" if raw is UNSET else raw
    try:
        return lenient.read_task_result(encoded)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer("tools/call", codec.explain_decode_error(error, encoded)) from None
