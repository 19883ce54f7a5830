"""What can be wrong with a request about a task."""

from typing import Any

from msgspec import UNSET

from trunkline.errors import InvalidParams, MethodNotFound, ProtocolError
from trunkline.wire.messages import ErrorObject

__all__ = ["TaskFailed", "TaskNotFound", "TaskSupportMismatch", "TooManyTasks"]


class TaskNotFound(InvalidParams):
    """A task that is not there, or is another's."""

    kind = "task_not_found"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id[:100]!r}", data={"taskId": task_id[:100]})


class TooManyTasks(ProtocolError):
    """A request for one task more than there may be."""

    kind = "maximum_concurrent_tasks_exceeded"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} tasks are at work, which is the most; try again later", data={"maximum": limit})


class TaskSupportMismatch(MethodNotFound):
    """A call of a tool that runs as a task only, or never as one, and is wanted otherwise (tasks, "Tool-Level
    Negotiation")."""

    def __init__(self, name: str, support: str) -> None:
        said = f"running tool {name!r} as a task is {support}"
        super().__init__("tools/call", message=said, data={"name": name, "taskSupport": support})


class TaskFailed(ProtocolError):
    """The error that a task has come to, told as it was kept."""

    def __init__(self, error: ErrorObject) -> None:
        data: Any = None if error.data is UNSET else error.data
        super().__init__(error.message)
        self.code = error.code
        self.data = UNSET if data is None else data
