"""Errors of task requests."""

from typing import Final

from msgspec import UNSET

from trunkline.errors import InvalidParams, MethodNotFound, ProtocolError, TrunklineError
from trunkline.wire.messages import ErrorObject

__all__ = ["TaskFailed", "TaskNotFound", "TaskSupportMismatch", "TaskUnconfirmed", "TooManyTasks", "WorkCancelled"]

_RETRY_AFTER_MS: Final = 1000  # a guess: the server does not know how long the running tasks take


class TaskNotFound(InvalidParams):
    """The task does not exist, or belongs to another principal."""

    kind = "task_not_found"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id[:100]!r}", data={"taskId": task_id[:100]})


class TooManyTasks(ProtocolError):
    """The limit of concurrent tasks is reached."""

    kind = "maximum_concurrent_tasks_exceeded"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the limit of {limit} concurrent tasks is reached; try again later",
            data={"maximum": limit, "retryAfterMs": _RETRY_AFTER_MS},
        )


class TaskUnconfirmed(ProtocolError):
    """The store has not confirmed a new task without an idempotency key, so the task may exist, and may run. As for any
    interrupted call, the client may retry if the tool is idempotent."""

    kind = "outcome_unknown"

    def __init__(self) -> None:
        text = "the store has not confirmed the task, which may or may not be executed"
        super().__init__(text, data={"interrupted": True})


class TaskSupportMismatch(MethodNotFound):
    """A tool that runs only as a task, or never as one, was called the other way (tasks, "Tool-Level Negotiation")."""

    def __init__(self, name: str, support: str) -> None:
        text = f"running tool {name!r} as a task is {support}"
        super().__init__("tools/call", message=text, data={"name": name, "taskSupport": support})


class WorkCancelled(TrunklineError):
    """Raised by the work of a task that another server has cancelled: the task is cancelled then, and has not
    failed."""


class TaskFailed(ProtocolError):
    """The stored error of a failed task, raised with its own code and data."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.data = UNSET if error.data is None else error.data
