"""Sampling: a server asks the client's language model."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, cast

from msgspec import UNSET, Meta

from trunkline.protocol.types.base import Item, Result, Wire
from trunkline.protocol.types.content import AudioContent, ContentBlock, ImageContent, Role, TextContent
from trunkline.protocol.types.tasks import TaskAugmentedParams
from trunkline.protocol.types.tools import CallToolResult, Tool, ToolResult
from trunkline.wire import codec

__all__ = [
    "CreateMessageParams",
    "CreateMessageResult",
    "ModelHint",
    "ModelPreferences",
    "SamplingBlock",
    "SamplingMessage",
    "ToolChoice",
    "ToolResultContent",
    "ToolUseContent",
]

_Priority = Annotated[float, Meta(ge=0, le=1)]
_REASONS: Final = {
    "end_turn": "endTurn",
    "end_of_turn": "endTurn",
    "stop_sequence": "stopSequence",
    "max_tokens": "maxTokens",
    "tool_use": "toolUse",
}


class ModelHint(Wire):
    """A wish for a model, by a part of its name."""

    name: str | None = None


class ModelPreferences(Wire):
    """Which model the server would like; the client decides."""

    hints: list[ModelHint] | None = None
    cost_priority: _Priority | None = None
    speed_priority: _Priority | None = None
    intelligence_priority: _Priority | None = None


class ToolChoice(Wire):
    """Whether the model may, must or must not use tools."""

    mode: Literal["auto", "required", "none"] | None = None


class ToolResultContent(Item, tag_field="type", tag="tool_result"):
    """What a tool that the model asked for gave back."""

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET  # None is a value here
    is_error: bool = False


class ToolUseContent(Item, tag_field="type", tag="tool_use"):
    """The model asks for a tool to be run."""

    id: str
    name: str
    input: dict[str, Any]

    def result(self, value: Any, *, is_error: bool = False) -> ToolResultContent:
        """What the tool gave back: a whole result, blocks of content, text, or any value, which goes as JSON."""
        if isinstance(value, ToolResult):
            value = value.as_sent()
        if isinstance(value, CallToolResult):
            return ToolResultContent(self.id, value.content, value.structured_content, value.is_error or is_error)
        if isinstance(value, str):
            return ToolResultContent(self.id, [TextContent(value)], is_error=is_error)
        blocks = cast("list[Any]", value if isinstance(value, list) else [value])
        if blocks and all(isinstance(block, ContentBlock) for block in blocks):
            return ToolResultContent(self.id, blocks, is_error=is_error)
        return ToolResultContent(self.id, [TextContent(codec.to_json(value).decode())], is_error=is_error)


SamplingBlock = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
"""A piece of content that a model reads or writes."""


class SamplingMessage(Item):
    """One message to or from a model."""

    role: Role
    content: SamplingBlock | list[SamplingBlock]

    @property
    def blocks(self) -> list[SamplingBlock]:
        """What it holds, as a list in any case."""
        return self.content if isinstance(self.content, list) else [self.content]

    @property
    def text(self) -> str:
        """The text of its text blocks, one per line; empty if it has none."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextContent))

    @classmethod
    def of_results(cls, results: Iterable[ToolResultContent]) -> "SamplingMessage":
        """The user's message that answers what the model asked of tools; it holds nothing else."""
        return cls("user", list(results))


class CreateMessageParams(TaskAugmentedParams):
    """Asks for the next message."""

    messages: list[SamplingMessage]
    max_tokens: int
    system_prompt: str | None = None
    model_preferences: ModelPreferences | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class CreateMessageResult(Result):
    """The message that a model wrote."""

    role: Role
    content: SamplingBlock | list[SamplingBlock]
    model: str
    stop_reason: str | None = None  # endTurn, stopSequence, maxTokens, toolUse, or the model's own

    def __post_init__(self) -> None:
        """Says the usual reasons in the specification's words, however the model says them."""
        if self.stop_reason in _REASONS:
            self.stop_reason = _REASONS[self.stop_reason]

    @property
    def message(self) -> SamplingMessage:
        """The message itself, to be put after those that led to it."""
        return SamplingMessage(self.role, self.content)

    @property
    def text(self) -> str:
        """The text of its text blocks, one per line; empty if it has none."""
        return self.message.text

    @property
    def tool_uses(self) -> list[ToolUseContent]:
        """What the model asks of tools; empty when it is done."""
        return [block for block in self.message.blocks if isinstance(block, ToolUseContent)]
