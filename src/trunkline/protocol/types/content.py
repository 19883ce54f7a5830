"""Content: what messages, results and resources are made of."""

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
"""Who speaks."""


class Annotations(Wire, gc=False):
    """Hints on whom something is for, how much it matters and how fresh it is."""

    audience: list[Role] | None = None
    priority: Annotated[float, Meta(ge=0, le=1)] | None = None
    last_modified: str | None = None  # ISO 8601


class Icon(Wire, gc=False):
    """A picture to show beside a name."""

    src: str  # https: or data:
    mime_type: str | None = None
    sizes: list[str] | None = None  # "48x48", or "any"
    theme: Literal["light", "dark"] | None = None


class ResourceContents(Item):
    """What a resource holds: either `text`, or bytes in base64 as `blob`."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


class _Block(Item, tag_field="type", gc=False):
    """A piece of content; its kind is told by `type`."""


class TextContent(_Block, tag="text"):
    """Text."""

    text: str
    annotations: Annotations | None = None
    mime_type: str | None = None  # not in the specification, whose objects are open


class ImageContent(_Block, tag="image"):
    """A picture, in base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None


class AudioContent(_Block, tag="audio"):
    """A sound, in base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None


class ResourceLink(_Block, tag="resource_link"):
    """Points at a resource that can be read."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None  # bytes
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class EmbeddedResource(_Block, tag="resource"):
    """A resource, contents and all."""

    resource: ResourceContents
    annotations: Annotations | None = None


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
"""A piece of content of any kind."""
