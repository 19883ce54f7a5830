"""Prompts: message templates of a server."""

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
    """An argument of a prompt."""

    name: str
    description: str | None = None
    required: bool | None = None
    title: str | None = None


class Prompt(Item):
    """The definition of a prompt."""

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
        """The text of the content; empty if it is of another type."""
        return self.content.text if isinstance(self.content, TextContent) else ""


class ListPromptsResult(PaginatedResult):
    """A page of prompts."""

    prompts: list[Prompt]


class GetPromptParams(AskableParams):
    """Params of `prompts/get`."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result):
    """Result of `prompts/get`: the rendered messages."""

    messages: list[PromptMessage]
    description: str | None = None
