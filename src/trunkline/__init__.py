"""Trunkline: the line between AI applications and their tools. An SDK and runtime for the Model Context Protocol."""

from trunkline.config import Settings
from trunkline.errors import (
    PeerError,
    ProtocolError,
    Refusal,
    ResourceNotFound,
    ToolError,
    TrunklineError,
    UrlElicitationRequired,
)
from trunkline.protocol.types import (
    Annotations,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    Icon,
    ImageContent,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    TextContent,
    ToolAnnotations,
)
from trunkline.server.context import Context
from trunkline.server.server import Server

__all__ = [
    "Annotations",
    "AudioContent",
    "CallToolResult",
    "Context",
    "EmbeddedResource",
    "GetPromptResult",
    "Icon",
    "ImageContent",
    "PeerError",
    "PromptMessage",
    "ProtocolError",
    "Refusal",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "Server",
    "Settings",
    "TextContent",
    "ToolAnnotations",
    "ToolError",
    "TrunklineError",
    "UrlElicitationRequired",
]
