"""Tools that return every kind of content, and one that fails."""

from everything.server import RED_DOT, SILENCE, server
from trunkline import Audio, EmbeddedResource, Image, ResourceContents, ToolError


@server.tool(structured=False)
async def test_simple_text() -> str:
    """Returns one text."""
    return "This is a simple text response for testing."


@server.tool
async def test_image_content() -> Image:
    """Returns a picture."""
    return Image(RED_DOT)


@server.tool
async def test_audio_content() -> Audio:
    """Returns a sound."""
    return Audio(SILENCE)


@server.tool
async def test_embedded_resource() -> EmbeddedResource:
    """Returns a resource, contents and all."""
    text = "This is an embedded resource content."
    return EmbeddedResource(ResourceContents("test://embedded-resource", "text/plain", text=text))


@server.tool
async def test_multiple_content_types() -> list[str | Image | EmbeddedResource]:
    """Returns a text, a picture and a resource in one result."""
    data = '{"test":"data","value":123}'
    embedded = EmbeddedResource(ResourceContents("test://mixed-content-resource", "application/json", text=data))
    return ["Multiple content types test:", Image(RED_DOT), embedded]


@server.tool(structured=False)
async def test_error_handling() -> str:
    """Always fails, and says so in its result."""
    raise ToolError("This tool intentionally returns an error for testing")
