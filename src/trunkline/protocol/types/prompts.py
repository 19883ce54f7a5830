"""Prompts: messages that a server has ready."""

from trunkline.protocol.types.base import Item, Result, Wire
from trunkline.protocol.types.content import ContentBlock, Icon, Role, TextContent
from trunkline.protocol.types.multi_round import AskableParams
from trunkline.protocol.types.pagination import PaginatedResult

__all__ = [
    "GetPromptParams",
    "GetPromptResult",
    "ListPromptsResult",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
]


class PromptArgument(Wire):
    """What a prompt wants to be told."""

    name: str
    description: str | None = None
    required: bool | None = None
    title: str | None = None


class Prompt(Item):
    """A prompt, as a server tells about it."""

    name: str
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    title: str | None = None
    icons: list[Icon] | None = None


class PromptMessage(Wire):
    """One message of a prompt."""

    role: Role
    content: ContentBlock

    @property
    def text(self) -> str:
        """Its text; empty if its content is of another kind."""
        return self.content.text if isinstance(self.content, TextContent) else ""


class ListPromptsResult(PaginatedResult):
    """A page of prompts."""

    prompts: list[Prompt]


class GetPromptParams(AskableParams):
    """Asks for a prompt, filled in."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result):
    """The prompt, filled in."""

    messages: list[PromptMessage]
    description: str | None = None
