"""Lifecycle: who is there, what it can do, and the handshake that says so."""

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
    """What a client can do with roots."""

    list_changed: bool | None = None


class SamplingCapability(Wire):
    """What a client can do with sampling."""

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None


class ElicitationCapability(Wire):
    """The modes in which a client can ask its user; none named means forms."""

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
    """What a client can do with tasks."""

    list: dict[str, Any] | None = None
    cancel: dict[str, Any] | None = None
    requests: ClientTaskRequests | None = None


class ClientCapabilities(Wire):
    """What a client can do."""

    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    tasks: ClientTasksCapability | None = None
    experimental: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None


class ToolsCapability(Wire):
    """What a server can do with tools."""

    list_changed: bool | None = None


class ResourcesCapability(Wire):
    """What a server can do with resources."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class PromptsCapability(Wire):
    """What a server can do with prompts."""

    list_changed: bool | None = None


class ToolTaskRequests(Wire):
    """The tool requests that a server runs as tasks."""

    call: dict[str, Any] | None = None


class ServerTaskRequests(Wire):
    """The requests that a server runs as tasks."""

    tools: ToolTaskRequests | None = None


class ServerTasksCapability(Wire):
    """What a server can do with tasks."""

    list: dict[str, Any] | None = None
    cancel: dict[str, Any] | None = None
    requests: ServerTaskRequests | None = None


class ServerCapabilities(Wire):
    """What a server can do."""

    tools: ToolsCapability | None = None
    resources: ResourcesCapability | None = None
    prompts: PromptsCapability | None = None
    logging: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None
    tasks: ServerTasksCapability | None = None
    experimental: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None


class InitializeParams(Params):
    """A client introduces itself and names the revision it would like."""

    protocol_version: str
    capabilities: dict[str, Any]  # `ClientCapabilities`, with whatever else the client declares
    client_info: Implementation


class InitializeResult(Result):
    """A server introduces itself and names the revision that will be spoken."""

    protocol_version: str
    capabilities: dict[str, Any]  # `ServerCapabilities`, with whatever else the server declares
    server_info: Implementation
    instructions: str | None = None
