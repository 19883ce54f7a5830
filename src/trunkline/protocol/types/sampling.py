"""Sampling: requests of a server to the client's language model."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, cast

from msgspec import UNSET, Meta

from trunkline.protocol.types.base import Item, Result, TaskAugmentedParams, Wire
from trunkline.protocol.types.content import AudioContent, ContentBlock, ImageContent, Role, TextContent
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
    """A preferred model, by a part of its name."""

    name: str | None = None


class ModelPreferences(Wire):
    """The model preferences of a server; the client decides."""

    hints: list[ModelHint] | None = None
    cost_priority: _Priority | None = None
    speed_priority: _Priority | None = None
    intelligence_priority: _Priority | None = None


class ToolChoice(Wire):
    """Whether the model may, must or must not use tools."""

    mode: Literal["auto", "required", "none"] | None = None


class ToolResultContent(Item, tag_field="type", tag="tool_result"):
    """The result of a tool that the model used."""

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET  # None is a value here
    is_error: bool = False


class ToolUseContent(Item, tag_field="type", tag="tool_use"):
    """A tool call of the model."""

    id: str
    name: str
    input: dict[str, Any]

    def result(self, value: Any, *, is_error: bool = False) -> ToolResultContent:
        """Build the result of the tool call: from a whole result, content blocks, text, or any value, which becomes
        JSON."""
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
"""A content block of a sampling message."""


class SamplingMessage(Item):
    """A message to or from a model."""

    role: Role
    content: SamplingBlock | list[SamplingBlock]

    @property
    def blocks(self) -> list[SamplingBlock]:
        """The content, always as a list."""
        return self.content if isinstance(self.content, list) else [self.content]

    @property
    def text(self) -> str:
        """The text of its text blocks, one per line; empty if it has none."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextContent))

    @classmethod
    def of_results(cls, results: Iterable[ToolResultContent]) -> "SamplingMessage":
        """Build the user message with the results of all tool calls."""
        return cls("user", list(results))


class CreateMessageParams(TaskAugmentedParams):
    """Params of `sampling/createMessage`."""

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
    """Result of `sampling/createMessage`."""

    role: Role
    content: SamplingBlock | list[SamplingBlock]
    model: str
    stop_reason: str | None = None  # endTurn, stopSequence, maxTokens, toolUse, or specific to the model

    def __post_init__(self) -> None:
        """Normalize common stop reasons to those of the specification."""
        if self.stop_reason in _REASONS:
            self.stop_reason = _REASONS[self.stop_reason]

    @property
    def message(self) -> SamplingMessage:
        """The message, to append to the conversation."""
        return SamplingMessage(self.role, self.content)

    @property
    def text(self) -> str:
        """The text of its text blocks, one per line; empty if it has none."""
        return self.message.text

    @property
    def tool_uses(self) -> list[ToolUseContent]:
        """The tool calls of the model; empty when it is done."""
        return [block for block in self.message.blocks if isinstance(block, ToolUseContent)]
