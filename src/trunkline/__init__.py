"""Trunkline: an SDK and runtime for the Model Context Protocol."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline.client.blocking import BlockingClient
    from trunkline.client.client import Client
    from trunkline.client.elicitation import Question
    from trunkline.config import CertificateFiles, Settings
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
    from trunkline.protocol.types.tools import ToolResult
    from trunkline.registry.completions import matching
    from trunkline.registry.dependencies import Depends
    from trunkline.registry.generators import Progress
    from trunkline.registry.media import Audio, File, Image
    from trunkline.registry.tasks import TaskPolicy
    from trunkline.server.context import Context
    from trunkline.server.input.choices import EnumNames, Titles
    from trunkline.server.middleware import Call, Middleware, Next
    from trunkline.server.server import Server
    from trunkline.stores.memory import MemoryStore
    from trunkline.stores.redis.store import RedisStore
    from trunkline.stores.sqlite.store import SqliteStore

__all__ = [
    "Annotations",
    "Audio",
    "AudioContent",
    "BlockingClient",
    "Call",
    "CallToolResult",
    "CertificateFiles",
    "Client",
    "Context",
    "Depends",
    "EmbeddedResource",
    "EnumNames",
    "File",
    "GetPromptResult",
    "Icon",
    "Image",
    "ImageContent",
    "MemoryStore",
    "Middleware",
    "Next",
    "PeerError",
    "Progress",
    "PromptMessage",
    "ProtocolError",
    "Question",
    "RedisStore",
    "Refusal",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "SamplingMessage",
    "Server",
    "Settings",
    "SqliteStore",
    "TaskPolicy",
    "TextContent",
    "Titles",
    "ToolAnnotations",
    "ToolError",
    "ToolResult",
    "TrunklineError",
    "UrlElicitationRequired",
    "matching",
]

_EXPORTS: Final = {
    "client.blocking": ("BlockingClient",),
    "client.client": ("Client",),
    "client.elicitation": ("Question",),
    "config": ("CertificateFiles", "Settings"),
    "errors": (
        "PeerError",
        "ProtocolError",
        "Refusal",
        "ResourceNotFound",
        "ToolError",
        "TrunklineError",
        "UrlElicitationRequired",
    ),
    "protocol.types": (
        "Annotations",
        "AudioContent",
        "CallToolResult",
        "EmbeddedResource",
        "GetPromptResult",
        "Icon",
        "ImageContent",
        "PromptMessage",
        "ResourceContents",
        "ResourceLink",
        "SamplingMessage",
        "TextContent",
        "ToolAnnotations",
    ),
    "protocol.types.tools": ("ToolResult",),
    "registry.completions": ("matching",),
    "registry.dependencies": ("Depends",),
    "registry.tasks": ("TaskPolicy",),
    "registry.generators": ("Progress",),
    "registry.media": (
        "Audio",
        "File",
        "Image",
    ),
    "server.input.choices": (
        "EnumNames",
        "Titles",
    ),
    "server.context": ("Context",),
    "server.middleware": (
        "Call",
        "Middleware",
        "Next",
    ),
    "server.server": ("Server",),
    "stores.memory": ("MemoryStore",),
    "stores.redis.store": ("RedisStore",),
    "stores.sqlite.store": ("SqliteStore",),
}
_MODULE_BY_NAME: Final = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a small server starts fast and does not load the client."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    return value
