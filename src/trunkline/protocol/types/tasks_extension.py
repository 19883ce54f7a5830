"""Tasks of the modern era: an extension, by which a server answers a request with a task instead of its result.

`resultType` is put on when a result goes out: `task` on a `TaskCreated`, `complete` on every other.
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
    """A task, as it stands now."""

    task_id: str
    status: TaskStatus
    created_at: str  # ISO 8601
    last_updated_at: str
    ttl_ms: int | None  # null for ever
    status_message: str | None = None
    poll_interval_ms: int | None = None


class TaskCreated(ExtensionTask, kw_only=True):
    """The request was accepted and runs as this task."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


class DetailedTask(ExtensionTask, kw_only=True):
    """How a task stands, with what its status calls for: the questions that are open, its result or its error."""

    input_requests: dict[str, InputRequest] | None = None
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)


class TaskProgress(Wire):
    """How far a task has come: under a key of our own in `_meta`, as the extension has no notification for it."""

    progress: Number
    total: Number | None = None
    message: str | None = None


class UpdateTaskParams(Params):
    """Answers questions of a task."""

    task_id: str
    input_responses: dict[str, Raw]
