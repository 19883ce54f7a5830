"""Errors of task requests."""

from typing import Any

from msgspec import UNSET

from trunkline.errors import InvalidParams, MethodNotFound, ProtocolError
from trunkline.wire.messages import ErrorObject

__all__ = ["TaskFailed", "TaskNotFound", "TaskSupportMismatch", "TooManyTasks"]


class TaskNotFound(InvalidParams):
    """The task does not exist, or belongs to another principal."""

    kind = "task_not_found"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id[:100]!r}", data={"taskId": task_id[:100]})


class TooManyTasks(ProtocolError):
    """The limit of concurrent tasks is reached."""

    kind = "maximum_concurrent_tasks_exceeded"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the limit of {limit} concurrent tasks is reached; try again later", data={"maximum": limit})


class TaskSupportMismatch(MethodNotFound):
    """A tool that runs only as a task, or never as one, was called the other way (tasks, "Tool-Level Negotiation")."""

    def __init__(self, name: str, support: str) -> None:
        text = f"running tool {name!r} as a task is {support}"
        super().__init__("tools/call", message=text, data={"name": name, "taskSupport": support})


class TaskFailed(ProtocolError):
    """The stored error of a failed task, raised with its own code and data."""

    def __init__(self, error: ErrorObject) -> None:
        data: Any = None if error.data is UNSET else error.data
        super().__init__(error.message)
        self.code = error.code
        self.data = UNSET if data is None else data
