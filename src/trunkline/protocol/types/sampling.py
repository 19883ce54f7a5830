"""Sampling: a server asks the client's language model."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta

from trunkline.protocol.types.base import Item, Result, Wire
from trunkline.protocol.types.content import AudioContent, ContentBlock, ImageContent, Role, TextContent
from trunkline.protocol.types.tasks import TaskAugmentedParams
from trunkline.protocol.types.tools import Tool

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


class ToolUseContent(Item, tag_field="type", tag="tool_use"):
    """The model asks for a tool to be run."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultContent(Item, tag_field="type", tag="tool_result"):
    """What that tool gave back."""

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET  # None is a value here
    is_error: bool = False


SamplingBlock = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
"""A piece of content that a model reads or writes."""


class SamplingMessage(Item):
    """One message to or from a model."""

    role: Role
    content: SamplingBlock | list[SamplingBlock]


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
