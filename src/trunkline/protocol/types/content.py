"""Content blocks of messages, results and resources."""

from typing import Annotated, Literal

from msgspec import Meta

from trunkline.protocol.types.base import Item, Wire

__all__ = [
    "Annotations",
    "AudioContent",
    "ContentBlock",
    "EmbeddedResource",
    "Icon",
    "ImageContent",
    "ResourceContents",
    "ResourceLink",
    "Role",
    "TextContent",
]

Role = Literal["user", "assistant"]
"""The speaker of a message."""


class Annotations(Wire, gc=False):
    """Hints about audience, priority and modification time."""

    audience: list[Role] | None = None
    priority: Annotated[float, Meta(ge=0, le=1)] | None = None
    last_modified: str | None = None  # ISO 8601


class Icon(Wire, gc=False):
    """An icon to show next to a name."""

    src: str  # https: or data:
    mime_type: str | None = None
    sizes: list[str] | None = None  # "48x48", or "any"
    theme: Literal["light", "dark"] | None = None


class ResourceContents(Item):
    """Contents of a resource: either `text`, or bytes in base64 as `blob`."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


class _Block(Item, tag_field="type", gc=False):
    """A content block; `type` is its tag."""


class TextContent(_Block, tag="text"):
    """Text."""

    text: str
    annotations: Annotations | None = None
    mime_type: str | None = None  # not in the specification, whose objects are open


class ImageContent(_Block, tag="image"):
    """An image, in base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None


class AudioContent(_Block, tag="audio"):
    """Audio, in base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None


class ResourceLink(_Block, tag="resource_link"):
    """A link to a resource."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None  # bytes
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class EmbeddedResource(_Block, tag="resource"):
    """A resource with its contents."""

    resource: ResourceContents
    annotations: Annotations | None = None


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
"""A content block of any type."""
