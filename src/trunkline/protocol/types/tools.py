"""Tools: functions that a server offers."""

from typing import Any, Final, Literal

from msgspec import UNSET, Raw, field

from trunkline.protocol.types.base import Item, Result, Wire
from trunkline.protocol.types.content import ContentBlock, Icon
from trunkline.protocol.types.pagination import PaginatedResult
from trunkline.protocol.types.rounds import AskableParams
from trunkline.protocol.types.tasks import TaskMetadata

__all__ = [
    "NO_ARGUMENTS",
    "CallToolParams",
    "CallToolResult",
    "ListToolsResult",
    "Tool",
    "ToolAnnotations",
    "ToolExecution",
]

NO_ARGUMENTS: Final = Raw(b"{}")
"""The arguments of a call that has none."""


class ToolAnnotations(Wire, gc=False):
    """Hints on how a tool behaves; not to be trusted unless the server is."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolExecution(Wire, gc=False):
    """How a tool can be run."""

    task_support: Literal["forbidden", "optional", "required"] | None = None


class Tool(Item):
    """A tool, as a server tells about it."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    title: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    execution: ToolExecution | None = None
    icons: list[Icon] | None = None


class ListToolsResult(PaginatedResult):
    """A page of tools."""

    tools: list[Tool]


class CallToolParams(AskableParams):
    """Calls a tool. The arguments stay as they were read until the tool's own type is known."""

    name: str
    arguments: Raw = NO_ARGUMENTS
    task: TaskMetadata | None = None


class CallToolResult(Result):
    """What a tool gave back, or how it failed."""

    content: list[ContentBlock]
    structured_content: Any = UNSET  # None is a value here
    is_error: bool = field(default_factory=bool)  # a factory's value is never left out, and peers look for this one
