"""Trunkline: an SDK and runtime for the Model Context Protocol."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline.client.blocking import BlockingClient
    from trunkline.client.client import Client
    from trunkline.client.elicitation import Question
    from trunkline.client.group.blocking import BlockingClientGroup
    from trunkline.client.group.group import ClientGroup
    from trunkline.client.group.model_tools import run_tool_call, tools_for
    from trunkline.client.group.states import MemberEvent, MemberState
    from trunkline.client.tool_functions import ToolFunctions
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
    from trunkline.event_loop import run
    from trunkline.gateway.gateway import Gateway
    from trunkline.gateway.launch_policy import LaunchPolicy
    from trunkline.gateway.options import BackendOptions
    from trunkline.gateway.states import BackendState, BackendStatus
    from trunkline.names.directory import Directory
    from trunkline.names.shared_directory import SharedDirectory
    from trunkline.observers.access_log import AccessLog
    from trunkline.observers.call_counts import CallCounts
    from trunkline.observers.logs import LogObserver
    from trunkline.observers.otel.observer import OpenTelemetry
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
    from trunkline.proxies.proxy import proxy
    from trunkline.receipts.options import Receipts
    from trunkline.registry.completions import matching
    from trunkline.registry.dependencies import Depends
    from trunkline.registry.generators import Progress
    from trunkline.registry.media import Audio, File, Image
    from trunkline.registry.tasks import TaskPolicy
    from trunkline.server.context import Context
    from trunkline.server.input.choices import EnumNames, Titles
    from trunkline.server.middleware import Call, Middleware, Next
    from trunkline.server.resilience.circuit_breaker import BreakerOpen, CircuitBreaker
    from trunkline.server.server import Server
    from trunkline.stores.memory import MemoryStore
    from trunkline.stores.redis.store import RedisStore
    from trunkline.stores.sqlite.store import SqliteStore
    from trunkline.trust.pin_store import PinStore

__all__ = [
    "AccessLog",
    "Annotations",
    "Audio",
    "AudioContent",
    "BackendOptions",
    "BackendState",
    "BackendStatus",
    "BlockingClient",
    "BlockingClientGroup",
    "BreakerOpen",
    "Call",
    "CallCounts",
    "CallToolResult",
    "CertificateFiles",
    "CircuitBreaker",
    "Client",
    "ClientGroup",
    "Context",
    "Depends",
    "Directory",
    "EmbeddedResource",
    "EnumNames",
    "File",
    "Gateway",
    "GetPromptResult",
    "Icon",
    "Image",
    "ImageContent",
    "LaunchPolicy",
    "LogObserver",
    "MemberEvent",
    "MemberState",
    "MemoryStore",
    "Middleware",
    "Next",
    "OpenTelemetry",
    "PeerError",
    "PinStore",
    "Progress",
    "PromptMessage",
    "ProtocolError",
    "Question",
    "Receipts",
    "RedisStore",
    "Refusal",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "SamplingMessage",
    "Server",
    "Settings",
    "SharedDirectory",
    "SqliteStore",
    "TaskPolicy",
    "TextContent",
    "Titles",
    "ToolAnnotations",
    "ToolError",
    "ToolFunctions",
    "ToolResult",
    "TrunklineError",
    "UrlElicitationRequired",
    "matching",
    "proxy",
    "run",
    "run_tool_call",
    "tools_for",
]

_EXPORTS: Final = {
    "client.blocking": ("BlockingClient",),
    "client.client": ("Client",),
    "client.elicitation": ("Question",),
    "client.group.blocking": ("BlockingClientGroup",),
    "client.group.group": ("ClientGroup",),
    "client.group.model_tools": ("run_tool_call", "tools_for"),
    "client.group.states": ("MemberEvent", "MemberState"),
    "client.tool_functions": ("ToolFunctions",),
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
    "event_loop": ("run",),
    "gateway.gateway": ("Gateway",),
    "gateway.launch_policy": ("LaunchPolicy",),
    "gateway.options": ("BackendOptions",),
    "gateway.states": ("BackendState", "BackendStatus"),
    "names.directory": ("Directory",),
    "names.shared_directory": ("SharedDirectory",),
    "observers.access_log": ("AccessLog",),
    "observers.call_counts": ("CallCounts",),
    "observers.logs": ("LogObserver",),
    "observers.otel.observer": ("OpenTelemetry",),
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
    "receipts.options": ("Receipts",),
    "proxies.proxy": ("proxy",),
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
    "server.resilience.circuit_breaker": (
        "BreakerOpen",
        "CircuitBreaker",
    ),
    "server.server": ("Server",),
    "stores.memory": ("MemoryStore",),
    "stores.redis.store": ("RedisStore",),
    "stores.sqlite.store": ("SqliteStore",),
    "trust.pin_store": ("PinStore",),
}
_MODULE_BY_NAME: Final = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a small server starts fast and does not load the client."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    return value
