"""Resources: data that a server lets be read."""

from typing import Any

from trunkline.protocol.types.base import Item, Params, Result
from trunkline.protocol.types.content import Annotations, Icon, ResourceContents
from trunkline.protocol.types.multi_round import AskableParams
from trunkline.protocol.types.pagination import PaginatedResult

__all__ = [
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ReadResourceParams",
    "ReadResourceResult",
    "Resource",
    "ResourceParams",
    "ResourceTemplate",
    "ResourceUpdatedParams",
    "SubscribeParams",
    "UnsubscribeParams",
]


class Resource(Item):
    """A resource, as a server tells about it."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None  # bytes
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class ResourceTemplate(Item):
    """Resources whose URIs follow a pattern (RFC 6570)."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class ListResourcesResult(PaginatedResult):
    """A page of resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(PaginatedResult):
    """A page of resource templates."""

    resource_templates: list[ResourceTemplate]


class ResourceParams(Params):
    """Parameters that name a resource."""

    uri: str


class ReadResourceParams(AskableParams):
    """Reads a resource."""

    uri: str


class ReadResourceResult(Result):
    """What the resource holds, in one piece or several."""

    contents: list[ResourceContents]


class SubscribeParams(ResourceParams):
    """Asks to be told when a resource changes."""


class UnsubscribeParams(ResourceParams):
    """Asks not to be told any more."""


class ResourceUpdatedParams(ResourceParams):
    """Tells that a resource has changed."""

    metadata: Any = None  # not in the specification, whose objects are open; some servers send it
