"""Tasks extension of the modern era: a server may answer a request with a task.

The encoder adds `resultType`: `task` for a `TaskCreated`, `complete` for other results.
"""

from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType, field

from trunkline.protocol.types.base import Number, Params, Wire
from trunkline.protocol.types.multi_round import InputRequest
from trunkline.protocol.types.tasks import TaskStatus
from trunkline.wire.messages import ErrorObject

__all__ = ["TASKS_EXTENSION", "DetailedTask", "ExtensionTask", "TaskCreated", "TaskProgress", "UpdateTaskParams"]

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"


class ExtensionTask(Wire):
    """The current state of a task."""

    task_id: str
    status: TaskStatus
    created_at: str  # ISO 8601
    last_updated_at: str
    ttl_ms: int | None  # null: unlimited
    status_message: str | None = None
    poll_interval_ms: int | None = None


class TaskCreated(ExtensionTask, kw_only=True):
    """The response to a request that runs as a task."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


class DetailedTask(ExtensionTask, kw_only=True):
    """A task with the members of its status: open questions, result or error."""

    input_requests: dict[str, InputRequest] | None = None
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)


class TaskProgress(Wire):
    """Progress of a task, under a key of our own in `_meta`, as the extension has no notification for it."""

    progress: Number
    total: Number | None = None
    message: str | None = None


class UpdateTaskParams(Params):
    """Params of `tasks/update`: answers to questions of a task."""

    task_id: str
    input_responses: dict[str, Raw]
