"""Tools: functions that a server offers to models."""

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, field

from trunkline.errors.text import shortened
from trunkline.protocol.meta import RELATED_TASK, SERVER_INFO
from trunkline.protocol.types.base import Item, Result, TaskMetadata, Wire
from trunkline.protocol.types.content import ContentBlock, Icon, TextContent
from trunkline.protocol.types.multi_round import AskableParams
from trunkline.protocol.types.pagination import PaginatedResult

if TYPE_CHECKING:
    import typing_extensions

    T_co = typing_extensions.TypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)  # the default is for type checkers: Python supports it from 3.13 on

__all__ = [
    "NO_ARGUMENTS",
    "CallToolParams",
    "CallToolResult",
    "ListToolsResult",
    "Tool",
    "ToolAnnotations",
    "ToolExecution",
    "ToolResult",
]

NO_ARGUMENTS: Final = Raw(b"{}")
"""Empty arguments of a call."""

_OF_A_CONNECTION: Final = frozenset({SERVER_INFO, RELATED_TASK})  # metadata about the connection, not the result


class ToolAnnotations(Wire, gc=False):
    """Hints about the behaviour of a tool; untrusted unless the server is trusted."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolExecution(Wire, gc=False):
    """Execution options of a tool."""

    task_support: Literal["forbidden", "optional", "required"] | None = None


class Tool(Item):
    """The definition of a tool."""

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
    """Params of `tools/call`. The arguments stay raw until the tool's parameter types are known."""

    name: str
    arguments: Raw = NO_ARGUMENTS
    task: TaskMetadata | None = None


class CallToolResult(Result):
    """Result of `tools/call`."""

    content: list[ContentBlock]
    structured_content: Any = UNSET  # None is a value here
    is_error: bool = field(default_factory=bool)  # a factory's value is never omitted, and some peers require it


class ToolResult(Struct, Generic[T_co], frozen=True):
    """The result of a call, as a client returns it.

    `data` is the value itself: in the type that the caller requested, or rebuilt from the tool's output schema; without
    structured content, the text; None if `is_error`. `structured` and `content` are the received values. A tool can
    return a `ToolResult` to forward it.
    """

    content: list[ContentBlock]
    data: T_co
    structured: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = None
    has_structured: bool = False  # whether there is structured content, which may be null

    def __repr__(self) -> str:
        value = f"is_error=True, text={shortened(self.text)}" if self.is_error else f"data={shortened(self.data)}"
        return f"ToolResult({value}, content=[{', '.join(type(block).__name__ for block in self.content)}])"

    @property
    def text(self) -> str:
        """The text of all text blocks, one per line."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))

    def as_sent(self) -> CallToolResult:
        """Return the result to forward, without metadata about its connection."""
        kept = {key: value for key, value in (self.meta or {}).items() if key not in _OF_A_CONNECTION}
        structured = self.structured if self.has_structured or self.structured is not None else UNSET
        return CallToolResult(self.content, structured, self.is_error, meta=kept or None)
