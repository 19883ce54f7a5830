"""Tasks: requests whose result is fetched later."""

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
    "TaskAugmentedParams",
    "TaskMetadata",
    "TaskStatus",
    "TaskStatusParams",
]

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""Where a task stands."""


class TaskMetadata(Wire):
    """The wish to have a request run as a task."""

    ttl: int | None = None  # ms that the result should be kept


class RelatedTaskMetadata(Wire):
    """Names, under `_meta`, the task that a message belongs to."""

    task_id: str


class TaskAugmentedParams(Params, kw_only=True):
    """Parameters of a request that may run as a task."""

    task: TaskMetadata | None = None


class Task(Wire):
    """A task, as it stands now."""

    task_id: str
    status: TaskStatus
    created_at: str  # ISO 8601
    last_updated_at: str
    ttl: int | None  # ms; null for ever
    status_message: str | None = None
    poll_interval: int | None = None  # ms between two questions


class _TaskWithMeta(Task, kw_only=True):
    """A task whose members stand directly in a result or in params."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


AnyTaskResult = Raw
"""How a task stands, in the shape that the revision has for it."""


class CreateTaskResult(Result):
    """The request was accepted and runs as this task."""

    task: Task


class GetTaskParams(Params):
    """Asks how a task stands."""

    task_id: str


class GetTaskResult(_TaskWithMeta):
    """How the task stands."""


class GetTaskPayloadParams(Params):
    """Asks for the result of a task, and waits for it."""

    task_id: str


GetTaskPayloadResult = Raw
"""The result that the request would have had: its type is known to whoever made the request."""


class ListTasksResult(PaginatedResult):
    """A page of tasks."""

    tasks: list[Task]


class CancelTaskParams(Params):
    """Ends a task."""

    task_id: str
    reason: str | None = None  # as the founding documents have it


class CancelTaskResult(_TaskWithMeta):
    """How the cancelled task stands."""


class TaskStatusParams(_TaskWithMeta):
    """Tells that a task now stands otherwise."""
