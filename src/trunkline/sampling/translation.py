"""Parts of the translation from MCP to providers that the wire formats share."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct

from trunkline.errors import InvalidParams
from trunkline.protocol.types import (
    AudioContent,
    ContentBlock,
    CreateMessageParams,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    SamplingBlock,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from trunkline.wire import codec

__all__ = ["FlatResult", "ToolNames", "data_url", "flatten_result", "refuse_block", "tool_uses_in"]

_MAX_NAME: Final = 64  # characters of a tool name, the limit of OpenAI
_INVALID: Final = re.compile(r"[^a-zA-Z0-9_-]")


class ToolNames:
    """Names of tools in the alphabet that providers accept, and back.

    MCP allows other characters, such as dots, and longer names. A name that is valid already stays the same.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._sent: dict[str, str] = {}
        self._original: dict[str, str] = {}
        unique = dict.fromkeys(names)
        for name in sorted(unique, key=lambda name: _valid(name) != name):  # valid names keep theirs
            base, sent, number = _valid(name), _valid(name), 1
            while sent in self._original:
                number += 1
                suffix = f"_{number}"
                sent = base[: _MAX_NAME - len(suffix)] + suffix
            self._sent[name] = sent
            self._original[sent] = name

    @classmethod
    def of(cls, params: CreateMessageParams) -> "ToolNames":
        """Return the names of all tools that a request offers, or whose uses it contains."""
        used = [use.name for use in tool_uses_in(params)]
        return cls([*(tool.name for tool in params.tools or ()), *used])

    def to_provider(self, name: str) -> str:
        """Return the name for the provider."""
        return self._sent.get(name, name)

    def to_mcp(self, name: str) -> str:
        """Return the name of the tool that the provider named. A model may make up a name, which stays as it is."""
        return self._original.get(name, name)


def _valid(name: str) -> str:
    return _INVALID.sub("_", name)[:_MAX_NAME] or "_"


def tool_uses_in(params: CreateMessageParams) -> Iterator[ToolUseContent]:
    """Return the tool uses in the messages of a request."""
    return (block for message in params.messages for block in message.blocks if isinstance(block, ToolUseContent))


class FlatResult(Struct, frozen=True):
    """The result of a tool as text, and the images in it."""

    text: str
    images: Sequence[ImageContent] = ()


def flatten_result(result: ToolResultContent, provider: str) -> FlatResult:
    """Return the text and the images of a tool result. Raise `InvalidParams` for audio."""
    texts: list[str] = []
    images: list[ImageContent] = []
    for block in result.content:
        part = _flatten_block(block, provider)
        if isinstance(part, ImageContent):
            images.append(part)
        else:
            texts.append(part)
    if not texts and not images and result.structured_content is not UNSET:
        texts.append(codec.to_json(result.structured_content).decode())
    return FlatResult("\n".join(texts), images)


def _flatten_block(block: ContentBlock, provider: str) -> str | ImageContent:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return block
        case AudioContent():
            raise refuse_block(block, provider, "the result of a tool")
        case ResourceLink():
            return f"{block.name}: {block.uri}"
        case EmbeddedResource(resource=contents):
            if contents.text is not None:
                return contents.text
            if contents.blob is not None and (contents.mime_type or "").startswith("image/"):
                return ImageContent(contents.blob, contents.mime_type or "")
            return f"{contents.uri} ({contents.mime_type or 'binary data'})"


def refuse_block(block: SamplingBlock | ContentBlock, provider: str, where: str) -> InvalidParams:
    """Return the error for a content block that a provider does not accept."""
    kind: Any = block.__struct_config__.tag
    mime_type = f" ({block.mime_type})" if isinstance(block, ImageContent | AudioContent) else ""
    return InvalidParams(f"{provider} does not accept {kind}{mime_type} in {where}")


def data_url(image: ImageContent) -> str:
    """Return an image as a `data:` URL."""
    return f"data:{image.mime_type};base64,{image.data}"
