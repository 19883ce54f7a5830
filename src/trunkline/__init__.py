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
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from trunkline.registry.completions import matching
from trunkline.registry.dependencies import Depends
from trunkline.registry.generators import Progress
from trunkline.registry.media import Audio, File, Image
from trunkline.server.choices import EnumNames, Titles
from trunkline.server.context import Context
from trunkline.server.middleware import Call
from trunkline.server.server import Server

__all__ = [
    "Annotations",
    "Audio",
    "AudioContent",
    "Call",
    "CallToolResult",
    "Context",
    "Depends",
    "EmbeddedResource",
    "EnumNames",
    "File",
    "GetPromptResult",
    "Icon",
    "Image",
    "ImageContent",
    "PeerError",
    "Progress",
    "PromptMessage",
    "ProtocolError",
    "Refusal",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "SamplingMessage",
    "Server",
    "Settings",
    "TextContent",
    "Titles",
    "ToolAnnotations",
    "ToolError",
    "TrunklineError",
    "UrlElicitationRequired",
    "matching",
]
