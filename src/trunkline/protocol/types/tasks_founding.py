"""Tasks as the founding documents have them: made by a method of their own, with times in milliseconds since 1970."""

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
"""Where a task stands."""


class FoundingAction(Wire):
    """What a task is to do."""

    type: str
    parameters: Raw = Raw(b"{}")


class FoundingMetadata(Wire):
    """How a task is to be done."""

    progress_token: int | str | None = None
    timeout: int | None = None  # ms


class CreateFoundingTaskParams(Params):
    """Asks for a task."""

    action: FoundingAction
    metadata: FoundingMetadata = field(default_factory=FoundingMetadata)


class CreateFoundingTaskResult(Result):
    """The task that was made."""

    task_id: str


class FoundingTask(Struct, rename="camel"):
    """A task, as it stands now. All members are there; what is not known yet is null."""

    task_id: str
    status: FoundingStatus
    action: FoundingAction
    result: Any
    error: ErrorObject | None
    created_at: int  # ms since 1970
    updated_at: int


class GetFoundingTaskResult(Result):
    """How a task stands."""

    task: FoundingTask


class ListFoundingTasksResult(Result):
    """A page of tasks."""

    tasks: list[FoundingTask]
    cursor: str | None = None  # where the next page begins


class FoundingStatusParams(Struct, rename="camel"):
    """Tells that a task now stands otherwise."""

    task_id: str
    status: FoundingStatus
    result: Any
    error: ErrorObject | None
