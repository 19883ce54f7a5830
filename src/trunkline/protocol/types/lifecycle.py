"""Lifecycle: implementation info, capabilities and the handshake."""

from typing import Any

from trunkline.protocol.types.base import Params, Result, Wire
from trunkline.protocol.types.content import Icon

__all__ = [
    "ClientCapabilities",
    "ClientTaskRequests",
    "ClientTasksCapability",
    "ElicitationCapability",
    "ElicitationTaskRequests",
    "Implementation",
    "InitializeParams",
    "InitializeResult",
    "PromptsCapability",
    "ResourcesCapability",
    "RootsCapability",
    "SamplingCapability",
    "SamplingTaskRequests",
    "ServerCapabilities",
    "ServerTaskRequests",
    "ServerTasksCapability",
    "ToolTaskRequests",
    "ToolsCapability",
]


class Implementation(Wire):
    """The name and version of a client or server."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None


# Capabilities. A member that is only ever present or absent is a `dict`: present means `{}`.


class RootsCapability(Wire):
    """The roots capability of a client."""

    list_changed: bool | None = None


class SamplingCapability(Wire):
    """The sampling capability of a client."""

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None


class ElicitationCapability(Wire):
    """The elicitation modes of a client; no mode means forms."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class SamplingTaskRequests(Wire):
    """The sampling requests that a client runs as tasks."""

    create_message: dict[str, Any] | None = None


class ElicitationTaskRequests(Wire):
    """The elicitation requests that a client runs as tasks."""

    create: dict[str, Any] | None = None


class ClientTaskRequests(Wire):
    """The requests that a client runs as tasks."""

    sampling: SamplingTaskRequests | None = None
    elicitation: ElicitationTaskRequests | None = None


class ClientTasksCapability(Wire):
    """The tasks capability of a client."""

    list: dict[str, Any] | None = None
    cancel: dict[str, Any] | None = None
    requests: ClientTaskRequests | None = None


class ClientCapabilities(Wire):
    """The capabilities of a client."""

    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    tasks: ClientTasksCapability | None = None
    experimental: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None


class ToolsCapability(Wire):
    """The tools capability of a server."""

    list_changed: bool | None = None


class ResourcesCapability(Wire):
    """The resources capability of a server."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class PromptsCapability(Wire):
    """The prompts capability of a server."""

    list_changed: bool | None = None


class ToolTaskRequests(Wire):
    """The tool requests that a server runs as tasks."""

    call: dict[str, Any] | None = None


class ServerTaskRequests(Wire):
    """The requests that a server runs as tasks."""

    tools: ToolTaskRequests | None = None


class ServerTasksCapability(Wire):
    """The tasks capability of a server."""

    list: dict[str, Any] | None = None
    cancel: dict[str, Any] | None = None
    requests: ServerTaskRequests | None = None


class ServerCapabilities(Wire):
    """The capabilities of a server."""

    tools: ToolsCapability | None = None
    resources: ResourcesCapability | None = None
    prompts: PromptsCapability | None = None
    logging: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None
    tasks: ServerTasksCapability | None = None
    experimental: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None


class InitializeParams(Params):
    """Params of `initialize`: client info, capabilities and the requested revision."""

    protocol_version: str
    capabilities: dict[str, Any]  # `ClientCapabilities`, including unknown members
    client_info: Implementation


class InitializeResult(Result):
    """Result of `initialize`: server info, capabilities and the negotiated revision."""

    protocol_version: str
    capabilities: dict[str, Any]  # `ServerCapabilities`, including unknown members
    server_info: Implementation
    instructions: str | None = None
