"""Resources: data that clients can read."""

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
    """The definition of a resource."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None  # bytes
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class ResourceTemplate(Item):
    """The definition of resources whose URIs follow a pattern (RFC 6570)."""

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
    """Params with the URI of a resource."""

    uri: str


class ReadResourceParams(AskableParams):
    """Params of `resources/read`."""

    uri: str


class ReadResourceResult(Result):
    """Result of `resources/read`: one or several contents."""

    contents: list[ResourceContents]


class SubscribeParams(ResourceParams):
    """Params of `resources/subscribe`."""


class UnsubscribeParams(ResourceParams):
    """Params of `resources/unsubscribe`."""


class ResourceUpdatedParams(ResourceParams):
    """Params of `notifications/resources/updated`."""

    metadata: Any = None  # not in the specification, whose objects are open; some servers send it
