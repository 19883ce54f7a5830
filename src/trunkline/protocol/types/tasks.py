"""Tasks of 2025-11-25: requests whose result is fetched later."""

from typing import Any, Literal

from msgspec import Raw, field

from trunkline.protocol.types.base import Params, Result, Wire
from trunkline.protocol.types.pagination import PaginatedResult

__all__ = [
    "AnyTaskResult",
    "CancelTaskParams",
    "CancelTaskResult",
    "CreateTaskResult",
    "GetTaskParams",
    "GetTaskPayloadParams",
    "GetTaskPayloadResult",
    "GetTaskResult",
    "ListTasksResult",
    "RelatedTaskMetadata",
    "Task",
    "TaskStatus",
    "TaskStatusParams",
]

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""The status of a task."""


class RelatedTaskMetadata(Wire):
    """The task of a message, in its `_meta`."""

    task_id: str


class Task(Wire):
    """The current state of a task."""

    task_id: str
    status: TaskStatus
    created_at: str  # ISO 8601
    last_updated_at: str
    ttl: int | None  # ms; null: unlimited
    status_message: str | None = None
    poll_interval: int | None = None  # ms between two polls


class _TaskWithMeta(Task, kw_only=True):
    """A task whose members are members of a result or of params."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


AnyTaskResult = Raw
"""A task in the form of its revision."""


class CreateTaskResult(Result):
    """The response to a request that runs as a task."""

    task: Task


class GetTaskParams(Params):
    """Params of `tasks/get`."""

    task_id: str


class GetTaskResult(_TaskWithMeta):
    """Result of `tasks/get`."""


class GetTaskPayloadParams(Params):
    """Params of `tasks/result`, which waits for the result."""

    task_id: str


GetTaskPayloadResult = Raw
"""The result of the original request; its type depends on that request."""


class ListTasksResult(PaginatedResult):
    """A page of tasks."""

    tasks: list[Task]


class CancelTaskParams(Params):
    """Params of `tasks/cancel`."""

    task_id: str
    reason: str | None = None  # of the founding documents


class CancelTaskResult(_TaskWithMeta):
    """Result of `tasks/cancel`."""


class TaskStatusParams(_TaskWithMeta):
    """Params of `notifications/tasks/status`."""
