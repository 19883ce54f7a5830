"""Tasks of the founding documents: created by a method of their own, with times in milliseconds since 1970."""

from typing import Any, Literal

from msgspec import Raw, Struct, field

from trunkline.protocol.types.base import Params, Result, Wire
from trunkline.wire.messages import ErrorObject

__all__ = [
    "CreateFoundingTaskParams",
    "CreateFoundingTaskResult",
    "FoundingAction",
    "FoundingMetadata",
    "FoundingStatus",
    "FoundingStatusParams",
    "FoundingTask",
    "GetFoundingTaskResult",
    "ListFoundingTasksResult",
]

FoundingStatus = Literal["pending", "processing", "completed", "failed", "cancelled"]
"""The status of a task."""


class FoundingAction(Wire):
    """The action of a task."""

    type: str
    parameters: Raw = Raw(b"{}")


class FoundingMetadata(Wire):
    """Options of a task."""

    progress_token: int | str | None = None
    timeout: int | None = None  # ms


class CreateFoundingTaskParams(Params):
    """Params of `tasks/create`."""

    action: FoundingAction
    metadata: FoundingMetadata = field(default_factory=FoundingMetadata)


class CreateFoundingTaskResult(Result):
    """Result of `tasks/create`."""

    task_id: str


class FoundingTask(Struct, rename="camel"):
    """The current state of a task. All members are present; unknown ones are null."""

    task_id: str
    status: FoundingStatus
    action: FoundingAction
    result: Any
    error: ErrorObject | None
    created_at: int  # ms since 1970
    updated_at: int


class GetFoundingTaskResult(Result):
    """Result of `tasks/get`."""

    task: FoundingTask


class ListFoundingTasksResult(Result):
    """A page of tasks."""

    tasks: list[FoundingTask]
    cursor: str | None = None  # cursor of the next page


class FoundingStatusParams(Struct, rename="camel"):
    """Params of the status notification."""

    task_id: str
    status: FoundingStatus
    result: Any
    error: ErrorObject | None
